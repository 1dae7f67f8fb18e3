"""The yardstick of both API measurements: the least wall time that a client with N workers can need."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def makespan(lengths: Iterable[float], workers: int) -> float:
    """Seconds that ``workers`` need for jobs of these ``lengths``: each job in turn to the first free worker.

    List scheduling (Graham 1966) without any time between jobs; 0 when there are none.
    """
    free = [0.0] * workers
    end = 0.0
    for length in lengths:
        done = free[0] + length
        heapq.heapreplace(free, done)
        end = max(end, done)
    return end
