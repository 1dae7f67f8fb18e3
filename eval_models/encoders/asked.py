"""An encoder as the answerer of a benchmark's questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from eval_models.encoders.interface import Encoder
from eval_models.judge.asked import digest, without_packages
from imageevalkit.cell.results import Evaluator
from imageevalkit.evaluation.question import Answer, Question


class AskedEncoder:
    """``encoder``, called ``name`` ("csd+se") in records."""

    def __init__(self, name: str, encoder: Encoder) -> None:
        self._name = name
        self._encoder = encoder

    @cached_property
    def evaluator(self) -> Evaluator:
        """Named by a hash of weights and settings; versions of packages are among its details only."""
        identity = self._encoder.identity
        name = f"{self._name}/{digest(without_packages(identity))[:8]}"
        # whether its weights are the official ones is a matter of their content, which is in the identity
        return Evaluator(name, official=False, details={"encoder": identity})

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        """See ``Encoder``; images are prepared on as many cores as the job has."""
        return self._encoder.ask(questions)
