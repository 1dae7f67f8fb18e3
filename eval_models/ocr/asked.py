"""A text reader as the answerer of a benchmark's questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eval_models.ocr.registry import make_reader
from imageevalkit.cell.results import Evaluator
from imageevalkit.evaluation.question import Answer, Question, Reply


class AskedReader:
    """The reader called ``name``: the answer to any question about an image is the text in it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reader = make_reader(name)

    @property
    def evaluator(self) -> Evaluator:
        """The reader's own."""
        return self._reader.evaluator

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        """The text read in each image, as readings finish, on ``workers`` cores."""
        from eval_models.ocr.parallel import read_many

        question_of = {question.pictures[0].path: question for question in questions}
        for reading in read_many(self._name, question_of, workers):
            reply = None if reading.text is None else Reply(reading.text)
            yield Answer(question_of[reading.path], reply, reading.error, reading.seconds)
