"""What the launcher decided about the judge of an evaluate job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

VARIABLE = "IMAGEEVALKIT_JUDGE_OPTIONS"


@dataclass(frozen=True)
class JudgeOptions:
    """Handed to the evaluate job as JSON in :data:`VARIABLE`; holds no secret.

    ``kwargs`` are the user's settings of the judge over those of its entry in the registry. ``workers`` and
    ``requests_per_minute`` bound requests to an API. ``address_file`` is where the job that serves the judge
    leaves its base URL (see ``served.py``); empty: no job serves it. ``served`` is what was settled about such a
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
