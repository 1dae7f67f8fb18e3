"""Asking again: bounded by count and time, with full jitter, through the limiter that all requests share."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from imageevalkit.api.failures import LONGEST_WAIT, Failure, Kind
from imageevalkit.api.limiter import EndpointDown, Limiter, Trial

T = TypeVar("T")

_LONGEST_BACKOFF = 60.0
_MOST_DOUBLINGS = 16
# A 429 of an item while requests that started later are served: not the account's rate but this one request ("too
# large for your tokens per minute"). Even of an account that
# refuses every other request, one item in 4096 is.
_MOST_LIMITS = 12
# its own generator: a model's seed must not depend on how often a server failed, nor the other way round
_jitter = random.Random()


class RetryPolicy(NamedTuple):
    """``max_elapsed`` and ``backoff`` (the ceiling of the first wait) are in seconds.

    ``max_elapsed`` bounds the requests of one item and the waits between them. Neither bound counts what says
    nothing about the item: rate limits of the account, failures during an outage, waiting for a slot; those end
    with the limiter's own bound.
    """

    max_attempts: int = 6
    max_elapsed: float = 600.0
    backoff: float = 2.0

    def delay(self, failures: int, asked: float | None) -> float:
        """Seconds to wait after that many failures: never less than the server ``asked`` (capped).

        Full jitter: uniform in [0, min(cap, backoff · 2^(failures-1))]
        (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
        """
        ceiling = min(_LONGEST_BACKOFF, self.backoff * 2 ** min(max(failures, 1) - 1, _MOST_DOUBLINGS))
        return min(asked or 0.0, LONGEST_WAIT) + _jitter.uniform(0.0, ceiling)

    def delay_after_limit(self, limits: int, asked: float | None) -> float:
        """Seconds to wait after that many 429s: a little more than the server ``asked`` (capped).

        The limiter sees to it that not all come back at once. A server that asks for nothing, or for 0 s, gets
        the growing waits of :meth:`delay`.
        """
        if not asked:
            return self.delay(limits, None)
        return min(asked, LONGEST_WAIT) + _jitter.uniform(0.0, 0.1 * min(asked, 1.0))


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """The value or the last failure, the number of requests, and the seconds spent on them and between them.

    ``down``: given up because the endpoint was, not because of the item.
    """

    result: T | Failure
    attempts: int
    seconds: float
    down: bool = False


@dataclass
class UnderWay:
    """How far an item is, for whoever may have to give it up: a request is out; the image is here."""

    sent: bool = False
    answered: bool = False


under_way: ContextVar[UnderWay | None] = ContextVar("under_way", default=None)
"""Set by the engine for each item; :func:`retry` keeps it true."""


async def retry(
    ask: Callable[[], Awaitable[T | Failure]], policy: RetryPolicy, limiter: Limiter
) -> Attempt[T]:
    """Call ``ask``, each time in a slot of ``limiter``, until it succeeds, fails for good, or a bound is met."""
    loop = asyncio.get_running_loop()
    state = under_way.get() or UnderWay()
    trial, limits, failures = Trial(), Trial(), Counter[Kind]()
    attempts = counted = 0
    seconds = counted_seconds = limited_seconds = 0.0
    result: T | Failure | None = None
    while True:
        state.sent = False
        try:
            async with limiter.slot(attempts) as sent:
                attempts += 1
                state.sent = True
                result = await ask()
                took = loop.time() - sent
                seconds += took
                if not isinstance(result, Failure) or not result.kind.retried:
                    limiter.served(sent)
                    return Attempt(result, attempts, seconds)
                failures[result.kind] += 1
                counts = False
                if result.kind is Kind.RATE_LIMIT:
                    limiter.limited(limits, sent, result.retry_after)
                elif result.kind is Kind.LOST:  # the endpoint did its part
                    limiter.served(sent)
                    counts = True
                else:
                    counts = limiter.failed(trial, sent, result.text)
        except EndpointDown as error:
            last = result if isinstance(result, Failure) else Failure(Kind.UNREACHABLE, str(error))
            return Attempt(last._replace(text=str(error)), attempts, seconds, down=True)
        finally:
            state.sent = False
        if result.kind is Kind.RATE_LIMIT:
            delay = policy.delay_after_limit(failures[Kind.RATE_LIMIT], result.retry_after)
            if limits.blamed:
                limited_seconds += took + delay
            if limits.times_blamed >= _MOST_LIMITS or limited_seconds > policy.max_elapsed:
                return Attempt(result, attempts, seconds)
        else:
            counted += counts
            delay = policy.delay(counted, result.retry_after)
            if counts:
                counted_seconds += took + delay
            # each new result is billed, and who lost two will lose a third
            lost_again = failures[Kind.LOST] > 1
            if counted >= policy.max_attempts or counted_seconds > policy.max_elapsed or lost_again:
                return Attempt(result, attempts, seconds)
        seconds += delay
        await asyncio.sleep(delay)
