"""quicktext: LongText-Bench's metric on embedded prompts, so that a fresh machine needs no download."""

from __future__ import annotations

from benchmarks.longtext.benchmark import check_judge, make_text_benchmark
from benchmarks.longtext.text_benchmark import TextBenchmark

VERSION = "1"

__all__ = ["check_judge", "make"]


def make(judge: str) -> TextBenchmark:
    """The benchmark read by ``judge``."""
    return make_text_benchmark("quicktext", VERSION, judge)
