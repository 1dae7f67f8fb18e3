"""Items on their way through the workers, in chunks that are made in one call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imageevalkit.api.retry import UnderWay
from imageevalkit.generation.contract import Generated


class Waiting(NamedTuple):
    """One item: what the model is shown, as it is sent, and who waits for the image."""

    given: Any
    seed: int
    answer: asyncio.Future[Generated]
    state: UnderWay


@dataclass
class Chunk:
    """Items of one cell that are made in one call of the model ``key``.

    ``log`` is the file for what the model prints. ``deaths``: workers that died on it. ``together_before``: how many
    items were made in one call until then.
    """

    number: int
    key: str
    log: str
    items: list[Waiting] = field(default_factory=list)
    deaths: int = 0
    together_before: int = 0

    def forget_the_cancelled(self) -> None:
        """Drop the items that nobody waits for any longer."""
        self.items = [item for item in self.items if not item.answer.done()]

    def fail(self, error: Exception) -> None:
        """Answer every item with ``error``."""
        for item in self.items:
            if not item.answer.done():
                item.answer.set_exception(error)
