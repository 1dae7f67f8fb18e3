"""quicktext: LongText-Bench's metric on embedded prompts, so that a fresh machine needs no download."""

from __future__ import annotations

from benchmarks.longtext.benchmark import check_text_judge, make_text_benchmark
from benchmarks.longtext.text_benchmark import TextBenchmark

# no weights to download and no GPU; nobody has published numbers of another judge on these prompts
DEFAULT_JUDGE = "ppocr"
VERSION = "1"


def check_judge(judge: str) -> str:
    """The evaluator to use; ``""`` is the default. Raises UserError for one that there is not."""
    return check_text_judge(judge or DEFAULT_JUDGE)


def make(judge: str) -> TextBenchmark:
    """The benchmark read by ``judge``."""
    return make_text_benchmark("quicktext", VERSION, judge)
