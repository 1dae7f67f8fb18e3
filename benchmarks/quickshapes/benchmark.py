"""quickshapes: 96 prompts about shapes, colours, counts, places and words, scored by an exact program and OCR.

Built like GenEval; it downloads nothing. The project's own model shapes-tiny learns from scenes of the same grammar,
without these prompts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypedDict

from benchmarks.quickshapes.prompts import CATEGORIES, Found, problem_of, request_of
from eval_models.ocr import PPOCR
from imageevalkit.assets.weights import WeightsUser, first_line, package_versions
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import Answers, Benchmark, Measurer, Sample, Scores, measurement
from imageevalkit.benchmark.question import Answer, Picture, Question, measure
from imageevalkit.common.images import map_threads
from imageevalkit.judges.api import open_picture
from imageevalkit.metrics import mean_by, mean_of_means
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import Number, Reader
from imageevalkit.store.results import Evaluator, Metric, Score

_PROGRAM = WeightsUser(
    "benchmark quickshapes", "in its environment run: pip install -r requirements/benchmark/t2i/longtext.txt"
)


class _Measured(TypedDict):
    shape: str
    colour: str
    x: Number
    y: Number
    fit: Number


_MEASURED = Reader(list[_Measured])


class QuickShapes(Benchmark):
    """One image per prompt. The six categories alternate."""

    name, title = "quickshapes", "QuickShapes"
    version = "1"
    prompt_count, images_per_prompt = 96, 1
    headline = ("overall",)
    item_values = ("correct",)

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        return dict.fromkeys(("objects", "word"), Measurer("benchmarks.quickshapes.benchmark:ShapesAndWords"))

    def samples(self) -> Iterable[Sample]:
        for n, record in enumerate(self.read_jsonl("prompts.jsonl", self.prompt_count)):
            yield Sample(f"images/{n:03d}.png", record["prompt"], n, record)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        yield measure("objects", image)
        if "word" in item.data:
            yield measure("word", image, "word")  # the text tells it from the question above

    def parse(self, question: Question, answer: Answer) -> object:
        """Returns the text that OCR read, or the objects of the image."""
        return answer.text or "" if question.group == "word" else measurement(answer, _MEASURED)

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns 1 if the image shows all that the prompt asks for and nothing else, else 0."""
        request = request_of(item.data)
        problem = problem_of(request, [Found(**one) for one in answers["objects"].value])
        if request.word:
            read = "".join(letter for letter in answers["word"].value if letter.isalnum()).upper()
            problem = problem or ("" if read == request.word else f"the word is '{read}'")
        return Score({"correct": int(not problem)}, {"category": request.category}, {"problem": problem})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the share of correct images of each category, 0-1, and their mean as ``overall``."""
        return {
            "overall": mean_of_means(scores, "correct", "category", CATEGORIES),
            **mean_by(scores, "correct", "category", order=CATEGORIES),
        }


class ShapesAndWords(Answerer):
    """Finds the objects of an image by ``judge.py`` (a list of shapes, colours and centres), and its words by OCR."""

    def __init__(self) -> None:
        self._reader = PPOCR()

    @cached_property
    def evaluator(self) -> Evaluator:
        reader = self._reader.evaluator
        versions = package_versions(_PROGRAM, ("numpy", "scipy", "pillow"))
        # a changed program is another evaluator, so it needs a new number
        return Evaluator(
            f"shapes-1+{reader.id}", official=True, details={"packages": versions, "reader": reader.details}
        )

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        words = [question for question in questions if question.group == "word"]
        objects = [question for question in questions if question.group != "word"]
        yield from map_threads(_answer, objects, workers)
        yield from self._reader.ask(words, workers)


def _answer(question: Question) -> Answer:
    from benchmarks.quickshapes.judge import (
        objects_in,
    )  # needs numpy, which is missing while a run is planned

    began = time.monotonic()
    try:
        found = objects_in(open_picture(question.pictures[0]))
    except Exception as error:  # a damaged image fails this image only
        return Answer(question, None, first_line(error))
    return Answer(question, json.dumps([one._asdict() for one in found]), seconds=time.monotonic() - began)
