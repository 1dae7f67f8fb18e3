"""Tells the evaluate jobs how many questions they ask again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageevalkit.plan.config import Config
from imageevalkit.plan.options import Options


def resolve(options: Options, given: Mapping[str, Any], config: Config) -> None:
    """Sets ``options.judge_repeats``."""
    options.judge_repeats = options.extra["noise"]["judge_repeats"]
