"""Which judge a user means, and what the launcher tells an evaluate job about it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from imageevalkit.errors import UserError, suggest

BACKENDS = ("openai", "transformers", "vllm")
"""What runs a judge: an API, this process, or a server that a job of the run starts."""
VARIABLE = "IMAGEEVALKIT_JUDGE_OPTIONS"


class JudgeSetting(NamedTuple):
    """``model_path`` is the id an API knows, a hub id, or a local folder; ``kwargs`` are the backend's."""

    backend: str
    model_path: str
    kwargs: Mapping[str, Any] = {}


class JudgeChoice(NamedTuple):
    """A judge as a user chose it: ``name`` (of the registry, or a model id or path, as written) and its setting."""

    name: str
    setting: JudgeSetting

    @property
    def full_name(self) -> str:
        """The same however it was written: ``transformers:qwen3-vl-8b``."""
        return f"{self.setting.backend}:{self.name}"


def is_judge(full_name: str) -> bool:
    """Whether that is the full name of a judge, and of no other evaluator (a text reader)."""
    return full_name.partition(":")[0] in BACKENDS


def choose(judge: str, known: Mapping[str, JudgeSetting]) -> JudgeChoice:
    """The judge called ``judge``: one of ``known``, ``backend:name``, or ``backend:model id or path``.

    Raises:
        UserError: there is no such judge or backend.
    """
    backend, colon, name = judge.partition(":")
    if backend in BACKENDS and not name.strip():
        raise UserError(f"judge '{judge}' names no model; as in openai:gpt-4o")
    if not colon:
        if judge in known:
            return JudgeChoice(judge, known[judge])
        raise UserError(
            f"unknown judge '{judge}'{suggest(judge, known)}; known: {', '.join(known)}, "
            f"and any model as backend:model, such as openai:{judge} (backends: {', '.join(BACKENDS)})"
        )
    if backend not in BACKENDS:
        raise UserError(
            f"judge '{judge}': no backend '{backend}'{suggest(backend, BACKENDS)}; "
            f"use one of {', '.join(BACKENDS)}, as in openai:gpt-4o"
        )
    setting = known.get(name)
    if setting is None:
        # pathlib raises where there is no such user; so it is a folder that is not there
        model_path = name if backend == "openai" else os.path.expanduser(name)  # noqa: PTH111
        return JudgeChoice(name, JudgeSetting(backend, model_path))
    return JudgeChoice(
        name, setting if setting.backend == backend else JudgeSetting(backend, setting.model_path)
    )


@dataclass(frozen=True)
class JudgeOptions:
    """What the launcher decided about the judge of an evaluate job: JSON in :data:`VARIABLE`; holds no secret.

    ``kwargs`` are the user's settings of the judge over those of its entry in the registry. ``workers`` and
    ``requests_per_minute`` bound requests to an API. ``address_file`` is where the job that serves the judge
    leaves its base URL (see ``server.py``); empty: no job serves it. ``served`` is what was settled about such a
    server and decides its answers, a part of the judge's identity.
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 4
    requests_per_minute: float | None = None
    address_file: str = ""
    served: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """For the environment of the job."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> JudgeOptions:
        """Those of this job; the defaults where an evaluation script is run by hand."""
        return cls(**json.loads(os.environ.get(VARIABLE) or "{}"))
