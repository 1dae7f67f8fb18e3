"""Which judge a user means, and what the launcher tells an evaluate job about it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

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


@dataclass(frozen=True)
class JudgeOptions:
    """What the launcher decided about the judge of an evaluate job: JSON in :data:`VARIABLE`; holds no secret.

    ``kwargs`` are the user's. ``workers`` and ``requests_per_minute`` bound requests to an API. ``address_file`` is
    that of ``server.py`` (empty: no job serves the judge), ``served`` what decides the answers of such a server.
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 4
    requests_per_minute: float | None = None
    address_file: str = ""
    served: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> JudgeOptions:
        """Those of this job; the defaults where an evaluation script is run by hand."""
        return cls(**json.loads(os.environ.get(VARIABLE) or "{}"))
