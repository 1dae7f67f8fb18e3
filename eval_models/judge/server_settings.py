"""The kwargs of a ``vllm`` judge that concern the server which a run starts for it, and the flags they become."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from eval_models.judge.server_flags import decisive_flags, name_of
from imageevalkit.errors import UserError

_MAX_LOGPROBS = 20  # what the OpenAI API gives at most, and so what is asked for
# The run decides these; the judge would not be found elsewhere or under another name.
_OURS = ("host", "port", "uds", "served-model-name", "model")
# Flags are written into plans, logs and results. By how they begin: an argument parser may take them shortened.
_SECRETS = {
    "api-k": "the server of a run asks for no key: leave it out",
    "hf-t": "a token is read from HF_TOKEN in config.local.sh or the environment: leave it out",
}


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

    @classmethod
    def of(cls, kwargs: Mapping[str, Any]) -> ServerSettings:
        """Those that ``kwargs`` give. Raises UserError for a malformed one."""
        settings = cls(**kwargs)
        for name in ("environment", "revision", "serve_args"):
            value = kwargs.get(name)
            if value is not None and not isinstance(value, str):
                raise UserError(f"{name} is {value!r}: use a text")
        for name, kinds in (("max_model_len", (int,)), ("start_timeout", (int, float))):
            value = kwargs.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or value <= 0):
                raise UserError(f"{name} is {value!r}: use a {'whole ' * (kinds == (int,))}number above 0")
        settings.further_flags()
        return settings

    @property
    def decisive(self) -> dict[str, str]:
        """The part that decides what the judge answers, known without starting it; for its identity."""
        flags = shlex.join(decisive_flags(self.further_flags()))
        given = {"revision": self.revision, "serve_args": flags}
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
        for flag in flags:
            if not flag.startswith("--"):
                continue
            name = name_of(flag)
            if name in _OURS:
                raise UserError(f"serve_args: --{name} is set by the run, leave it out")
            for beginning, remedy in _SECRETS.items():
                if name.startswith(beginning):
                    raise UserError(f"serve_args: --{name}: {remedy}")
        return flags


def split_kwargs(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``kwargs`` of the server, and the others, which are those of who asks it."""
    names = {field.name for field in fields(ServerSettings)}
    return (
        {name: value for name, value in kwargs.items() if name in names},
        {name: value for name, value in kwargs.items() if name not in names},
    )
