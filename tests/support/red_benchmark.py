"""A benchmark that needs no network: its answerer looks at the red channel of an image, and has bad days."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import Answers, Benchmark, Measurer, Sample, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question, measure
from imageevalkit.metrics import mean
from imageevalkit.store.items import Item
from imageevalkit.store.results import Evaluator, Metric, Score


class RedAnswerer(Answerer):
    """Answers as ``benchmark`` does, under the name ``evaluator``."""

    def __init__(self, benchmark: RedBenchmark, evaluator: str) -> None:
        self._benchmark, self._id = benchmark, evaluator

    @property
    def evaluator(self) -> Evaluator:
        return Evaluator(self._id, official=False)

    def has_answered(self) -> None:
        self._benchmark.answered_before = True

    def holdup(self) -> str:
        return self._benchmark.note

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        return self._benchmark.ask(questions)


class RedBenchmark(Benchmark):
    """Scores an image by its red channel; ``faults`` maps an item to what goes wrong with its first answers.

    ``asked`` are the items in the order in which something was asked about them.
    """

    name, version, headline = "fake", "1", ("red",)
    groups: Sequence[str] = ("red",)
    note = ""

    def __init__(
        self, evaluator: str = "red-v1", faults: Mapping[str, str] | None = None, tries: int = 1
    ) -> None:
        super().__init__()
        self._evaluator = evaluator
        self.asked: list[str] = []
        self.answered_before = False
        self.tries = tries
        self._faults = faults or {}

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        who = f"{RedAnswerer.__module__}:{RedAnswerer.__name__}"
        names = {group: self._evaluator if group == "red" else group for group in self.groups}
        return {group: Measurer(who, {"benchmark": self, "evaluator": name}) for group, name in names.items()}

    def samples(self) -> Iterable[Sample]:
        return ()

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return [measure("red", image, item.id)]

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """The answers, faults included."""
        for question in questions:
            self.asked.append(question.item)
            fault = self._faults.get(question.item, "")
            if fault == "judge down":
                yield Answer(question, None, fault)
                continue
            if fault == "judge dies":
                raise JudgeUnusable("the key is rejected")
            if fault == "unparsed once" and self.asked.count(question.item) > 1:
                fault = ""
            with Image.open(question.pictures[0].path) as image:
                red = image.convert("RGB").getpixel((4, 4))[0]  # type: ignore[index]
            yield Answer(question, fault or str(red))

    def parse(self, question: Question, answer: Answer) -> Any:
        if not (answer.text or "").isdigit():
            raise Unparsed(f"'{answer.text}' is no number")
        return int(answer.text or "")

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({"red": answers["red"].value / 255})

    def metrics(self, scores: Scores) -> Mapping[str, Metric]:
        return {"red": mean(scores, "red", interval=False)}

    def official_files(self, scores: Scores) -> Mapping[str, str | bytes]:
        return {"reds.json": json.dumps([one.replies["red"] for one in scores.items if one.replies])}
