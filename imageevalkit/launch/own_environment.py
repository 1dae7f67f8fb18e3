"""What evaluating a benchmark takes by itself, whatever its judge: a script, an environment, weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imageevalkit.benchmark.contract import rules_code, rules_of
from imageevalkit.cell import REPO
from imageevalkit.errors import UserError
from imageevalkit.launch.config import Config

_ENCODERS = "encoders"


def uses_encoders(benchmark: str, given: Mapping[str, Any]) -> bool:
    """Whether ``benchmark`` with the settings ``given`` measures with image encoders."""
    return bool(getattr(rules_of(benchmark, given), "uses_encoders", False))


def missing_here(benchmark: str, given: Mapping[str, Any]) -> list[str]:
    """A line for each thing that evaluating ``benchmark`` lacks on this machine, as far as the driver can tell."""
    missing = getattr(rules_of(benchmark, given), "missing", None)
    with rules_code(benchmark, "fails in missing()"):
        return list(missing()) if missing else []


def script_of(benchmark: str) -> Path:
    """The script that evaluates ``benchmark``. Raises UserError where there is none."""
    script = REPO / "eval" / f"{benchmark}.sh"
    if not script.is_file():
        raise UserError(f"benchmark {benchmark} has no evaluation script: eval/{benchmark}.sh is missing")
    return script


def own_environment(config: Config, benchmark: str, given: Mapping[str, Any]) -> str:
    """That of EVAL_ENV_MAP (several are separated by spaces), else that of image encoders where it has some.

    Empty: it has no wish.
    """
    environments = config.maps.get("EVAL_ENV_MAP", {})
    own = environments.get(benchmark, "")
    return own or (environments.get(_ENCODERS, "") if uses_encoders(benchmark, given) else "")
