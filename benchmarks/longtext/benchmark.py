"""LongText-Bench for the evaluate engine: which evaluators may read its images."""

from __future__ import annotations

from benchmarks.longtext.text_benchmark import PROMPT, OcrTextBenchmark, TextBenchmark, VlmTextBenchmark
from eval_models.judge.registry import JUDGE_SETTINGS, choose, find
from eval_models.ocr.registry import check_reader

# It gave the numbers published with the benchmark; qwen2.5-vl-32b gave those of the official evaluation kit.
DEFAULT_JUDGE = "qwen2.5-vl-7b"
VERSION = "x-omni-2b8237b"  # the prompts and the metric are those of X-Omni-Team/X-Omni at this commit


def check_judge(judge: str) -> str:
    """The evaluator to use; ``""`` is the official one. Raises UserError for one that there is not."""
    return check_text_judge(judge or DEFAULT_JUDGE)


def check_text_judge(judge: str) -> str:
    """The full name of a text reader or of a judge. Raises UserError for one that there is not."""
    if judge in JUDGE_SETTINGS or ":" in judge:
        return choose(judge).full_name
    return check_reader(judge)


def make(judge: str) -> TextBenchmark:
    """The benchmark read by ``judge``."""
    return make_text_benchmark("longtext", VERSION, judge)


def make_text_benchmark(name: str, version: str, judge: str) -> TextBenchmark:
    """The benchmark ``name`` read by ``judge``: a text reader, or a judge asked in LongText-Bench's words.

    Raises:
        CellFailure: the judge's prompt is not there; the message says how to get it.
    """
    if find(judge) is None:
        return OcrTextBenchmark(name, version, judge)
    from imageevalkit import judge_prompts

    return VlmTextBenchmark(name, version, judge, {PROMPT: judge_prompts.load("longtext")[PROMPT]})
