"""How long each item was for the server: the jobs of the list schedule that is the yardstick."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from perf.draws import OK
from perf.server_process import Answered


def job_lengths(items: Sequence[str], log: Sequence[Answered]) -> list[float]:
    """The seconds that each of ``items`` took the server, all requests up to its first good answer."""
    lengths: dict[str, float] = defaultdict(float)
    done = set()
    for line in sorted(log, key=lambda line: line.attempt):
        if line.item not in done:
            lengths[line.item] += line.latency
        if line.answer == OK:
            done.add(line.item)
    return [lengths[item] for item in items]
