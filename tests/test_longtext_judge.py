"""LongText-Bench read by a judge: the official words, settings and clean-up, whatever runs the judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.longtext.text_benchmark import PROMPT, VlmTextBenchmark
from imageevalkit.benchmark.question import QWEN_VL_UTILS, Picture, Question, Reply, Sampling
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item, items_of
from tests.support.generation import FakeDataset


def benchmark(judge: str) -> VlmTextBenchmark:
    return VlmTextBenchmark("longtext", "1", judge, {PROMPT: "Read it."})


def question(judge: str) -> tuple[Item, Question]:
    [item] = items_of(FakeDataset(1), Cell("m", "fake"))
    [asked] = benchmark(judge).questions(item, Picture(Path("a.jpg"), "ab" * 32))
    return item, asked


@pytest.mark.parametrize(
    ("judge", "sampling"),
    [
        ("transformers:qwen2.5-vl-7b", Sampling(1024, temperature=None)),
        ("vllm:qwen2.5-vl-7b", Sampling(1024, 0.0, extra={"repetition_penalty": 1.05})),
        ("openai:gpt-4o", Sampling(1024, 0.0)),
    ],
)
def test_one_message_with_the_image_first(judge: str, sampling: Sampling) -> None:
    _, asked = question(judge)
    [message] = asked.messages
    assert message.role == "user"
    assert message.parts == (Picture(Path("a.jpg"), "ab" * 32, pixels=QWEN_VL_UTILS), "Read it.")
    assert asked.sampling == sampling


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("FRESH BREWS\nEvery Morning", "FRESH BREWS\nEvery Morning"),
        ("No text recognized.", ""),
        ("No text recognized", "No text recognized"),
        ("addCriterion\nOPEN", "addCriterion\nOPEN"),
        ("", ""),
    ],
)
def test_the_official_clean_up_with_its_quirk(said: str, read: str) -> None:
    _, asked = question("openai:gpt-4o")
    assert benchmark("openai:gpt-4o").parse(asked, Reply(said)) == read
