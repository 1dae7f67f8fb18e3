"""A queue that some threads fill while others already process its items."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """A queue of items that may still grow. ``items`` are in the queue from the start."""

    patience = 0.0

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = deque(items)
        self._open, self._is_hurried, self._wanted = True, False, 1
        self._changed = threading.Condition()

    @classmethod
    def of(cls, items: Iterable[T]) -> Feed[T]:
        """Returns a closed feed that contains ``items``."""
        feed = cls(items)
        feed.close()
        return feed

    def put(self, item: T) -> None:
        """Adds ``item`` at the end of the queue."""
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def close(self, drop: bool = False) -> None:
        """Closes the feed: no more items come. If ``drop``, the waiting items are removed too."""
        with self._changed:
            self._open = False
            if drop:
                self._items.clear()
            self._changed.notify()

    def hurry(self) -> None:
        """Makes :meth:`batches` yield waiting items at once, without waiting for a full batch."""
        with self._changed:
            self._is_hurried, self._wanted = True, 1
            self._changed.notify()

    @property
    def left(self) -> int:
        """The number of waiting items, plus 1 while the feed is open: 0 only at its end."""
        return len(self._items) + self._open

    def take(self) -> T | None:
        """Removes and returns the next item. Returns None if no item waits."""
        return self._items.popleft() if self._items else None

    def batches(self, full: int) -> Iterator[list[T]]:
        """Yields batches of the waiting items until the feed is closed and empty.

        The first batch comes at once. A later batch comes when ``full`` items wait, or ``patience`` seconds
        after its first item.
        """
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
