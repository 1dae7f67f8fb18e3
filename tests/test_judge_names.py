"""What stands in a score's name: two judges never share it, and what decides nothing is not in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from eval_models.judge.benchmark import JudgedBenchmark
from imageevalkit.benchmark.contract import Judged, Score
from imageevalkit.benchmark.question import Answer, Picture, Question, Reply
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Evaluator, Metric
from imageevalkit.errors import UserError
from imageevalkit.judges.choice import VARIABLE, JudgeOptions
from imageevalkit.registry import choose_judge


class Named(JudgedBenchmark):
    name, version, headline = "named", "1", ("score",)
    official = ("openai:gpt-4o-2024-05-13",)

    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        return []

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        return iter([])

    def parse(self, question: Question, reply: Reply) -> Any:
        return None

    def score(self, item: Item, parsed: Mapping[str, Any], replies: Mapping[str, Reply]) -> Score:
        return Score(item.id, {})

    def aggregate(self, judged: Sequence[Judged]) -> dict[str, Metric]:
        return {}


def evaluator(
    monkeypatch: pytest.MonkeyPatch,
    judge: str = "gpt-4o-2024-05-13",
    prompt: str = "Is it good?",
    **kwargs: Any,
) -> Evaluator:
    monkeypatch.setenv(VARIABLE, JudgeOptions(kwargs=kwargs).to_json())
    return Named(judge, {"prompt": prompt}).evaluator


def test_the_official_judge_is_official_as_it_is_and_not_with_other_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = evaluator(monkeypatch)
    assert plain.official
    assert plain.id.startswith("gpt-4o-2024-05-13/openai/")
    changed = evaluator(monkeypatch, extra_body={"temperature": 2})
    assert not changed.official
    assert changed.id != plain.id


@pytest.mark.parametrize(
    "kwargs", [{"timeout": 3.0}, {"base_url": "https://elsewhere.example/v1"}, {"api_key_env": "MY_API_KEY"}]
)
def test_how_a_judge_is_reached_is_not_in_its_name(
    kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluator(monkeypatch, **kwargs) == evaluator(monkeypatch)


def test_prompts_backends_and_models_are_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        evaluator(monkeypatch).id,
        evaluator(monkeypatch, prompt="Is it bad?").id,
        evaluator(monkeypatch, "openai:gpt-4o").id,
        evaluator(monkeypatch, "vllm:gpt-4o").id,
    ]
    assert len(set(names)) == 4


def test_a_judge_has_one_name_however_it_is_written() -> None:
    assert choose_judge("qwen3-vl-8b").full_name == choose_judge("transformers:qwen3-vl-8b").full_name
    assert choose_judge("openai:qwen3-vl-8b").setting.model_path == "Qwen/Qwen3-VL-8B-Instruct"
    with pytest.raises(UserError, match="did you mean 'qwen3-vl-8b'"):
        choose_judge("qwen3-vl-8")
    with pytest.raises(UserError, match=r"no backend 'opnai' \(did you mean 'openai'"):
        choose_judge("opnai:gpt-4o")
