"""quicktext: LongText-Bench's metric on embedded prompts, so that a fresh machine needs no download."""

from __future__ import annotations

from benchmarks.longtext.benchmark import TextBenchmark, check_judge

VERSION = "1"

__all__ = ["check_judge", "make"]


def make(judge: str) -> TextBenchmark:
    """The benchmark with the text reader ``judge``."""
    return TextBenchmark("quicktext", VERSION, judge)
