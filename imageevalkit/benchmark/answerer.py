"""Who answers questions: a judge, a reader of text, an encoder."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.cell.results import Evaluator
from imageevalkit.requests.feed import Feed
from imageevalkit.text import to_bytes

# who loads a model for each batch shall not do so for a handful, nor spend a good part of the time on it: what it
# takes until the first answer of a batch is waited for this many times before the next
_FULL, _PATIENCE, _WORTH = 256, 10.0, 10
_ONE_AT_A_TIME = threading.Lock()  # no two models that run here are in memory together


class Answerer(ABC):
    """One answerer for one process. Making one is cheap; what is slow happens with the first question."""

    @property
    @abstractmethod
    def evaluator(self) -> Evaluator:
        """Its name, and all that decides what it answers; never where it is reached, nor a secret. Loads no model.

        Raises CellFailure: the model or a package is not there; the message says how to get it.
        """

    @property
    def label(self) -> str:
        """A short name, for the names of evaluators that are made of several."""
        return self.evaluator.id

    @property
    def is_official(self) -> bool:
        """Whether it answers as the official evaluator does: what the names of scores say of it."""
        return self.evaluator.official

    @abstractmethod
    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """The answer to each question, as they come, in any order; ``workers`` are the CPU cores of the job.

        A question that fails by itself is an answer with an error. Closing the iterator early gives up what is under
        way. Raises JudgeUnusable: no further answer will come; CellFailure: it cannot start here, or its model fails.
        """

    def follow(self, feed: Feed[Question], workers: int = 1) -> Iterator[Answer]:
        """The answers to questions that come while others are answered, as :meth:`ask` gives them; by default it is
        asked what is there, again and again. Each question has an answer, or this raises what :meth:`ask` does."""
        feed.patience = _PATIENCE
        for batch in feed.batches(_FULL):
            left = len(batch)
            with _ONE_AT_A_TIME:
                began = time.monotonic()
                for answer in self.ask(batch, workers):
                    if left == len(batch):
                        feed.patience = max(_PATIENCE, _WORTH * (time.monotonic() - began))
                    left -= 1
                    yield answer
            if left:
                raise JudgeUnusable(f"{left} of {len(batch)} questions got neither an answer nor an error")

    def has_answered(self) -> None:  # noqa: B027  # most have no use for it
        """Questions of this kind were answered in an earlier run: a bad request is then about its own question."""

    def holdup(self) -> str:
        """What holds the answers back now, in a few words; empty when nothing does. Called from another thread."""
        return ""


def without_packages(identity: Mapping[str, Any]) -> dict[str, Any]:
    """``identity`` without the versions of packages."""
    return {name: value for name, value in identity.items() if name != "packages"}


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(to_bytes(text)).hexdigest()
