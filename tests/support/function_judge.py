"""A fake judge that replies what a function says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from imageevalkit.benchmark.question import Answer, Question, Reply

Answering = Callable[[Question], Reply | None]


class FunctionJudge:
    """Replies what ``answering`` says, None being a failure; ``asked`` are all questions in their order."""

    identity: Mapping[str, Any] = {"model": "function"}

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self.asked: list[Question] = []

    def has_answered(self) -> None:
        pass

    def holdup(self) -> str:
        return ""

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        for question in questions:
            self.asked.append(question)
            reply = self._answering(question)
            yield Answer(question, reply, "" if reply else "no reply")
