"""The yardstick of both API measurements: the least wall time that a client with N workers can need."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence

from perf.draws import OK
from perf.server_process import AnsweredRequest


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


def job_lengths(items: Sequence[str], log: Sequence[AnsweredRequest]) -> list[float]:
    """The seconds that each of ``items`` took the server, all requests up to its first good answer."""
    lengths: dict[str, float] = defaultdict(float)
    done = set()
    for line in sorted(log, key=lambda line: line.attempt):
        if line.item not in done:
            lengths[line.item] += line.latency
        if line.answer == OK:
            done.add(line.item)
    return [lengths[item] for item in items]
