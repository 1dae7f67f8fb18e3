"""Asking again: bounded by count and time, with full jitter, through the limiter that all requests share."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.limiter import EndpointDown, Limiter
from imageevalkit.api.outage import Trial

T = TypeVar("T")

_LONGEST_BACKOFF = 60.0
# A server may ask for an hour; after two minutes one more question is no burden, and bounds still hold.
_LONGEST_RETRY_AFTER = 120.0
_MOST_DOUBLINGS = 16
# its own generator: a model's seed must not depend on how often a server failed, nor the other way round
_jitter = random.Random()


class RetryPolicy(NamedTuple):
    """``max_elapsed`` and ``backoff`` (the ceiling of the first wait) are in seconds.

    ``max_elapsed`` bounds the requests of one item and the waits between them. Neither bound counts what says
    nothing about the item: rate limits, failures during an outage, waiting for a slot; those end with
    the limiter's own bound.
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
        return min(asked or 0.0, _LONGEST_RETRY_AFTER) + _jitter.uniform(0.0, ceiling)

    def delay_after_limit(self, limits: int, asked: float | None) -> float:
        """Seconds to wait after that many 429s: a little more than the server ``asked`` (capped).

        The limiter sees to it that not all come back at once. A server that asks for nothing, or for 0 s, gets
        the growing waits of :meth:`delay`.
        """
        if not asked:
            return self.delay(limits, None)
        return min(asked, _LONGEST_RETRY_AFTER) + _jitter.uniform(0.0, 0.1 * min(asked, 1.0))


@dataclass(frozen=True)
class Tried(Generic[T]):
    """The value or the last failure, the number of requests, and the seconds spent on them and between them.

    ``down``: given up because the endpoint was, not because of the item.
    """

    result: T | Failure
    attempts: int
    seconds: float
    down: bool = False


async def retry(ask: Callable[[], Awaitable[T | Failure]], policy: RetryPolicy, limiter: Limiter) -> Tried[T]:
    """Call ``ask``, each time in a slot of ``limiter``, until it succeeds, fails for good, or a bound is met."""
    loop = asyncio.get_running_loop()
    trial, failures, seconds = Trial(), Counter[Kind](), 0.0
    attempts = counted = 0
    result: T | Failure | None = None
    while True:
        try:
            async with limiter.slot(attempts) as sent:
                attempts += 1
                result = await ask()
                seconds += loop.time() - sent
                if not isinstance(result, Failure) or not result.kind.retried:
                    limiter.served(sent)
                    return Tried(result, attempts, seconds)
                failures[result.kind] += 1
                if result.kind is Kind.RATE_LIMIT:
                    limiter.limited(sent, result.retry_after)
                elif result.kind is Kind.LOST_IMAGE:  # the endpoint did its part
                    limiter.served(sent)
                    counted += 1
                else:
                    counted += limiter.failed(trial, sent, result.text)
        except EndpointDown as error:
            last = result if isinstance(result, Failure) else Failure(Kind.UNREACHABLE, str(error))
            return Tried(last._replace(text=str(error)), attempts, seconds, down=True)
        # each new image is billed, and a file host that lost two will lose a third
        if counted >= policy.max_attempts or failures[Kind.LOST_IMAGE] > 1:
            return Tried(result, attempts, seconds)
        if result.kind is Kind.RATE_LIMIT:
            await asyncio.sleep(policy.delay_after_limit(failures[Kind.RATE_LIMIT], result.retry_after))
            continue
        delay = policy.delay(counted, result.retry_after)
        seconds += delay
        if seconds > policy.max_elapsed:
            return Tried(result, attempts, seconds)
        await asyncio.sleep(delay)
