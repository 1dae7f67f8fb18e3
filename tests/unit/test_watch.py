"""Options that exclude ``--watch``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.common.errors import UserError
from imageevalkit.extras.watch.watch import watch
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import Options


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"launcher": "slurm"}, "--launcher: --watch runs jobs on this machine"),
        ({"models": {"run": {}, "other": {}}}, "--watch watches the checkpoints of one model"),
        ({"infer": False}, "--watch makes images"),
        (
            {"extra": {"compare": {"gate": Path("baseline")}}},
            "--gate: --watch has no end at which to do this",
        ),
        ({"extra": {"watch": {"watch": Path("/nowhere/at/all")}}}, "there is no /nowhere/at"),
    ],
)
def test_what_does_not_go_with_it_is_told_at_once(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    usual = {"models": {"reference-noise": {}}, "benchmarks": ["quicktext"]}
    extra = {"watch": {"watch": tmp_path / "runs"}, **given.get("extra", {})}
    with pytest.raises(UserError, match=re.escape(told)):
        watch(Options(**{**usual, **given, "extra": extra}), Config())
