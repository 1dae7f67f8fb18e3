"""Limits the number and the rate of requests to an endpoint, and stops them while the endpoint is down."""

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
from typing import Any, NamedTuple

from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import LONGEST_WAIT
from imageevalkit.api.money import Budget
from imageevalkit.api.shared import LOOK_AGAIN, Slots, shared

# Seconds, and multiples of a 429's latency, after which a running request counts as let through: a 429 comes
# at once, an image takes time.
_TRUSTED_AFTER, _TRUSTED_TIMES = 0.02, 3.0
_IN_A_ROW, _MANY, _OF = 5, 14, 20  # too many 429s for random ones at a rate of one in ten (binomial: 1e-5)


@dataclass(eq=False)
class Sent:
    """A request that started ``at`` seconds of the loop's clock.

    ``served``: True after a reply, False after a 429, None while neither is known.
    """

    at: float
    served: bool | None = None


_WITNESSES = 3
_LONGEST_WAIT = 30.0  # seconds between two test requests: the end of an outage is noticed at most so late
_jitter = random.Random()
_NEVER = float("-inf")


class Trial:
    """The attempts at one item.

    ``times_blamed`` counts the failures that are the item's own: since its previous failure, the endpoint
    served a request that started later.
    """

    def __init__(self) -> None:
        self.times_blamed = 0
        self._failed = float("inf")

    def note_failure(self, now: float, last_served: float) -> None:
        """Records a failure at ``now``; ``last_served`` is the latest start of a served request."""
        self.times_blamed += last_served > self._failed
        self._failed = now


class Outage:
    """Distinguishes an endpoint that is down from an item that fails.

    A failure counts against its item as long as the endpoint serves others. An outage begins when at least
    ``_WITNESSES`` different items, and more than are still in flight, have failed. The endpoint must have
    worked before, and no later request may have been served. During an outage, one request at a time tests
    the endpoint, and failures do not count against items. The first served request ends the outage.

    A few failing items must not look like an outage. An item that failed while others were served is
    therefore no witness. If all remaining items have failed before, they are tried to the end. One random
    failure in ten is no outage either: failures arrive at once, while images take time.
    """

    def __init__(self) -> None:
        self.began: float | None = None  # start of the outage; None if there is none
        self.reason = ""
        self.last_served = _NEVER
        self._witnesses: dict[Trial, float] = {}
        self._asking: Sent | None = None
        self._asked = 0
        self._ask_next = 0.0

    def served(self, sent: Sent) -> bool:
        """Records a successful reply. Returns whether the reply ended an outage."""
        self.last_served = max(self.last_served, sent.at)
        # a request that started before a failure does not prove that the endpoint works after it
        self._witnesses = {trial: failed for trial, failed in self._witnesses.items() if failed > sent.at}
        if self.began is None or sent.at < self.began:
            return False
        self.began = self._asking = None
        return True

    def failed(self, trial: Trial, now: float, reason: str, in_flight: int, untried: bool) -> bool:
        """Records a failed request. Returns whether the failure counts against its item."""
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
        """Returns the seconds until a request may start; infinite while a test request is in flight."""
        if self.began is None:
            return 0.0
        return max(0.0, self._ask_next - now) if self._asking is None else float("inf")

    def started(self, sent: Sent) -> None:
        """Records the start of a request. During an outage this request tests the endpoint."""
        if self.began is not None:
            self._asking = sent

    def ended(self, sent: Sent, now: float) -> None:
        """Records the end of a request, successful or not. The next test request may then be scheduled."""
        if self._asking is sent:
            self._ask_later(now)

    def _ask_later(self, now: float) -> None:
        self._asking = None
        wait = min(_LONGEST_WAIT, 2.0**self._asked)
        self._asked += 1
        self._ask_next = now + wait * _jitter.uniform(0.5, 1.0)


_CUT = 0.75
_STEPS = 16
_COOLDOWN = 5.0  # seconds: a 429 within this time belongs to the same episode
_LEAST_PACED = 3.0  # seconds for which a single 429 does not change a learnt rate
_LONGEST_UNASKED = 60.0  # seconds; if a 429 names no wait, the pause is 1 s, then doubles each time
_RAMP, _RAMP_ALL = 0.005, 0.32  # seconds between two of the first requests, and between first and last
_PACE_DOUBLES = 10.0  # seconds after which the pace has doubled
_LEAST_LET_THROUGH = 5  # a rate from fewer requests would be noise


