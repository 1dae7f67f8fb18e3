"""The server of a judge: its settings, and the file with its address."""

from __future__ import annotations

import contextlib
import fcntl
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from imageevalkit.api.settings import check_numbers
from imageevalkit.benchmark.question import JudgeUnusable
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import UserError

# Flags that a user cannot set. With another address or name the run would not find the judge. Secrets would
# appear in plans, logs and results; they match by prefix, because an argument parser accepts shortened flags.
_REFUSED = {
    r"host|port|uds|served-model-name|model": "the run sets it: leave it out",
    r"api-k.*": "the server of a run asks for no key: leave it out",
    r"hf-t.*": "a token is read from HF_TOKEN in config.local.sh or the environment: leave it out",
}
_INDIFFERENT = Path(__file__).with_name("indifferent_flags.txt")
ERROR, DIED = "error: ", "died: "
"""Prefixes of an error in place of an address: the server cannot start, or it has died too often in one cell."""
_TICK = 0.1  # seconds between two reads of the address file


@dataclass(frozen=True)
class ServerSettings:
    """The settings of ``vllm serve``. Raises UserError: a setting is malformed or not allowed.

    ``gpus``: None is one GPU if there is one. ``environment``: where vLLM is installed (as in EVAL_ENV_MAP).
    ``max_model_len``: in tokens; None is the largest that fits. ``revision``: of a hub repository.
    ``serve_args``: further flags in one string, which override the default flags. ``start_timeout``: seconds
    for loading.
    """

    gpus: int | None = None
    environment: str | None = None
    max_model_len: int | None = None
    revision: str = ""
    serve_args: str = ""
    start_timeout: float = 1800.0

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in (_name_of(flag) for flag in self.further_flags() if flag.startswith("--")):
            for refused, remedy in _REFUSED.items():
                if re.fullmatch(refused, name):
                    raise UserError(f"serve_args: --{name}: {remedy}")

    @property
    def decisive(self) -> dict[str, str]:
        """The settings that affect answers, known without a start. They are part of the judge's identity."""
        listed = _INDIFFERENT.read_text(encoding="utf-8").splitlines()
        indifferent = "|".join(line for line in listed if line and not line.startswith("#"))
        flags, decides = list[str](), True
        for word in self.further_flags():
            if word.startswith("-"):  # the words after a flag are its values
                decides = not re.fullmatch(indifferent, _name_of(word).removeprefix("no-"))
            flags += [word] * decides
        given = {"revision": self.revision, "serve_args": shlex.join(flags)}
        return {name: value for name, value in given.items() if value}

    def further_flags(self) -> list[str]:
        """Returns ``serve_args`` split as in a shell. Raises UserError: it cannot be split."""
        try:
            return shlex.split(self.serve_args)
        except ValueError as error:
            raise UserError(f"serve_args: {error}") from None


def split_kwargs(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the server's kwargs in ``kwargs``, and the others, which are the judge client's."""
    names = {field.name for field in fields(ServerSettings)}
    server = {name: value for name, value in kwargs.items() if name in names}
    return server, {name: value for name, value in kwargs.items() if name not in names}


def _name_of(flag: str) -> str:
    """Returns "max-num-seqs" for ``--max_num_seqs=64`` and ``--max-num-seqs``, and "a" for ``--a.b``."""
    return re.split(r"[=.]", flag.lstrip("-"))[0].replace("_", "-")


class ServerAddress:
    """The file ``path`` with the address of the judge's server, as its clients see it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wanted = path.with_name(f"{path.name}.wanted")
        self._keeper = path.with_name(f"{path.name}.keeper")

    def wait(self) -> str:
        """Returns the base URL of the judge's server. The first call starts it, which may take many minutes.

        Raises JudgeUnusable: the server does not start, has died too often, or its job has ended.
        """
        while not (text := self._text()):
            if not self._wanted.exists():
                write_atomic(self._wanted, "")
            if not self.is_kept:
                raise JudgeUnusable("the job that serves the judge has ended; run the same command again")
            time.sleep(_TICK)
        if error := _error_in(text):
            raise JudgeUnusable(error)
        return text

    def begin_cell(self) -> None:
        """Lets the next :meth:`wait` start a server that has died too often: another cell may not kill it."""
        if self._text().startswith(DIED):
            self._wanted.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def problem(self, base_url: str) -> str:
        """Returns why the server will not return at ``base_url``, in one line; empty if it may return."""
        text = self._text()
        if text in ("", base_url):
            return ""
        moved = "the server of the judge has moved to another port; run the same command again"
        return _error_in(text) or moved

    @property
    def given_up(self) -> str:
        """Why the judge will not answer, in one line; empty if it may answer."""
        return _error_in(self._text())

    @property
    def is_away(self) -> bool:
        """True while the judge's server restarts."""
        return not self._text() and self.is_kept

    @property
    def edition(self) -> int:
        """A number that changes whenever the address is written; 0 while there is no address."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_mtime_ns
        return 0

    def _text(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.path.read_text(encoding="utf-8").strip()
        return ""

    @property
    def is_kept(self) -> bool:
        """True if a job serves the judge, or will serve it at the first question."""
        with contextlib.suppress(FileNotFoundError), self._keeper.open("rb") as keeper:
            try:
                fcntl.flock(keeper, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def _error_in(text: str) -> str:
    return next((text.removeprefix(one) for one in (ERROR, DIED) if text.startswith(one)), "")
