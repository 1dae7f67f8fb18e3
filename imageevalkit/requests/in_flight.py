"""Items under way side by side: of image models as of judges, behind an API or on this machine.

They may come one after another from another thread, by a :class:`~imageevalkit.requests.feed.Feed`.
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

from imageevalkit.requests.feed import Feed

T = TypeVar("T")

_TICK = 0.25  # seconds between two looks
_LOOK = 0.02  # the same for an item to come
# before Python 3.12 wait_for loses a cancellation that comes together with the reply; sooner, it would cut short what a
# model does at its end
_CANCELLED_AGAIN = 2.0  # seconds


@dataclass
class UnderWay:
    """How far an item is, for whoever may have to give it up: a request is out; what was asked for is here."""

    sent: bool = False
    answered: bool = False


_under_way: ContextVar[UnderWay | None] = ContextVar("under_way", default=None)


def under_way() -> UnderWay:
    """The item of the running task; :func:`imageevalkit.requests.engine.retry` keeps it true."""
    return _under_way.get() or UnderWay()


class InFlight(Generic[T]):
    """Does ``work`` for each item in a task of its own, until all are settled or ``stopped`` says that it is no use.

    What is out by then (is ``sent``) may still be answered, and is paid for: it has ``last_answers`` seconds more.
    ``fail`` takes what ``work`` raises. ``tells_sent`` False: what is under way may be out at any time.
    """

    def __init__(
        self,
        work: Callable[[T], Awaitable[None]],
        stopped: Callable[[], bool],
        fail: Callable[[BaseException], None],
        last_answers: float,
        tells_sent: bool = True,
    ) -> None:
        self._work, self._stopped, self._fail = work, stopped, fail
        self._last_answers, self._tells_sent = last_answers, tells_sent
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
        """Begin one item after another as there is ``room``, each once it is prepared.

        ``expect`` is told how many have not begun.
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
            state = UnderWay(sent=not self._tells_sent)
            task = asyncio.create_task(self._run(item, state))
            self._tasks[task] = state
            task.add_done_callback(lambda task: self._end(task, room))
        self._all_begun = True
        expect(0)
        self._settle()

    async def settled(self, look: Callable[[], None]) -> None:
        """Wait for the end of all; ``look`` is called meanwhile, several times a second."""
        given_up = None
        while not self._settled.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._settled.wait(), _TICK)
            look()
            if self._stopped():
                given_up = given_up or time.monotonic()
                self._cancel(sent=time.monotonic() - given_up > self._last_answers)

    async def abandon(self) -> None:
        """Cancel whatever is still under way, but let what has been answered be stored."""
        while self._tasks:
            self._cancel(sent=True)
            await asyncio.wait(self._tasks, timeout=_TICK)

    def is_given_up(self) -> bool:
        """Whether the running task was cancelled from here, and not by the code that it runs."""
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