class EndpointDown(Exception):
    """The endpoint has served nothing for longer than ``max_outage``. The text gives the reason."""


class _Waiter(NamedTuple):
    """A waiting request. Retries sort before first attempts: their items have waited longest."""

    fresh: bool
    order: int
    attempts: int
    granted: asyncio.Future[Sent]


class Limiter:
    """Gives out slots for requests to one endpoint with one key. Belongs to one event loop and its clock.

    * A single 429 delays only its own request. If several requests in a row get a 429, or most of the latest
      ones, a rate-limit episode begins. All requests then wait, because the account is limited. Without this
      test, a gateway that limits one request in twenty at random would stop the other nineteen.
    * Concurrency starts at the user's ceiling. An episode multiplies it by ``_CUT`` once. Each round of
      served requests adds ``1/_STEPS`` of the ceiling back.
    * The number of requests served between two episodes gives the server's rate, also if it serves bursts.
      Requests are then paced at this rate. The pace grows with time (cubically, as TCP CUBIC probes for
      bandwidth, RFC 9438 §4.2), because a limit may be temporary. A 429 while paced updates the rate and
      needs no pause.
    * The first requests start a few milliseconds apart, so that the first 429 arrives before all have
      started.

    At most ``ceiling`` requests are in flight, and at most ``per_minute`` start, evenly spaced. ``lowered``
    explains a ceiling below the user's. ``slots`` are shared by all processes of the run. If every request
    has failed for ``max_outage`` seconds, waiting requests raise EndpointDown.
    """

    def __init__(
        self,
        ceiling: int,
        per_minute: float | None = None,
        max_outage: float = 1800.0,
        lowered: str = "",
        slots: Slots | None = None,
    ) -> None:
        self.ceiling, self.max_outage, self._lowered, self._slots = ceiling, max_outage, lowered, slots
        self.in_flight = 0
        self.cuts = 0  # number of rate-limit episodes
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
        self._rate, self._learnt = 0.0, _NEVER  # requests per second; 0 while unknown
        self._outage = Outage()
        self._expected: dict[object, int] = {}
        self._given_up = ""
        self._awaited = 0
        self._returned = _NEVER

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight now."""
        return max(1, int(self._limit))

    def state(self) -> str:
        """Returns why requests wait, for a progress line; empty if only the user's ceiling delays them."""
        now = _now()
        if self._awaited:
            return ""  # the caller of `returning` reports the restart
        if self._outage.began is not None:
            return f"endpoint down for {now - self._outage.began:.0f} s: {self._outage.reason}"
        if self._paused_until > now:
            return f"rate limited, {self._paused_until - now:.0f} s to wait"
        return f"rate limited to {self.limit} in flight" if self.limit < self.ceiling else self._lowered

    @asynccontextmanager
    async def slot(self, attempts: int = 0) -> AsyncIterator[Sent]:
        """Holds a slot for the time of a request; waits until the request may start.

        Raises EndpointDown: the endpoint has served nothing for ``max_outage`` seconds.
        """
        granted: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, _Waiter(not attempts, next(self._order), attempts, granted))
        self._pump()
        try:
            sent = await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and not granted.exception():
                self._release(granted.result())
            else:
                self._pump()  # releases shared slots if no request waits any more
            raise
        try:
            yield sent
        finally:
            self._release(sent)

    @contextmanager
    def returning(self) -> Iterator[None]:
        """Suspends ``max_outage`` while a caller waits for the endpoint's restart. Its count then begins."""
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            self._returned = _now()
            self._pump()

    def served(self, sent: Sent) -> None:
        """Records a reply other than a 429, and may raise the limit."""
        if self._outage.served(sent):
            self._ramp = self.ceiling
        self._limited_since = None
        sent.served = True
        if sent.at >= self._paused_until:
            self._pauses_in_a_row = 0
        # A request from before the cut does not test the new limit. An unreached limit must not grow either.
        if sent.at >= self._episode_began and self.in_flight >= 0.8 * self.limit:
            self._limit = min(self.ceiling, self._limit + max(1.0, self.ceiling / _STEPS) / self._limit)
        self._pump()

    def expect(self, model: object, items: int) -> None:
        """Sets the number of items of ``model`` that have not asked for a slot yet."""
        self._expected[model] = items

    def failed(self, trial: Trial, reason: str) -> bool:
        """Records a temporary failure of a request of ``trial``, with its ``reason``.

        Returns whether the failure counts against the item.
        """
        untried = any(waiter.fresh and not waiter.granted.done() for waiter in self._waiters)
        untried = untried or any(self._expected.values())
        return self._outage.failed(trial, _now(), reason, self.in_flight - 1, untried)

    def limited(self, trial: Trial, sent: Sent, asked: float | None) -> None:
        """Records a 429 for a request of ``trial``. ``asked``: the wait in seconds that the 429 names."""
        now = _now()
        # a 429 is no sign of an outage, but this item may get one at every attempt
        trial.note_failure(now, self._outage.last_served)
        self._let_through -= 1
        self._limited_since = self._limited_since or now
        sent.served, self._refusal_time = False, max(now - sent.at, self._refusal_time / 2)
        if sent.at < self._paused_until:
            return  # the request started before the pause: the 429 is no new information
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
            # requests are paced, so the server's tokens have just run out; a pause would waste its new tokens
            self._learn(now)

    def window_used_up(self, reset: float) -> None:
        """Pauses all requests for ``reset`` seconds: the server says that its rate window is used up."""
        self._pause(_now() + min(reset, LONGEST_WAIT))

    def _is_limited(self, now: float) -> bool:
        """Returns whether the latest known requests got more 429s than chance explains."""
        trusted = now - max(_TRUSTED_AFTER, _TRUSTED_TIMES * self._refusal_time)
        known = (sent for sent in reversed(self._recent) if sent.served is not None or sent.at <= trusted)
        refused = [sent.served is False for sent in itertools.islice(known, _OF)]
        return (len(refused) >= _IN_A_ROW and all(refused[:_IN_A_ROW])) or sum(refused) >= _MANY

    def _learn(self, now: float) -> None:
        """Updates the server's rate from the requests it let through since its limit was last reached."""
        if self._counting_since is None:
            self._counting_since, self._let_through = now, 0
        elif self._let_through >= _LEAST_LET_THROUGH:
            self._rate, self._learnt = self._let_through / (now - self._counting_since), now
            self._counting_since, self._let_through = now, 0

    def _pause(self, until: float) -> None:
        self._recent.clear()  # else 429s from before the pause would count after it
        self._paused_until = max(self._paused_until, until)
        self._ramp = self.ceiling

    def _release(self, sent: Sent) -> None:
        self.in_flight -= 1
        if self._slots:
            self._slots.give()
        self._outage.ended(sent, _now())
        self._pump()

    def _pump(self) -> None:
        """Starts all waiting requests that may start now, and sets a timer for the next one."""
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
                break  # _release calls this method again
            wait = max(self._outage.wait(now), self._paused_until - now, self._next_start - now)
            if self._slots and wait <= 0:
                wait = self._shared_wait(self._slots, now)
            elif self._slots and wait > LOOK_AGAIN:
                self._slots.content()  # else this process would block idle slots during the wait
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
        """Takes a slot of the run. Returns 0, or the seconds until a slot may be free."""
        if wait := slots.take(now, self.ceiling):
            return wait
        if self._least_gap and (wait := slots.start(now, self._least_gap)):
            slots.give()
        return wait

    def _next_waiter(self) -> _Waiter:
        if self._outage.began is None:
            return heapq.heappop(self._waiters)
        # the item with the fewest attempts: an item that always fails could not show the end of the outage
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
    """The limits of a run: ``workers`` and ``per_minute`` for each endpoint, ``max_cost`` (USD) for all.

    All processes with the same ``folder`` share these limits.
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

    def __reduce__(self) -> tuple[type[Traffic], tuple[Any, ...]]:
        """Makes a copy in another process share these limits, through ``folder``."""
        given = (self.workers, self._per_minute, self.budget.max_cost, self.lowered, self._folder)
        return Traffic, given

    def limiter(self, endpoint: Endpoint, max_outage: float) -> Limiter:
        """Returns the limiter of ``endpoint``. The largest ``max_outage`` (seconds) of its models applies."""
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
