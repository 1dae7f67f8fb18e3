"""UnifiedReward in the benchmark prefer: the question and the replies of each version."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.prefer.benchmark import Prefer, PreferSettings
from benchmarks.prefer.unifiedreward import OFFICIAL
from imageevalkit.benchmark.contract import Answers, Unparsed
from imageevalkit.benchmark.question import Answer, Encoding, Picture, Question, Sampling, measure
from tests.support.function_judge import items
from tests.support.prefer_data import use_texts


@pytest.mark.parametrize(
    ("judge", "key", "tokens", "extra"),
    [
        ("vllm:CodeGoat24/UnifiedReward-qwen-7b", "Rate it after", 512, {}),
        ("vllm:CodeGoat24/UnifiedReward-7b-v1.5", "Rate it after", 4096, {}),
        ("", "Alignment Score", 4096, {}),
        (
            "vllm:CodeGoat24/UnifiedReward-2.0-qwen35-9b",
            "Alignment Score",
            4096,
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
    ],
)
def test_a_version_has_its_words_and_sampling(
    monkeypatch: pytest.MonkeyPatch, judge: str, key: str, tokens: int, extra: dict[str, Any]
) -> None:
    use_texts(monkeypatch)
    benchmark = Prefer(PreferSettings(prompts="quicktext", models="unifiedreward,clipscore"), judge)
    assert benchmark.judge == judge or benchmark.judge == OFFICIAL[0]
    assert benchmark.judge in benchmark.official and len(benchmark.prompts) == 1
    [item, *_] = items(benchmark)
    asked, _ = benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({}))
    [picture, text] = asked.messages[0].parts
    assert isinstance(picture, Picture) and picture.encoding == Encoding("JPEG", 95)
    assert isinstance(text, str) and text.startswith(key) and text.endswith(f"[{item.prompt}]")
    assert asked.sampling == Sampling(tokens, 0.0, extra=extra)


ACS = "Alignment Score (1-5): {}\nCoherence Score (1-5): {}\nStyle Score (1-5): {}"
PRINTED = ACS.format(2.694700002670288, 2.371500015258789, 2.802500009536743)


@pytest.mark.parametrize("rules", ["official", "corrected"])
def test_replies_of_unifiedreward(rules: str) -> None:
    def parsed(judge: str, reply: str) -> Any:
        benchmark = Prefer(PreferSettings(rules=rules, models="unifiedreward"), judge)  # type: ignore[arg-type]
        try:
            value = benchmark.parse(Question("unifiedreward", (), Sampling(1)), Answer(measure("x"), reply))
        except Unparsed:
            return None
        assert list(value) == benchmark.item_values
        return [*value.values()]

    assert parsed("", PRINTED) == pytest.approx([2.622900009155273, 2.6947, 2.3715, 2.8025])
    for reply in ("", PRINTED[:60], ACS.format(0, 2, 3), ACS.format(1, 5.1, 3), ACS.format(1, 2, "x")):
        assert parsed("", reply) is None
    first = "vllm:CodeGoat24/UnifiedReward-7b"
    assert parsed(first, "cup (object): 1\nFinal Score: 4.25") == [4.25]
    assert parsed(first, "Final Score:3") == [3.0]
    assert parsed(first, "Final Score: 0") is parsed(first, "Score: 3") is None
    # Flow-GRPO's parser takes these
    assert parsed(first, "Final Score: 10") == ([1.0] if rules == "official" else None)
    assert parsed(first, "Final Score: 5.5") == ([5.5] if rules == "official" else None)
