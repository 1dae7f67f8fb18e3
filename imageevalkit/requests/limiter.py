"""How many requests are out at a time, and how fast: as many as the endpoint takes, none while it is down."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from imageevalkit.requests.endpoint import Endpoint
from imageevalkit.requests.failures import LONGEST_WAIT
from imageevalkit.requests.money import Budget
from imageevalkit.requests.shared import LOOK_AGAIN, Slots, shared

# A refusal comes at once and an image takes its time: a request without a 429 after this long was let through.
_TRUSTED_AFTER, _TRUSTED_TIMES = 0.02, 3.0
_IN_A_ROW, _MANY, _OF = 5, 14, 20  # one 429 in ten at random never comes so often (binomial: 1e-5)


@dataclass(eq=False)
class Sent:
    """A request that started ``at`` some second of the loop's clock; ``served``: not refused, None: not known yet."""

    at: float
    served: bool | None = None


_WITNESSES = 3
_LONGEST_WAIT = 30.0  # seconds between two questions: how late the return of an endpoint may be noticed
_jitter = random.Random()
_NEVER = float("-inf")


class Trial:
    """The attempts at one item; ``times_blamed``: it failed, a later request was served, it failed again."""

    def __init__(self) -> None:
        self.times_blamed = 0
        self._failed = float("inf")

    def note_failure(self, now: float, last_served: float) -> None:
        """A failure at ``now``; ``last_served`` is the latest start of a request that was served."""
        self.times_blamed += last_served > self._failed
        self._failed = now


class Outage:
    """Tells an endpoint that is down from an item that fails.

    A failure is the item's own as long as the endpoint serves others. When an endpoint that has worked fails at least
    ``_WITNESSES`` different items, and more than are still in flight, with nothing served that started later, it is
    down: one request at a time asks whether it is back, failures do not count against items, and the first served
    request ends the outage. A few hopeless items must not look like an outage: one that failed while others were
    served is no witness, and where only items are left that have failed already, they are tried to the end. Nor may
    one failure in ten, which are reported at once while images take their time.
    """

    def __init__(self) -> None:
        self.began: float | None = None  # since when the endpoint is down
        self.reason = ""
        self.last_served = _NEVER
        self._witnesses: dict[Trial, float] = {}
        self._asking: Sent | None = None
        self._asked = 0
        self._ask_next = 0.0

    def served(self, sent: Sent) -> bool:
        """A request was answered as it should be; whether that ended an outage."""
        self.last_served = max(self.last_served, sent.at)
        # what was accepted before a failure says nothing about what came after
        self._witnesses = {trial: failed for trial, failed in self._witnesses.items() if failed > sent.at}
        if self.began is None or sent.at < self.began:
            return False
        self.began = self._asking = None
        return True

    def failed(self, trial: Trial, now: float, reason: str, in_flight: int, untried: bool) -> bool:
        """A request failed; whether that counts against its item."""
        trial.note_failure(now, self.last_served)
        self.reason = reason
        if self.began is not None:
            return trial.times_blamed > 0
        if not trial.times_blamed:
            self._witnesses[trial] = now
        has_served = self.last_served > _NEVER
        if untried and has_served and len(self._witnesses) >= max(_WITNESSES, in_flight + 1):
            self.began, self._asked = now, 0
            self._ask_later(now)
            return False
        return True

    def wait(self, now: float) -> float:
        """Seconds until a request may start; infinite while the one that asks is under way."""
        if self.began is None:
            return 0.0
        return max(0.0, self._ask_next - now) if self._asking is None else float("inf")

    def started(self, sent: Sent) -> None:
        """A request has started; during an outage it is the one that asks."""
        if self.began is not None:
            self._asking = sent

    def ended(self, sent: Sent, now: float) -> None:
        """A request is over, however it ended."""
        if self._asking is sent:
            self._ask_later(now)

    def _ask_later(self, now: float) -> None:
        self._asking = None
        wait = min(_LONGEST_WAIT, 2.0**self._asked)
        self._asked += 1
        self._ask_next = now + wait * _jitter.uniform(0.5, 1.0)


_CUT = 0.75
_STEPS = 16
_COOLDOWN = 5.0  # seconds in which further 429s belong to the same episode
_LEAST_PACED = 3.0  # seconds for which a learnt rate is kept, whatever single 429s say
_LONGEST_UNASKED = 60.0  # seconds; a pause that no 429 names is 1 s and doubles with each one in a row
_RAMP, _RAMP_ALL = 0.005, 0.32  # seconds between the first requests, and for all of them
_PACE_DOUBLES = 10.0  # seconds
_LEAST_LET_THROUGH = 5  # fewer requests between two pauses say nothing about a rate


class EndpointDown(Exception):
    """The endpoint has served nothing for longer than the user wants to wait; the text says why."""


class _Waiter(NamedTuple):
    """Sorted so that repeated requests come first: their items have waited longest."""

    fresh: bool
    order: int
    attempts: int
    granted: asyncio.Future[Sent]


