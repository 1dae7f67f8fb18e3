"""What the latency server draws for a request: functions of seed, item and attempt, so that a run repeats."""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist

MEDIAN = 0.3
P99 = 3.0
"""Seconds; both are of the lognormal distribution of latencies."""

OK, RATE_LIMIT, SERVER_ERROR, RESET = "ok", "429", "500", "reset"
FAULTS = {RATE_LIMIT: 0.05, SERVER_ERROR: 0.02, RESET: 0.01}
"""The share of requests that each fault takes when faults are on."""

_NORMAL = NormalDist()
_SIGMA = math.log(P99 / MEDIAN) / _NORMAL.inv_cdf(0.99)


def latency(seed: int, item: str, attempt: int) -> float:
    """Seconds until the answer to request number ``attempt`` (from 1) for ``item``."""
    return MEDIAN * math.exp(_SIGMA * _NORMAL.inv_cdf(_uniform("latency", seed, item, attempt)))


def answer(seed: int, item: str, attempt: int) -> str:
    """``ok`` or the fault that this request meets when faults are on."""
    left = _uniform("answer", seed, item, attempt)
    for fault, share in FAULTS.items():
        if left < share:
            return fault
        left -= share
    return OK


def reply_number(item: str, replies: int) -> int:
    """Which of ``replies`` bodies an ``ok`` answer for ``item`` carries."""
    return int(_uniform("reply", item) * replies)


def _uniform(*key: object) -> float:
    """A number in (0, 1) that depends on ``key`` alone."""
    digest = hashlib.blake2b("|".join(map(str, key)).encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52
