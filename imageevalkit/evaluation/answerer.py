"""Who answers questions: a judge, a text reader, an encoder. A benchmark may put its questions to several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from imageevalkit.cell.results import Evaluator
from imageevalkit.evaluation.question import Answer, Question


class Answerer(Protocol):
    """Both mean what they do in :class:`imageevalkit.evaluation.benchmark.Benchmark`."""

    @property
    def evaluator(self) -> Evaluator:
        """Who it is: its name, and all that decides an answer."""

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        """The answers, in any order, as they come."""
