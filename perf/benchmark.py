"""The benchmarks of all measurements with ``eval.sh``; their items are in ``items.json`` beside this file.

A measured tree has this file as ``benchmarks/perf/benchmark.py``. The evaluator of ``perf`` costs nothing;
``perf-judged`` asks a judge one question about each image.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import Answers, Benchmark, Measurer, Sample, Scores
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling, measure
from imageevalkit.store.items import Item
from imageevalkit.store.results import Evaluator, Metric, Score


class Nobody(Answerer):
    """Answers without a look at the image."""

    evaluator = Evaluator("nobody", official=False)

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        return (Answer(question, "1") for question in questions)


class Perf(Benchmark):
    """Every image has the score 1."""

    name, version, headline = "perf", "1", ("answered",)
    prompts: Mapping[str, str] = {}
    measurers: Mapping[str, Measurer] = {"any": Measurer("benchmarks.perf.benchmark:Nobody")}

    def samples(self) -> Sequence[Sample]:
        content = json.loads(Path(__file__).with_name("items.json").read_text(encoding="utf-8"))
        items = content.pop("items")
        return [Sample(one["file"], one["prompt"], data=content) for one in items]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Sequence[Question]:
        return [measure("any", image, item.id)]

    def parse(self, question: Question, answer: Answer) -> int:
        return len(answer.text or "")

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({"answered": 1.0})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        return {"answered": Metric(len(scores) / len(scores.items), len(scores.items))}


class PerfJudged(Perf):
    """One question for each image; its score costs nothing."""

    name, judge = "perf-judged", "openai:some-judge"
    measurers: Mapping[str, Measurer] = {}

    def questions(self, item: Item, image: Picture, answers: Answers) -> Sequence[Question]:
        text = f"{item.data['rules']}\n\nPROMPT: {item.prompt}"
        shown = Message("user", (text, image._replace(media_type="image/png")))
        return [Question("score", (shown,), Sampling(500, 0.0))]
