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

from imageevalkit.api.money import positive
from imageevalkit.atomic import write_atomic
from imageevalkit.benchmark.question import JudgeUnusable
from imageevalkit.errors import UserError
from imageevalkit.judges.settings import check_gpus
from imageevalkit.locks import open_lock, take_lock

_MAX_LOGPROBS = 20  # what the OpenAI API gives at most, and so what is asked for
# Flags that are not the user's. The judge would not be found elsewhere or under another name; secrets would be written
# into plans, logs and results: these go by how they begin, as an argument parser may take them shortened.
_REFUSED = {
    r"host|port|uds|served-model-name|model": "the run sets it: leave it out",
    r"api-k.*": "the server of a run asks for no key: leave it out",
    r"hf-t.*": "a token is read from HF_TOKEN in config.local.sh or the environment: leave it out",
}
# Names without their dashes, and without the "no-" of a switch; what is not here is taken to decide.
_INDIFFERENT = re.compile(
    r"""
    # memory
    gpu-memory-utilization | kv-cache-memory(-bytes)? | swap-space | cpu-offload-gb | num-gpu-blocks-override |
    block-size | mm-processor-cache-(gb|type) | enable-sleep-mode | max-model-len |
    # devices and processes
    tp | pp | dp | dpl | dcp | (tensor|pipeline|data|decode-context)-parallel-.+ | enable-expert-parallel |
    distributed-executor-backend | mm-encoder-tp-mode | disable-custom-all-reduce | max-parallel-loading-workers |
    api-server-count | asc |
    # scheduling and speed
    max-num-seqs | max-num-batched-tokens | max-num-partial-prefills | max-long-partial-prefills |
    long-prefill-token-threshold | enable-chunked-prefill | enable-prefix-caching | prefix-caching-hash-algo |
    async-scheduling | scheduling-policy | stream-interval | enforce-eager | max-seq-len-to-capture |
    cuda-graph-sizes | cudagraph-.+ | compilation-config | cc | O\d* |
    # places
    download-dir | allowed-local-media-path | allowed-media-domains | safetensors-load-strategy | use-tqdm-on-load |
    root-path | allow-credentials | allowed-(origins|methods|headers) | ssl-.+ |
    # logs and metrics
    (disable|enable)-log-.+ | disable-uvicorn-access-log | uvicorn-log-level | max-log-len | log-.+ |
    show-hidden-metrics-.+ | otlp-traces-endpoint | collect-detailed-traces | disable-fastapi-docs | kv-cache-metrics.*
    """,
    re.VERBOSE,
)
_ERROR = "error: "  # begins what stands in the place of an address
_TICK = 0.1  # seconds between two looks at it


@dataclass(frozen=True)
class ServerSettings:
    """How ``vllm serve`` runs.

    ``gpus``: None is one, where there is one. ``environment`` is where vLLM is installed (as in EVAL_ENV_MAP).
    ``max_model_len`` in tokens; None is the largest that fits. ``revision`` is that of a hub id. ``serve_args``
    are further flags in one string, stronger than ours. ``start_timeout`` (seconds) bounds the loading.

    Raises:
        UserError: a number that is too small, or ``serve_args`` that no shell splits or that the run sets itself.
    """

    gpus: int | None = None
    environment: str | None = None
    max_model_len: int | None = None
    revision: str = ""
    serve_args: str = ""
    start_timeout: float = 1800.0

    def __post_init__(self) -> None:
        check_gpus(self.gpus)
        positive("start_timeout", self.start_timeout)
        if self.max_model_len is not None:
            positive("max_model_len", self.max_model_len, whole=True)
        self.further_flags()

    @property
    def decisive(self) -> dict[str, str]:
        """The part that decides what the judge answers, known without starting it; for its identity."""
        flags, decides = list[str](), True
        for word in self.further_flags():
            if word.startswith("-"):  # its values follow it
                decides = not _INDIFFERENT.fullmatch(_name_of(word).removeprefix("no-"))
            flags += [word] * decides
        given = {"revision": self.revision, "serve_args": shlex.join(flags)}
        return {name: value for name, value in given.items() if value}

    def command(self, executable: Path, model: str, gpus: int) -> list[str]:
        """``vllm serve`` for ``model`` (a hub id or a folder), all but the port.

        Sampling that a request leaves open is the checkpoint's own (``--generation-config auto``), as where an
        official evaluator asks a plain ``vllm serve``.
        """
        command = [str(executable), "serve", model, "--host", "127.0.0.1"]
        command += ["--served-model-name", model, "--generation-config", "auto"]
        command += ["--max-logprobs", str(_MAX_LOGPROBS)]
        # memory for a video that is never sent would be taken from the cache
        command += ["--limit-mm-per-prompt", '{"video": 0}']
        # 1,000 questions would leave 1,000 lines, and an error before them is what the log is read for
        command += ["--uvicorn-log-level", "warning"]
        if gpus:
            command += ["--tensor-parallel-size", str(gpus)]
        if self.max_model_len or gpus:  # without a GPU, vLLM's automatic length is 512
            command += ["--max-model-len", str(self.max_model_len or "auto")]
        if self.revision:
            command += ["--revision", self.revision]
        return command + self.further_flags()

    def further_flags(self) -> list[str]:
        """``serve_args``, split as a shell does. Raises UserError for a flag that the run sets itself."""
        try:
            flags = shlex.split(self.serve_args)
        except ValueError as error:
            raise UserError(f"serve_args: {error}") from None
        for name in (_name_of(flag) for flag in flags if flag.startswith("--")):
            for refused, remedy in _REFUSED.items():
                if re.fullmatch(refused, name):
                    raise UserError(f"serve_args: --{name}: {remedy}")
        return flags


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

        A server that died is started again, where possible on the same port. Raises JudgeUnusable: it does not start,
        or it died too often, or the job that keeps it has ended.
        """
        while not (text := self._text()):
            self._wanted.touch()
            if not self._is_kept():
                raise JudgeUnusable("the job that serves the judge has ended; run the same command again")
            time.sleep(_TICK)
        if text.startswith(_ERROR):
            raise JudgeUnusable(text.removeprefix(_ERROR))
        return text

    def problem(self, base_url: str) -> str:
        """The one line why the judge will not come back at ``base_url``; empty as long as it may.

        For those whose requests fail: to them it looks like an outage that passes.
        """
        text = self._text()
        if text in ("", base_url):
            return ""
        moved = "the server of the judge has moved to another port; run the same command again"
        return text.removeprefix(_ERROR) if text.startswith(_ERROR) else moved

    @property
    def is_away(self) -> bool:
        """Whether the judge's server is being started again."""
        return not self._text() and self._is_kept()

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

    def _is_kept(self) -> bool:
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