class Limiter:
    """Slots for requests to one endpoint with one key. Belongs to one event loop, whose clock it goes by.

    * One 429 makes its own request wait for what the server asks. When several are refused in a row, or most of the
      latest, it is a rate-limit episode: the account itself is limited, and all requests
      wait. Without that test, a gateway that limits one request in twenty at random would stop the other nineteen.
    * Concurrency starts at the ceiling the user asked for. An episode cuts it once by ``_CUT``; each round of served
      requests adds ``1/_STEPS`` of the ceiling back.
    * What the server let through between two episodes is its rate, whatever the size of its bursts. Requests are
      then paced at it, and faster again with time (cubically, as TCP CUBIC probes for bandwidth, RFC 9438 §4.2),
      since a limit may have been a passing one. A 429 while paced is the next such moment, and needs no pause. What
      that gains, ``perf/api_judging.py`` shows; it alone does without (``paces``).
    * The first requests start a few milliseconds apart, so that the first 429 is there before all of them are spent.

    At most ``ceiling`` requests are in flight (``lowered`` says why fewer than asked for), and ``per_minute`` started,
    evenly spaced; ``slots`` are those of all processes of the run. When all has failed for ``max_outage`` seconds,
    waiting requests are given up.
    """

    def __init__(
        self,
        ceiling: int,
        per_minute: float | None = None,
        max_outage: float = 1800.0,
        lowered: str = "",
        slots: Slots | None = None,
        paces: bool = True,
    ) -> None:
        self.ceiling, self.max_outage, self._lowered, self._slots = ceiling, max_outage, lowered, slots
        self.in_flight = 0
        self.cuts = 0  # episodes so far
        self._limit = float(ceiling)
        self._least_gap = 60.0 / per_minute if per_minute else 0.0
        self._ramp = ceiling
        self._waiters: list[_Waiter] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._next_start = self._paused_until = _NEVER
        self._episode_began = self._episode_ends = _NEVER
        self._recent = deque[Sent](maxlen=max(64, 2 * ceiling))
        self._refusal_time = 0.0
        self._pauses_in_a_row = 0
        self._limited_since: float | None = None
        self._let_through = 0
        self._counting_since: float | None = None
        self._paces = paces
        self._rate, self._learnt = 0.0, _NEVER  # requests per second; 0 while none is known
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
    async def slot(self, attempts: int = 0) -> AsyncIterator[Sent]:
        """Hold a slot for the request that is given. Raises EndpointDown: nothing was served for ``max_outage`` s."""
        granted: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, _Waiter(not attempts, next(self._order), attempts, granted))
        self._pump()
        try:
            sent = await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and not granted.exception():
                self._release(granted.result())
            else:
                self._pump()  # perhaps nobody waits any more
            raise
        try:
            yield sent
        finally:
            self._release(sent)

    @contextmanager
    def returning(self) -> Iterator[None]:
        """While somebody waits for the endpoint to start again it is not given up; an outage counts from then."""
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            self._returned = _now()
            self._pump()

    def served(self, sent: Sent) -> None:
        """The request was let through and answered."""
        if self._outage.served(sent):
            self._ramp = self.ceiling
        self._limited_since = None
        sent.served = True
        if sent.at >= self._paused_until:
            self._pauses_in_a_row = 0
        # what was under way at the cut says nothing about the new limit, and one that nobody reaches grows on paper
        if sent.at >= self._episode_began and self.in_flight >= 0.8 * self.limit:
            self._limit = min(self.ceiling, self._limit + max(1.0, self.ceiling / _STEPS) / self._limit)
        self._pump()

    def expect(self, who: object, items: int) -> None:
        """So many items of ``who`` (a model) are still to come that have not asked for a slot yet."""
        self._expected[who] = items

    def failed(self, trial: Trial, reason: str) -> bool:
        """A request of ``trial`` failed for a ``reason`` that passes; whether that counts against its item."""
        untried = any(waiter.fresh and not waiter.granted.done() for waiter in self._waiters)
        untried = untried or any(self._expected.values())
        return self._outage.failed(trial, _now(), reason, self.in_flight - 1, untried)

    def limited(self, trial: Trial, sent: Sent, asked: float | None) -> None:
        """A request of ``trial`` got a 429; the server ``asked`` for so many seconds, if any."""
        now = _now()
        # no sign of an outage, but perhaps of an item that is always refused
        trial.note_failure(now, self._outage.last_served)
        self._let_through -= 1
        self._limited_since = self._limited_since or now
        sent.served, self._refusal_time = False, max(now - sent.at, self._refusal_time / 2)
        if sent.at < self._paused_until:
            return  # it was under way when the pause began: nothing new
        if self._is_limited(now):
            if now >= self._episode_ends:
                self._limit = max(1.0, self._limit * _CUT)
                self.cuts += 1
                self._episode_began = now
                self._episode_ends = now + max(_COOLDOWN, min(asked or 0.0, LONGEST_WAIT))
            self._learn(now)
            self._pauses_in_a_row += 1
            unasked = min(2.0 ** (self._pauses_in_a_row - 1), _LONGEST_UNASKED)
            self._pause(now + (min(asked, LONGEST_WAIT) if asked else unasked))
        elif self._rate and now - self._learnt > _LEAST_PACED:
            # paced, so the server has run dry just now; a pause would let its tokens go to waste
            self._learn(now)

    def window_used_up(self, reset: float) -> None:
        """The server says that nothing is left of its window, which ends in ``reset`` seconds."""
        self._pause(_now() + min(reset, LONGEST_WAIT))

    def _is_limited(self, now: float) -> bool:
        """Whether the last requests whose fate is known were refused in a row, or too many of them for chance."""
        trusted = now - max(_TRUSTED_AFTER, _TRUSTED_TIMES * self._refusal_time)
        known = (sent for sent in reversed(self._recent) if sent.served is not None or sent.at <= trusted)
        refused = [sent.served is False for sent in itertools.islice(known, _OF)]
        return (len(refused) >= _IN_A_ROW and all(refused[:_IN_A_ROW])) or sum(refused) >= _MANY

    def _learn(self, now: float) -> None:
        """The server has nothing left: what it let through since the last such moment is its rate."""
        if not self._paces:
            return
        if self._counting_since is None:
            self._counting_since, self._let_through = now, 0
        elif self._let_through >= _LEAST_LET_THROUGH:
            self._rate, self._learnt = self._let_through / (now - self._counting_since), now
            self._counting_since, self._let_through = now, 0

    def _pause(self, until: float) -> None:
        self._recent.clear()  # what comes then has nothing to do with what was
        self._paused_until = max(self._paused_until, until)
        self._ramp = self.ceiling

    def _release(self, sent: Sent) -> None:
        self.in_flight -= 1
        if self._slots:
            self._slots.give()
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
            wait = max(self._outage.wait(now), self._paused_until - now, self._next_start - now)
            if self._slots and wait <= 0:
                wait = self._shared_wait(self._slots, now)
            elif self._slots and wait > LOOK_AGAIN:
                self._slots.content()  # for now
            if wait > 0:
                when = now + wait
                if self._outage.began is not None and not self._awaited:
                    when = min(when, max(self._outage.began, self._returned) + self.max_outage)
                if when < float("inf"):
                    self._timer = asyncio.get_running_loop().call_at(when, self._pump)
                return
            granted = self._next_waiter().granted
            if not granted.done():
                granted.set_result(self._started(now))
            elif self._slots:
                self._slots.give()
        if self._slots:
            self._slots.content()

    def _shared_wait(self, slots: Slots, now: float) -> float:
        """Take a slot of the run: 0, or the seconds until there may be one."""
        if wait := slots.take(now, self.ceiling):
            return wait
        if self._least_gap and (wait := slots.start(now, self._least_gap)):
            slots.give()
        return wait

    def _next_waiter(self) -> _Waiter:
        if self._outage.began is None:
            return heapq.heappop(self._waiters)
        # who asks whether the endpoint is back should not be an item that fails by itself
        waiter = min(self._waiters, key=lambda waiter: (waiter.attempts, waiter.order))
        self._waiters.remove(waiter)
        heapq.heapify(self._waiters)
        return waiter

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

    def _started(self, now: float) -> Sent:
        sent = Sent(now)
        self.in_flight += 1
        self._let_through += 1
        self._recent.append(sent)
        self._outage.started(sent)
        gap = self._least_gap
        if self._rate:
            gap = max(gap, 1.0 / (self._rate * (1.0 + ((now - self._learnt) / _PACE_DOUBLES) ** 3)))
        if self._ramp:
            self._ramp -= 1
            gap = max(gap, min(_RAMP, _RAMP_ALL / self.ceiling))
        self._next_start = max(self._next_start, now) + gap
        return sent


