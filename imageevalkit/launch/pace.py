"""How fast a running job is, from its progress file."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from imageevalkit.progress import Progress, ProgressReader

_WINDOW = 60.0  # seconds: long enough for slow images, short enough to follow a change of speed


class Pace(NamedTuple):
    """A snapshot with its ``rate`` (items per second) and ``eta`` (seconds left); None while unknown."""

    progress: Progress
    rate: float | None
    eta: float | None


class PaceReader:
    """Follows the progress file of one running job."""

    def __init__(self, path: Path) -> None:
        self._reader = ProgressReader(path)
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def read(self) -> Pace | None:
        """The pace of the cell reported last, or None before the first report."""
        snapshots = self._reader.read().values()
        for progress in snapshots:
            self._add(self._samples.setdefault(progress.cell, deque()), progress)
        if not snapshots:
            return None
        current = max(snapshots, key=lambda progress: progress.time)
        rate = _rate(self._samples[current.cell])
        eta = None
        if rate:
            eta = max(0.0, (current.total - current.done) / rate - (time.time() - current.time))
        return Pace(current, rate, eta)

    @staticmethod
    def _add(samples: deque[tuple[float, int]], progress: Progress) -> None:
        # reused items cost nothing: they would promise an end that never comes
        sample = (progress.time, progress.done - progress.reused)
        if samples and sample[1] < samples[-1][1]:
            samples.clear()  # the job was started again
        if len(samples) == 1 and sample[1] == samples[0][1]:
            samples.clear()  # loading the model is not a slow first item
        if not samples or sample[0] > samples[-1][0]:
            samples.append(sample)
        while len(samples) > 2 and samples[1][0] < sample[0] - _WINDOW:
            samples.popleft()


def _rate(samples: deque[tuple[float, int]]) -> float | None:
    if len(samples) < 2:
        return None
    (first, before), (last, after) = samples[0], samples[-1]
    return (after - before) / (last - first) or None
