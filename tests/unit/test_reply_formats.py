"""The forms in which judges write yes, no and grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from imageevalkit.benchmark.contract import Unparsed
from imageevalkit.benchmark.question import Answer, Question, ask
from imageevalkit.benchmark.shapes import Grades, YesNo


class Verdict(YesNo):
    name, version, judge, question = "verdict", "1", "openai:judge-1", "Is it {prompt}?"


class Looks(Grades):
    name, version, judge, question = "looks", "1", "openai:judge-1", "Grade {prompt}."
    grades: ClassVar[Sequence[str]] = ("Beauty", "image quality", "美感")
    scale = (1, 5)

    def values(self, value: Mapping[str, float]) -> Mapping[str, float]:
        return value


class Single(Looks):
    grades = ("score",)


def read(benchmark: YesNo | Grades, reply: str) -> Any:
    """The value of ``reply``, None if it is unparsed."""
    question: Question = ask("answer", "?")
    try:
        return benchmark.parse(question, Answer(question, reply))
    except Unparsed:
        return None


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("**Answer:** Yes", 1),
        ("Reasoning: No cat is missing.\nFinal answer (yes/no): Yes", 1),
        ("Answer: no\nOn reflection, answer: yes", 1),
        ("答案：是", 1),
        ("答案是：否", 0),
        ("Ａｎｓｗｅｒ：Ｎｏ", 0),
        ('{"result": {"reason": "No cat is missing.", "answer": "Yes"}}', 1),
        ('```json\n{"evaluation": {"correct": false, "reason": "Yes, but"}}\n```', 0),
        ("| Question | Answer |\n|---|---|\n| Is there a cat? | **No** |", 0),
        ("[Yes]", 1),
        ('{"cat": true, "dog": false}', None),
        ("Answer: Yes/No", None),
        ("Yes or no? No.", 0),
        ("Answer: maybe", None),
    ],
)
def test_yes_and_no_are_read_in_the_forms_that_judges_use(reply: str, value: int | None) -> None:
    assert read(Verdict(), reply) == value


_THREE = {"Beauty": 4.0, "image quality": 2.5, "美感": 3.0}


@pytest.mark.parametrize(
    "reply",
    [
        "Beauty score (1-5): 4\nImage quality score (1–5): 2.5\n美感得分（1-5）：3",
        "Ｂｅａｕｔｙ：４　Ｉｍａｇｅ　ｑｕａｌｉｔｙ：２．５　美感：３",
        "### Beauty\n**Score:** 4\n### Image quality\n**Score (1-5):** 2.5\n### 美感\n评分：3",
        '{"scores": {"Beauty": {"reason": "1 bird", "score": 4, "max": 5}, "image_quality": {"score": "2.5/5"}, '
        '"美感": 3}}',
        '```json\n[{"criterion": "Beauty", "score": 4}, {"criterion": "image quality", "score": 2.5}, '
        '{"criterion": "美感", "score": 3, "reason": "2 birds"}]\n```',
        "| Criterion | Score (1-5) | Reason |\n|---|---|---|\n| **Beauty** | 4 | 1 bird |\n"
        "| Image quality | 2.5 | 2 birds |\n| 美感 | 3/5 | 3 |",
        "| 美感 | Beauty | Image Quality |\n|:--|:-:|--:|\n| 3 | 4 | 2.5 |",
    ],
)
def test_grades_are_read_in_the_forms_that_judges_use(reply: str) -> None:
    assert read(Looks(), reply) == _THREE


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("score (1-5): 4", 4.0),
        ("Score: 4 (out of 5)", 4.0),
        ('{"score": 4, "details": {"score": 2}}', 4.0),
        ("score: 3-4", None),
        ("score: 4/10", None),
        ('{"score": true}', None),
        ('{"score": 1e999}', None),
        ("| Aspect | Score |\n|---|---|\n| colour | 3 |\n| light | 4 |", None),
    ],
)
def test_a_number_that_may_be_no_grade_is_none(reply: str, value: float | None) -> None:
    assert read(Single(), reply) == (None if value is None else {"score": value})


@pytest.mark.parametrize("reply", ["score" + " " * 60_000, "[{" * 30_000])
def test_a_long_reply_without_a_grade_is_unparsed(reply: str) -> None:
    assert read(Single(), reply) is None
