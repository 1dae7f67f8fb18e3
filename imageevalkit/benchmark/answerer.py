"""The base class of everything that answers questions: judges and metric models."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imageevalkit.api.feed import Feed
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.common.text import to_bytes
from imageevalkit.store.results import Evaluator

# An evaluator may load its model for each batch, so a batch of few questions would waste time. follow() waits
# _WORTH times the seconds until the first answer of a batch before it starts the next batch.
_FULL, _PATIENCE, _WORTH = 256, 10.0, 10
_ONE_AT_A_TIME = threading.Lock()  # two local models at once may not fit into memory

device_lost = threading.Event()
"""Set by an evaluator after a fault of its GPU: from then on every call to the GPU fails in this process."""


class Answerer(ABC):
    """A judge or a metric model. The constructor is cheap; the model loads with the first question."""

    @property
    @abstractmethod
    def evaluator(self) -> Evaluator:
        """The name and every setting that can change an answer, without addresses and secrets.

        Loads no model. Raises CellFailure if the model or a package is missing, with a remedy.
        """

    @property
    def label(self) -> str:
        """A short name for the name of a score with several evaluators."""
        return self.evaluator.id

    @property
    def is_official(self) -> bool:
        """Whether it answers as the official evaluator does. The result records this."""
        return self.evaluator.official

    @abstractmethod
    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Yields one answer for each question, in any order, as soon as each is ready.

        If a single question fails, its answer has an error. Closing the iterator cancels the open questions.
        ``workers`` is the number of CPU cores of the job. Raises JudgeUnusable if no further answer will
        come, CellFailure if the evaluator cannot start or its model fails.
        """

    def follow(self, feed: Feed[Question], workers: int = 1) -> Iterator[Answer]:
        """Yields one answer for each question of ``feed``, to which another thread adds questions meanwhile.

        The default calls :meth:`ask` for one batch after another, and raises the same errors."""
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

    def has_answered(self) -> None:  # noqa: B027  # optional to override
        """Records that an earlier run got answers: then the question is the cause of a bad request."""

    def holdup(self) -> str:
        """Returns in a few words why answers are late now, or "". Another thread calls it."""
        return ""


def without_packages(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``identity`` without the versions of packages."""
    return {name: value for name, value in identity.items() if name != "packages"}


def digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON value as hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(to_bytes(text)).hexdigest()
