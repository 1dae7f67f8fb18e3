"""A judge's server: the settings of one that a run starts, the flags they become, and how it is found."""

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

from imageevalkit.atomic import write_atomic
from imageevalkit.benchmark.question import JudgeUnusable
from imageevalkit.errors import UserError
from imageevalkit.locks import open_lock, take_lock
from imageevalkit.requests.settings import check_numbers

_MAX_LOGPROBS = 20  # what the OpenAI API gives at most, and so what is asked for
# Flags that are not the user's. The judge would not be found elsewhere or under another name; secrets would be written
# into plans, logs and results: these go by how they begin, as an argument parser may take them shortened.
_REFUSED = {
    r"host|port|uds|served-model-name|model": "the run sets it: leave it out",
    r"api-k.*": "the server of a run asks for no key: leave it out",
    r"hf-t.*": "a token is read from HF_TOKEN in config.local.sh or the environment: leave it out",
}
_INDIFFERENT = Path(__file__).with_name("indifferent_flags.txt")
_ERROR = "error: "  # begins what stands in the place of an address
_TICK = 0.1  # seconds between two looks at it


@dataclass(frozen=True)
class ServerSettings:
    """How ``vllm serve`` runs.

    ``gpus``: None is one, where there is one. ``environment`` is where vLLM is installed (as in EVAL_ENV_MAP).
    ``max_model_len`` in tokens; None is the largest that fits. ``revision`` is that of a hub id. ``serve_args``
    are further flags in one string, stronger than ours. ``start_timeout`` (seconds) bounds the loading.
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
        """The part that decides what the judge answers, known without starting it; for its identity."""
        listed = _INDIFFERENT.read_text(encoding="utf-8").splitlines()
        indifferent = "|".join(line for line in listed if line and not line.startswith("#"))
        flags, decides = list[str](), True
        for word in self.further_flags():
            if word.startswith("-"):  # its values follow it
                decides = not re.fullmatch(indifferent, _name_of(word).removeprefix("no-"))
            flags += [word] * decides
        given = {"revision": self.revision, "serve_args": shlex.join(flags)}
        return {name: value for name, value in given.items() if value}

    def command(self, executable: Path, model: str, gpus: int) -> list[str]:
        """``vllm serve`` for ``model`` (a hub id or a folder), all but the port."""
        flags = {
            "host": "127.0.0.1",
            "served-model-name": model,
            # sampling that a request leaves open, as where an official evaluator asks a plain ``vllm serve``
            "generation-config": "auto",
            "max-logprobs": str(_MAX_LOGPROBS),
            # memory for a video that is never sent would be taken from the cache
            "limit-mm-per-prompt": '{"video": 0}',
            # 1,000 questions would leave 1,000 lines, and an error before them is what the log is read for
            "uvicorn-log-level": "warning",
            "tensor-parallel-size": str(gpus or ""),
            # without a GPU, vLLM's automatic length is 512
            "max-model-len": str(self.max_model_len or "auto" * bool(gpus)),
            "revision": self.revision,
        }
        given = [word for name, value in flags.items() if value for word in (f"--{name}", value)]
        return [str(executable), "serve", model, *given, *self.further_flags()]

    def further_flags(self) -> list[str]:
        """``serve_args``, split as a shell does. Raises UserError where it cannot be."""
        try:
            return shlex.split(self.serve_args)
        except ValueError as error:
            raise UserError(f"serve_args: {error}") from None


def split_kwargs(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``kwargs`` of the server, and the others, which are those of who asks it."""
    names = {field.name for field in fields(ServerSettings)}
    server = {name: value for name, value in kwargs.items() if name in names}
    return server, {name: value for name, value in kwargs.items() if name not in names}


def _name_of(flag: str) -> str:
    """``"--max_num_seqs=64"`` and ``"--max-num-seqs"`` are ``"max-num-seqs"``; of ``"--a.b"`` it is ``"a"``."""
    return re.split(r"[=.]", flag.lstrip("-"))[0].replace("_", "-")


class ServerAddress:
    """The file ``path`` where the judge's server is found, for those who ask it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wanted = path.with_name(f"{path.name}.wanted")
        self._keeper = path.with_name(f"{path.name}.keeper")

    def wait(self) -> str:
        """The base URL of the judge's server, which starts when this is first called: that may take many minutes.

        Raises JudgeUnusable: it does not start, or it died too often, or the job that keeps it has ended.
        """
        while not (text := self._text()):
            if not self._wanted.exists():
                write_atomic(self._wanted, "")
            if not self.is_kept:
                raise JudgeUnusable("the job that serves the judge has ended; run the same command again")
            time.sleep(_TICK)
        if text.startswith(_ERROR):
            raise JudgeUnusable(text.removeprefix(_ERROR))
        return text

    def problem(self, base_url: str) -> str:
        """The one line why the judge will not come back at ``base_url``, where requests fail; empty: it may."""
        text = self._text()
        if text in ("", base_url):
            return ""
        moved = "the server of the judge has moved to another port; run the same command again"
        return text.removeprefix(_ERROR) if text.startswith(_ERROR) else moved

    @property
    def given_up(self) -> str:
        """Why the judge will not answer, in one line; empty: it may."""
        text = self._text()
        return text.removeprefix(_ERROR) if text.startswith(_ERROR) else ""

    @property
    def is_away(self) -> bool:
        """Whether the judge's server is being started again."""
        return not self._text() and self.is_kept

    @property
    def edition(self) -> int:
        """Another number each time the address is given anew; 0 while there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_mtime_ns
        return 0

    def _text(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.path.read_text(encoding="utf-8").strip()
        return ""

    @property
    def is_kept(self) -> bool:
        """Whether there is a job that serves the judge, or will once somebody asks."""
        with contextlib.suppress(FileNotFoundError), self._keeper.open("rb") as keeper:
            try:
                fcntl.flock(keeper, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


class Address(ServerAddress):
    """The same for the job that serves the judge, which tells those who wait. Forgets an earlier job's words."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = open_lock(self._keeper)
        take_lock(self._lock, self._keeper, wait=True)
        self.forget()

    @property
    def wanted(self) -> bool:
        """Whether somebody has something to ask."""
        return self._wanted.exists()

    def give(self, base_url: str) -> None:
        """The judge answers at ``base_url``."""
        write_atomic(self.path, base_url)

    def give_up(self, why: str) -> None:
        """The judge will not answer; ``why`` is one line."""
        write_atomic(self.path, _ERROR + why)

    def withdraw(self) -> None:
        """The judge does not answer now: who wants it waits."""
        self.path.unlink(missing_ok=True)

    def forget(self) -> None:
        """As if nobody had asked."""
        self.withdraw()
        self._wanted.unlink(missing_ok=True)
