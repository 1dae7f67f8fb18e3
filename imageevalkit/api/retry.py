"""Asking again: bounded by count and time, with full jitter."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from imageevalkit.api.failures import Failure

T = TypeVar("T")

_LONGEST_BACKOFF = 60.0
# A server may ask for an hour; after two minutes one more question is no burden, and bounds still hold.
_LONGEST_RETRY_AFTER = 120.0
# its own generator: a model's seed must not depend on how often a server failed, nor the other way round
_jitter = random.Random()


class RetryPolicy(NamedTuple):
    """``max_elapsed`` and ``backoff`` (the ceiling of the first wait) are in seconds.

    No attempt starts later than ``max_elapsed`` after the first one.
    """

    max_attempts: int = 6
    max_elapsed: float = 600.0
    backoff: float = 2.0

    def delay(self, attempt: int, asked: float | None) -> float:
        """Seconds to wait after failed ``attempt`` (from 1): never less than the server ``asked`` (capped).

        Full jitter: uniform in [0, min(cap, backoff · 2^(attempt-1))]
        (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
        """
        ceiling = min(_LONGEST_BACKOFF, self.backoff * 2 ** (attempt - 1))
        return min(asked or 0.0, _LONGEST_RETRY_AFTER) + _jitter.uniform(0.0, ceiling)


async def retry(ask: Callable[[], Awaitable[T | Failure]], policy: RetryPolicy) -> tuple[T | Failure, int]:
    """Call ``ask`` until it succeeds, fails for good, or the policy's bounds are met.

    Returns the value or the last failure, and the number of calls.
    """
    start = time.monotonic()
    attempts = 0
    while True:
        attempts += 1
        result = await ask()
        if not isinstance(result, Failure) or not result.kind.retried:
            return result, attempts
        delay = policy.delay(attempts, result.retry_after)
        elapsed = time.monotonic() - start
        if attempts >= policy.max_attempts or elapsed + delay > policy.max_elapsed:
            spent = f"{attempts} attempt{'s' * (attempts > 1)} in {elapsed:.0f} s"
            return result._replace(text=f"{result.text} (gave up after {spent})"), attempts
        await asyncio.sleep(delay)
