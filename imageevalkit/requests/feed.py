"""A queue of items that other threads fill while the items are worked at."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """Things that come while others are worked at; ``items`` are there from the start."""

    patience = 0.0

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = deque(items)
        self._open, self._is_hurried, self._wanted = True, False, 1
        self._changed = threading.Condition()

    @classmethod
    def of(cls, items: Iterable[T]) -> Feed[T]:
        """One that has all ``items``, and gets no more."""
        feed = cls(items)
        feed.close()
        return feed

    def put(self, item: T) -> None:
        """One more."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def close(self, drop: bool = False) -> None:
        """No more will come; ``drop``: nor is what waits of any use."""
        with self._changed:
            self._open = False
            if drop:
                self._items.clear()
            self._changed.notify()

    def hurry(self) -> None:
        """From now on no batch waits for more."""
        with self._changed:
            self._is_hurried, self._wanted = True, 1
            self._changed.notify()

    @property
    def left(self) -> int:
        """How many are there, or sure to come: 0 when it is over."""
        return len(self._items) + self._open

    def take(self) -> T | None:
        """The next one; None while there is none."""
        return self._items.popleft() if self._items else None

    def batches(self, full: int) -> Iterator[list[T]]:
        """What is there, again and again until it is over: the first at once, then as soon as it is ``full``, or
        :attr:`patience` seconds after it began to fill."""
        self._wanted = 1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or not self._open)
                self._changed.wait_for(
                    lambda: len(self._items) >= self._wanted or not self._open, self.patience
                )
                self._wanted = 1 if self._is_hurried else full
                batch = list(self._items)
                self._items.clear()
            if not batch:
                return
            yield batch