def _now() -> float:
    return asyncio.get_running_loop().time()


class Traffic:
    """``workers`` and ``per_minute`` bound the requests to each endpoint, ``max_cost`` (USD) all.

    They are those of a run: all its processes that are given the same ``folder`` have them together.
    """

    def __init__(
        self,
        workers: int = 64,
        per_minute: float | None = None,
        max_cost: float | None = None,
        lowered: str = "",
        folder: Path | None = None,
    ) -> None:
        self.workers = workers
        self.lowered = lowered
        self._per_minute = per_minute
        self._folder = folder
        self.budget = Budget(max_cost, folder / "money" if folder else None)
        self._limiters: dict[Endpoint, Limiter] = {}
        self._one_by_one = threading.Lock()

    def limiter(self, endpoint: Endpoint, max_outage: float) -> Limiter:
        """The limiter of ``endpoint``; of several models the most patient one decides ``max_outage`` (seconds)."""
        with self._one_by_one:  # models load in threads
            if endpoint not in self._limiters:
                name = endpoint.account[:16]
                slots = shared(Slots, self._folder / name) if self._folder else None
                self._limiters[endpoint] = Limiter(
                    self.workers, self._per_minute, max_outage, self.lowered, slots
                )
        limiter = self._limiters[endpoint]
        limiter.max_outage = max(limiter.max_outage, max_outage)
        return limiter
