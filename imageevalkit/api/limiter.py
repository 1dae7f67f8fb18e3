"""How many requests may be in flight at one endpoint with one key, and when the next one may start.

* One 429 makes its own request wait for what the server asks. When several are refused in a row, or most of the
  latest (``api.recent``), it is a rate-limit episode: the account itself is limited, and all requests wait.
  Without that test, a gateway that limits one request in twenty at random would stop the other nineteen.
* Concurrency starts at the ceiling the user asked for. An episode cuts it once by ``_CUT``; each round of served
  requests adds ``1/_STEPS`` of the ceiling back.
* What the server let through between two episodes is its rate, whatever the size of its bursts. Requests are
  then paced at it, and faster again with time (cubically, as TCP CUBIC probes for bandwidth, RFC 9438 §4.2), since
  a limit may have been a passing one. A 429 while paced is the next such moment, and needs no pause.
* The first requests start a few milliseconds apart, so that the first 429 is there before all of them are spent.

All times are those of the running event loop, so that a test can run on a simulated clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from imageevalkit.api.outage import Outage, Trial
from imageevalkit.api.rate_headers import LONGEST_WAIT
from imageevalkit.api.recent import RecentRequests

_CUT = 0.75
_STEPS = 16
_COOLDOWN = 5.0  # seconds in which further 429s belong to the same episode
_LEAST_PACED = 3.0  # seconds for which a learnt rate is kept, whatever single 429s say
_LONGEST_UNASKED = 60.0  # seconds; a pause that no 429 names is 1 s and doubles with each one in a row
_RAMP, _RAMP_ALL = 0.005, 0.32  # seconds between the first requests, and for all of them
_PACE_DOUBLES = 10.0  # seconds
_LEAST_LET_THROUGH = 5  # fewer requests between two pauses say nothing about a rate
_NEVER = float("-inf")


class EndpointDown(Exception):
    """The endpoint has served nothing for longer than the user wants to wait; the text says why."""


class _Pace(NamedTuple):
    """Requests per second, learnt at the time ``since``."""

    rate: float
    since: float

    def gap(self, now: float) -> float:
        return 1.0 / (self.rate * (1.0 + ((now - self.since) / _PACE_DOUBLES) ** 3))


class _Waiter(NamedTuple):
    """Sorted so that repeated requests come first: their items have waited longest."""

    fresh: bool
    order: int
    attempts: int
    granted: asyncio.Future[float]


class Limiter:
    """Slots for requests to one endpoint with one key; see the module's text. Belongs to one event loop.

    Args:
        ceiling: requests in flight at most.
        per_minute: requests started per minute at most, evenly spaced; None for no bound.
        max_outage: seconds for which everything may fail before all waiting requests are given up.
        lowered: why the ceiling is lower than the user asked for; empty where it is not.
    """

    def __init__(
        self, ceiling: int, per_minute: float | None = None, max_outage: float = 1800.0, lowered: str = ""
    ) -> None:
        self.ceiling = ceiling
        self.in_flight = 0
        self.cuts = 0
        """Episodes so far."""
        self._limit = float(ceiling)
        self._least_gap = 60.0 / per_minute if per_minute else 0.0
        self.max_outage = max_outage
        self._lowered = lowered
        self._ramp = ceiling
        self._waiters: list[_Waiter] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._next_start = self._paused_until = _NEVER
        self._episode_began = self._episode_ends = _NEVER
        self._recent = RecentRequests(max(64, 2 * ceiling))
        self._pauses_in_a_row = 0
        self._limited_since: float | None = None
        self._let_through = 0
        self._counting_since: float | None = None
        self._pace: _Pace | None = None
        self._outage = Outage()
        self._expected: dict[object, int] = {}
        self._given_up = ""
        self._awaited = 0
        self._returned = _NEVER

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return max(1, int(self._limit))

    def state(self) -> str:
        """What holds requests back now, in a few words for a progress line; empty when only the user's ceiling does."""
        now = _now()
        if self._awaited:
            return ""  # who waits knows more
        if self._outage.began is not None:
            return f"endpoint down for {now - self._outage.began:.0f} s: {self._outage.reason}"
        if self._paused_until > now:
            return f"rate limited, {self._paused_until - now:.0f} s to wait"
        return f"rate limited to {self.limit} in flight" if self.limit < self.ceiling else self._lowered

    @asynccontextmanager
    async def slot(self, attempts: int = 0) -> AsyncIterator[float]:
        """Wait for a slot and hold it; gives the time of the start. ``attempts`` were made at the item before.

        Raises:
            EndpointDown: nothing was served for ``max_outage`` seconds.
        """
        granted: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, _Waiter(not attempts, next(self._order), attempts, granted))
        self._pump()
        try:
            sent = await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and not granted.exception():
                self._release(granted.result())
            raise
        try:
            yield sent
        finally:
            self._release(sent)

    @contextmanager
    def returning(self) -> Iterator[None]:
        """While one who sees that the endpoint is being started again waits for that: it is not given up.

        How long it may be down counts from the end of that.
        """
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            self._returned = _now()
            self._pump()

    def served(self, sent: float) -> None:
        """The request that started at ``sent`` was let through and answered."""
        if self._outage.served(sent):
            self._ramp = self.ceiling
        self._limited_since = None
        self._recent.let_through(sent)
        if sent >= self._paused_until:
            self._pauses_in_a_row = 0
        # what was under way at the cut says nothing about the new limit, and one that nobody reaches grows on paper
        if sent >= self._episode_began and self.in_flight >= 0.8 * self.limit:
            self._limit = min(self.ceiling, self._limit + max(1.0, self.ceiling / _STEPS) / self._limit)
        self._pump()

    def expect(self, who: object, items: int) -> None:
        """So many items of ``who`` (a model) are still to come that have not asked for a slot yet."""
        self._expected[who] = items

    def failed(self, trial: Trial, sent: float, reason: str) -> bool:
        """A request of ``trial`` failed for a ``reason`` that passes; whether that counts against its item."""
        untried = any(waiter.fresh and not waiter.granted.done() for waiter in self._waiters)
        untried = untried or any(self._expected.values())
        return self._outage.failed(trial, sent, _now(), reason, self.in_flight - 1, untried)

    def limited(self, trial: Trial, sent: float, asked: float | None) -> None:
        """A request of ``trial`` got a 429; the server ``asked`` for so many seconds, if any."""
        now = _now()
        self._outage.limited(trial, now)
        self._let_through -= 1
        self._limited_since = self._limited_since or now
        self._recent.refused(sent, now)
        if sent < self._paused_until:
            return  # it was under way when the pause began: nothing new
        if self._recent.are_limited(now):
            self._cut(now, asked)
            self._learn(now)
            self._pauses_in_a_row += 1
            unasked = min(2.0 ** (self._pauses_in_a_row - 1), _LONGEST_UNASKED)
            self._pause(now + (min(asked, LONGEST_WAIT) if asked else unasked))
        elif self._pace and now - self._pace.since > _LEAST_PACED:
            # paced, so the server has run dry just now; a pause would let its tokens go to waste
            self._learn(now)

    def _cut(self, now: float, asked: float | None) -> None:
        if now >= self._episode_ends:
            self._limit = max(1.0, self._limit * _CUT)
            self.cuts += 1
            self._episode_began = now
            self._episode_ends = now + max(_COOLDOWN, min(asked or 0.0, LONGEST_WAIT))

    def window_used_up(self, reset: float) -> None:
        """The server says that nothing is left of its window, which ends in ``reset`` seconds."""
        self._pause(_now() + min(reset, LONGEST_WAIT))

    def _learn(self, now: float) -> None:
        """The server has nothing left: what it let through since the last such moment is its rate."""
        if self._counting_since is None:
            self._counting_since, self._let_through = now, 0
        elif self._let_through >= _LEAST_LET_THROUGH:
            self._pace = _Pace(self._let_through / (now - self._counting_since), now)
            self._counting_since, self._let_through = now, 0

    def _pause(self, until: float) -> None:
        self._recent.forget()
        self._paused_until = max(self._paused_until, until)
        self._ramp = self.ceiling

    def _release(self, sent: float) -> None:
        self.in_flight -= 1
        self._outage.ended(sent, _now())
        self._pump()

    def _pump(self) -> None:
        """Start as many waiting requests as may start now, and see to it that the others do in time."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        while self._waiters:
            if self._waiters[0].granted.done():  # cancelled
                heapq.heappop(self._waiters)
                continue
            now = _now()
            if self._is_given_up(now):
                heapq.heappop(self._waiters).granted.set_exception(EndpointDown(self._given_up))
                continue
            if self.in_flight >= self.limit:
                break  # a release comes back here
            wait = self._seconds_to_wait(now)
            if wait > 0:
                self._pump_at(now + wait)
                return
            granted = self._next_waiter().granted
            if not granted.done():
                self._start(now)
                granted.set_result(now)

    def _next_waiter(self) -> _Waiter:
        if self._outage.began is None:
            return heapq.heappop(self._waiters)
        # who asks whether the endpoint is back should not be an item that fails by itself
        waiter = min(self._waiters, key=lambda waiter: (waiter.attempts, waiter.order))
        self._waiters.remove(waiter)
        heapq.heapify(self._waiters)
        return waiter

    def _pump_at(self, when: float) -> None:
        if self._outage.began is not None and not self._awaited:
            when = min(when, max(self._outage.began, self._returned) + self.max_outage)
        if when < float("inf"):
            self._timer = asyncio.get_running_loop().call_at(when, self._pump)

    def _is_given_up(self, now: float) -> bool:
        if self._awaited:
            return False
        for since, what in (
            (self._outage.began, f"has been down: {self._outage.reason}"),
            (self._limited_since, "has limited the rate of every request"),
        ):
            if since is not None and now - max(since, self._returned) >= self.max_outage:
                self._given_up = f"for {now - since:.0f} s the endpoint {what}"
        return bool(self._given_up)

    def _seconds_to_wait(self, now: float) -> float:
        return max(self._outage.wait(now), self._paused_until - now, self._next_start - now)

    def _start(self, now: float) -> None:
        self.in_flight += 1
        self._let_through += 1
        self._recent.started(now)
        self._outage.started(now)
        gap = max(self._least_gap, self._pace.gap(now) if self._pace else 0.0)
        if self._ramp:
            self._ramp -= 1
            gap = max(gap, min(_RAMP, _RAMP_ALL / self.ceiling))
        self._next_start = max(self._next_start, now) + gap


def _now() -> float:
    return asyncio.get_running_loop().time()
