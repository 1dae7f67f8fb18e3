"""Asking again: bounded by count and time, with full jitter; a rate limit makes all requests wait."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from imageevalkit.api.failures import Failure, Kind

T = TypeVar("T")

_LONGEST_BACKOFF = 60.0
# A server may ask for an hour; after two minutes one more question is no burden, and bounds still hold.
_LONGEST_RETRY_AFTER = 120.0
# The first wait after a 429 that names none, in units of ``backoff``: 5 s by default.
_RATE_LIMIT_FLOOR = 2.5
_MOST_DOUBLINGS = 16
# its own generator: a model's seed must not depend on how often a server failed, nor the other way round
_jitter = random.Random()


class RetryPolicy(NamedTuple):
    """``max_elapsed`` and ``backoff`` (the ceiling of the first wait) are in seconds.

    No attempt starts later than ``max_elapsed`` after the first one. Rate limits do not count against
    ``max_attempts``: they say how busy the account is and nothing about the item.
    """

    max_attempts: int = 6
    max_elapsed: float = 600.0
    backoff: float = 2.0

    def delay(self, failures: int, asked: float | None) -> float:
        """Seconds to wait after that many failures: never less than the server ``asked`` (capped).

        Full jitter: uniform in [0, min(cap, backoff · 2^(failures-1))]
        (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
        """
        return min(asked or 0.0, _LONGEST_RETRY_AFTER) + _jitter.uniform(
            0.0, _doubled(self.backoff, failures)
        )


class Gate:
    """What all requests to one endpoint share: none starts before the latest pause that a 429 told is over."""

    def __init__(self, backoff: float) -> None:
        self._floor = _RATE_LIMIT_FLOOR * backoff
        self._opens = 0.0
        self._pauses = 0

    def pause(self, sent: float, asked: float | None) -> None:
        """Close the gate: a request sent at ``sent`` (``time.monotonic``) was limited.

        For the seconds that the server ``asked`` (capped; 0 says nothing), else for a floor that doubles
        with each pause in a row up to 60 s.
        """
        # what was under way when the gate closed tells nothing new, however many of them come back
        if sent >= self._opens:
            self._pauses += 1
        seconds = min(asked or self._step(), _LONGEST_RETRY_AFTER)
        self._opens = max(self._opens, time.monotonic() + seconds)

    def served(self) -> None:
        """A request was not limited: the next pause is a first one again."""
        self._pauses = 0

    def wait(self) -> float:
        """Seconds until a request may start, with jitter so that not all waiters come at once; 0 when open."""
        left = self._opens - time.monotonic()
        return left + _jitter.uniform(0.0, self._step()) if left > 0 else 0.0

    def _step(self) -> float:
        return _doubled(self._floor, max(1, self._pauses))


def _doubled(seconds: float, times: int) -> float:
    return min(_LONGEST_BACKOFF, seconds * 2 ** min(times - 1, _MOST_DOUBLINGS))


@dataclass(frozen=True)
class Tried(Generic[T]):
    """The value or the last failure, the number of calls, and the seconds since the first one."""

    result: T | Failure
    attempts: int
    seconds: float


async def retry(ask: Callable[[], Awaitable[T | Failure]], policy: RetryPolicy, gate: Gate) -> Tried[T]:
    """Call ``ask`` through ``gate`` until it succeeds, fails for good, or the policy's bounds are met."""
    while delay := gate.wait():
        await asyncio.sleep(delay)
    start = time.monotonic()
    failures: Counter[Kind] = Counter()
    while True:
        sent = time.monotonic()
        result = await ask()
        attempts = failures.total() + 1
        if not isinstance(result, Failure) or not result.kind.retried:
            gate.served()
            return Tried(result, attempts, time.monotonic() - start)
        failures[result.kind] += 1
        if result.kind is Kind.RATE_LIMIT:
            gate.pause(sent, result.retry_after)
            delay = gate.wait()
        else:
            counted = attempts - failures[Kind.RATE_LIMIT]
            # each new image is billed, and a file host that lost two will lose a third
            if counted >= policy.max_attempts or failures[Kind.LOST_IMAGE] > 1:
                return Tried(result, attempts, time.monotonic() - start)
            delay = policy.delay(counted, result.retry_after)
        while delay > 0:
            elapsed = time.monotonic() - start
            if elapsed + delay > policy.max_elapsed:
                return Tried(result, attempts, elapsed)
            await asyncio.sleep(delay)
            delay = gate.wait()
