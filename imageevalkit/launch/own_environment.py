"""The environment that evaluating a benchmark takes, whatever its judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageevalkit.evaluation.benchmark import rules_of
from imageevalkit.launch.config import Config

_ENCODERS = "encoders"


def uses_encoders(benchmark: str, given: Mapping[str, Any]) -> bool:
    """Whether ``benchmark`` with the settings ``given`` measures with image encoders."""
    return bool(getattr(rules_of(benchmark, given), "uses_encoders", False))


def own_environment(config: Config, benchmark: str, given: Mapping[str, Any]) -> str:
    """That of EVAL_ENV_MAP (several are separated by spaces), else that of image encoders where it has some.

    Empty: it has no wish.
    """
    environments = config.maps.get("EVAL_ENV_MAP", {})
    own = environments.get(benchmark, "")
    return own or (environments.get(_ENCODERS, "") if uses_encoders(benchmark, given) else "")
