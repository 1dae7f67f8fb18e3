"""WISE's prompts rewritten to say what they mean (the paper's table 2): the same judge, rules and weights as ``wise``.

The judge is shown the rewritten prompt, and the explanation that the rewritten file has with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.wise.benchmark import Configured


def configured(given: Mapping[str, Any]) -> Configured:
    """The benchmark with the settings ``given``. Raises UserError for a wrong one."""
    return Configured.of("wise-rewrite", given)
