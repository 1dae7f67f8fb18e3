"""A judge that is a function, for benchmarks whose rules a test looks at: with the engine, and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from imageevalkit import registry
from imageevalkit.benchmark.contract import Answers, Benchmark, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, PixelRule, Question
from imageevalkit.evaluate.scoring import evaluate_cell
from imageevalkit.jobs.plan import EvaluateOrder, Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.judges.choice import Judge, JudgeOptions
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, items_of
from imageevalkit.store.results import Result, read_result

Reply = Callable[[Question], Answer | str | None]
"""What is said to a question; None: nothing."""


class FunctionJudge(Judge):
    """Says what ``reply`` gives, None being a failure; ``asked`` are all questions in their order."""

    reply: Reply
    asked: list[Question]

    @property
    def identity(self) -> dict[str, Any]:
        return {"model": "function"}

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        for question in questions:
            self.asked.append(question)
            yield _answer(question, self.reply) or Answer(question, error="no reply")


def _answer(question: Question, reply: Reply) -> Answer | None:
    said = reply(question)
    return Answer(question, said) if isinstance(said, str) else said


def use_function_judge(reply: Reply, monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """Let ``reply`` answer whatever any judge is asked; returns the questions, which grow as they come."""
    asked: list[Question] = []

    def judge(
        name: str,
        prompts: Mapping[str, str],
        official: Sequence[str],
        pixels: PixelRule | None,
        options: JudgeOptions,
    ) -> Judge:
        made = FunctionJudge(registry.choose_judge(name), options, prompts, official, pixels)
        made.reply, made.asked = reply, asked
        return made

    monkeypatch.setattr(registry, "judge", judge)
    return asked


def items(benchmark: Benchmark, limit: int | None = None) -> list[Item]:
    """The first items of ``benchmark`` in the cell of the model ``m``."""
    return items_of(registry.BenchmarkDataset(benchmark), Cell("m", benchmark.name), limit)


def write_images(made: Sequence[Item]) -> None:
    """A small image of its own for each item."""
    for number, item in enumerate(made):
        item.path.parent.mkdir(parents=True, exist_ok=True)
        # neighbours that a JPEG tells apart too
        image = Image.new("RGB", (2, 2), (number * 37 % 256, number // 256, 0))
        image.putpixel((0, 0), (9, 9, 9))
        image.save(item.path)


def evaluate(
    benchmark: Benchmark, made: Sequence[Item], limit: int | None = None, official: bool = False
) -> tuple[Outcome, Result]:
    """Evaluate that cell, whatever is there of ``made``."""
    cell = Cell("m", benchmark.name)
    outcome = evaluate_cell(
        cell, benchmark, made, ProgressWriter(), EvaluateOrder(limit=limit, official=official)
    )
    return outcome, read_result(cell.result)


def scores_of(benchmark: Benchmark, made: Sequence[Item], reply: Reply) -> Scores:
    """The scores of ``made``, each question asked once; an item about which nothing is said has no image."""
    return Scores([_scored(benchmark, item, reply) for item in made])


def _scored(benchmark: Benchmark, item: Item, reply: Reply) -> ScoredItem:
    questions = benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({}))
    said = [_answer(replace(question, item=item.id), reply) for question in questions]
    texts = {one.question.name: one.text or "" for one in said if one}
    try:
        answers = Answers(
            {one.question.name: replace(one, value=benchmark.parse(one.question, one)) for one in said if one}
        )
        score = benchmark.score(item, answers).of_item(item.id) if answers else None
    except Unparsed:
        answers, score = Answers({}), None
    return ScoredItem(item, item.path if texts else None, answers, texts, score)
