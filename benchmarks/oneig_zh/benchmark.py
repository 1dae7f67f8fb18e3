"""OneIG-Bench's Chinese edition: the same tasks and rules as ``oneig``, 200 multilingual prompts more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.oneig.benchmark import Configured
from benchmarks.oneig.editions import CHINESE
from benchmarks.oneig.settings import Settings


def configured(given: Mapping[str, Any]) -> Configured:
    """The Chinese edition with the settings ``given``. Raises UserError for a wrong one."""
    return Configured(CHINESE, Settings.of(given))
