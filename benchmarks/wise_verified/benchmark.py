"""WISE_Verified: upstream's current prompts and binary score. Not comparable with the scores of ``wise``."""

from __future__ import annotations

from benchmarks.wise.benchmark import WiseBenchmark
from benchmarks.wise.protocol import VERIFIED
from eval_models.judge.registry import choose


def check_judge(judge: str) -> str:
    """The full name of the judge to use; ``""`` is the official one. Raises UserError for one that there is not."""
    return choose(judge or VERIFIED.judge).full_name


def make(judge: str) -> WiseBenchmark:
    """The benchmark with ``judge``. Raises CellFailure when the official prompts are not there."""
    return WiseBenchmark("wise-verified", VERIFIED, judge)
