"""How fast the cells of a running job are, and what they cost, from its progress file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container
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
    """Follows the progress file of one running job.

    ``spent`` is the USD of all its cells so far, those that have ended too, or None while no price is known;
    ``max_cost`` the bound of the run, if there is one.
    """

    def __init__(self, path: Path) -> None:
        self._reader = ProgressReader(path)
        self._samples: dict[str, deque[tuple[float, int]]] = {}
        self._earlier: dict[str, Progress] = {}
        self._costs: dict[str, float] = {}
        self.max_cost: float | None = None

    def start_attempt(self) -> None:
        """The job is started (again): what was reported until now is not running any more."""
        self._earlier = dict(self._reader.read())
        self._samples.clear()

    @property
    def spent(self) -> float | None:
        return sum(self._costs.values()) if self._costs else None

    def read(self, ended: Container[str] = ()) -> list[Pace]:
        """The cells under way, in the order in which they began; ``ended`` are those known to be over.

        When all that were reported are over, the last one stays to be seen. Empty before the first report.
        """
        snapshots = {c: p for c, p in self._reader.read().items() if self._earlier.get(c) != p}
        for progress in snapshots.values():
            self._take(progress)
        # the order of the samples is the order in which the cells began
        running = [
            snapshots[cell]
            for cell in self._samples
            if snapshots[cell].done < snapshots[cell].total and cell not in ended
        ]
        if snapshots and not running:
            running = [max(snapshots.values(), key=lambda progress: progress.time)]
        return [self._pace(progress) for progress in running]

    def _take(self, progress: Progress) -> None:
        self._add(self._samples.setdefault(progress.cell, deque()), progress)
        if progress.cost is not None:
            # money does not come back: an attempt that starts to count anew lowers no sum
            self._costs[progress.cell] = max(progress.cost, self._costs.get(progress.cell, 0.0))
        if progress.max_cost is not None:
            self.max_cost = progress.max_cost

    def _pace(self, progress: Progress) -> Pace:
        rate = _rate(self._samples[progress.cell])
        eta = None
        if rate:
            eta = max(0.0, (progress.total - progress.done) / rate - (time.time() - progress.time))
        return Pace(progress, rate, eta)

    @staticmethod
    def _add(samples: deque[tuple[float, int]], progress: Progress) -> None:
        # reused items cost nothing: they would promise an end that never comes
        sample = (progress.time, progress.done - progress.reused)
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
