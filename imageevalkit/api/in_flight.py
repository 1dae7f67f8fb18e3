"""Processes many items at the same time in one event loop, for image models and for judges.

A :class:`~imageevalkit.api.feed.Feed` can deliver the items from another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from imageevalkit.api.feed import Feed

T = TypeVar("T")

_TICK = 0.25  # seconds between two checks whether the work has stopped
_LOOK = 0.02  # seconds between two checks for a new item in the feed
# Seconds after which a task is cancelled again: before Python 3.12, wait_for loses a cancellation that comes
# together with the reply. A shorter interval would interrupt the cleanup of a model.
_CANCELLED_AGAIN = 2.0


@dataclass
class UnderWay:
    """The progress of one item. ``sent``: a request is in flight. ``answered``: its result is here."""

    sent: bool = False
    answered: bool = False


_under_way: ContextVar[UnderWay | None] = ContextVar("under_way", default=None)


def under_way() -> UnderWay:
    """Returns the progress of the running task's item. ``retry`` of ``channel.py`` sets its ``sent``."""
    return _under_way.get() or UnderWay()


class InFlight(Generic[T]):
    """Runs ``work`` for each item in its own task until all tasks have ended or ``stopped()`` is true.

    After a stop, an item whose request is in flight (``sent``) gets ``last_answers`` more seconds: its reply
    is billed in any case. ``fail`` receives each exception that ``work`` raises. If ``marks_sent`` is False,
    ``work`` does not set ``sent``, and every running item counts as sent.
    """

    def __init__(
        self,
        work: Callable[[T], Awaitable[None]],
        stopped: Callable[[], bool],
        fail: Callable[[BaseException], None],
        last_answers: float,
        marks_sent: bool = True,
    ) -> None:
        self._work, self._stopped, self._fail = work, stopped, fail
        self._last_answers, self._marks_sent = last_answers, marks_sent
        self._tasks: dict[asyncio.Task[None], UnderWay] = {}
        self._cancelled: dict[asyncio.Task[Any], float] = {}
        self._all_begun = False
        self._settled = asyncio.Event()

    async def begin(
        self,
        items: Iterable[T] | Feed[T],
        room: asyncio.Semaphore,
        expect: Callable[[int], None],
        prepare: Callable[[T], Awaitable[None]] | None = None,
    ) -> None:
        """Starts the items in order: waits for ``room`` and for ``prepare(item)``, then creates the task.

        ``expect`` is called with the number of items that have not started yet.
        """
        feed = items if isinstance(items, Feed) else Feed.of(items)
        while (left := feed.left) and not self._stopped():
            expect(left)
            item = feed.take()
            if item is None:
                await asyncio.sleep(_LOOK)
                continue
            await room.acquire()
            if prepare:
                await prepare(item)
            if self._stopped():
                room.release()
                break
            state = UnderWay(sent=not self._marks_sent)
            task = asyncio.create_task(self._run(item, state))
            self._tasks[task] = state
            task.add_done_callback(lambda task: self._end(task, room))
        self._all_begun = True
        expect(0)
        self._settle()

    async def settled(self, look: Callable[[], None]) -> None:
        """Waits until all tasks have ended, and calls ``look`` several times a second meanwhile."""
        given_up = None
        while not self._settled.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._settled.wait(), _TICK)
            look()
            if self._stopped():
                given_up = given_up or time.monotonic()
                self._cancel(sent=time.monotonic() - given_up > self._last_answers)

    async def abandon(self) -> None:
        """Cancels all running tasks, except tasks that store an answer, and waits for their end."""
        while self._tasks:
            self._cancel(sent=True)
            await asyncio.wait(self._tasks, timeout=_TICK)

    def is_given_up(self) -> bool:
        """True if this object has cancelled the running task, False if other code has."""
        task = asyncio.current_task()
        return task is not None and task in self._cancelled

    def _cancel(self, sent: bool) -> None:
        now = time.monotonic()
        for task, state in self._tasks.items():
            is_due = now - self._cancelled.get(task, -math.inf) > _CANCELLED_AGAIN
            if is_due and not state.answered and (sent or not state.sent):
                self._cancelled[task] = now
                task.cancel()

    async def _run(self, item: T, state: UnderWay) -> None:
        _under_way.set(state)
        await self._work(item)

    def _end(self, task: asyncio.Task[None], room: asyncio.Semaphore) -> None:
        room.release()
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)
        self._settle()

    def _settle(self) -> None:
        if self._all_begun and not self._tasks:
            self._settled.set()
