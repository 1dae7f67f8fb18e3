"""WISE's prompts rewritten to say what they mean (the paper's table 2): the same judge, rules and weights as ``wise``.

The judge is shown the rewritten prompt, and the explanation that the rewritten file has with it.
"""

from __future__ import annotations

from benchmarks.wise.benchmark import WiseBenchmark, check_judge
from benchmarks.wise.protocol import LEGACY

__all__ = ["check_judge", "make"]


def make(judge: str) -> WiseBenchmark:
    """The benchmark with ``judge``. Raises CellFailure when the official prompts are not there."""
    return WiseBenchmark("wise-rewrite", LEGACY, judge)
