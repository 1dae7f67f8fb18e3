"""Benchmarks whose prompts a rewriter takes. A test copies this file into ``benchmarks`` of its checkout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from PIL import Image

from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores
from imageevalkit.benchmark.question import Picture, Question, ask
from imageevalkit.metrics import mean
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

PAIRS = ("IQ-R_TA-C", "IQ-R_TA-S", "TA-C_TA-S", "IQ-O_R-B", "D-K_D-A", "IQ-A_TA-C")


class Puzzles(Benchmark):
    name, version, judge, headline = "puzzles", "1", "openai:judge", ("yes",)
    prompts: ClassVar = {"seen": "Is it there: {prompt}?"}

    def about(self, n: int) -> dict[str, Any]:
        return {"explanation": f"because {n}", "pair": PAIRS[n]}

    def samples(self) -> Iterable[Sample]:
        return [Sample(f"images/{n}.png", f"puzzle {n}", n, self.about(n)) for n in range(len(PAIRS))]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return [ask("seen", image, self.prompts["seen"].format(prompt=item.texts[-1]))]

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({"yes": float(answers["seen"].text == "Yes")}, {"pair": item.data["pair"]})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        return {"yes": mean(scores, "yes")}


class PuzzleEdits(Puzzles):
    name, task = "puzzle-edits", "edit"

    def samples(self) -> Iterable[Sample]:
        photo = Image.new("RGB", (32, 32), "red")
        texts = [[photo, f"edit {n}"] for n in range(2)]
        return [Sample(f"images/{n}.png", input_list=t, data=self.about(n)) for n, t in enumerate(texts)]


class PuzzleSubjects(PuzzleEdits):
    name, task = "puzzle-subjects", "subject"

    def samples(self) -> Iterable[Sample]:
        photo = Image.new("RGB", (32, 32), "red")
        return [Sample("images/0.png", input_list=["dog", photo, "a dog on the moon"], data=self.about(0))]
