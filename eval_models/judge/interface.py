"""What a benchmark asks of a vision-language judge, whatever runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from imageevalkit.evaluation.question import Answer, Question


class Judge(Protocol):
    """One judge for one process. Making one is cheap; what is slow happens with the first question."""

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides what it answers: model, weights or revision, settings, packages; JSON values.

        Never where it is reached, nor a secret. Costs no model load: a run with nothing to ask needs it too.

        Raises:
            CellFailure: the model is not there.
        """

    def has_answered(self) -> None:
        """Questions of this kind were answered in an earlier run: a bad request is then about its own question."""

    def holdup(self) -> str:
        """What holds the answers back now, in a few words; empty when nothing does. Called from another thread."""

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """The answer to each question, as they come, in any order.

        A question that fails by itself (context too long, an image that does not decode, a transient failure that
        lasts) is an answer with an error. Closing the iterator early gives up what is under way.

        Raises:
            JudgeUnusable: no further answer will come; what was answered before was given.
            CellFailure: the judge cannot start here (a package or the weights are missing).
        """
