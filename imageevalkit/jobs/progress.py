"""The progress of jobs, as JSON lines in one small file per job, and the speed computed from it.

A file is used instead of a pipe, because it also works for Slurm jobs on other nodes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.common.errors import CellFailure
from imageevalkit.store.jsonl import JsonlTail, JsonlWriter, Reader

_INTERVAL = 0.5
_UNCHANGED_INTERVAL = 10.0
_LOOK_EVERY = 0.5  # seconds


class Progress(NamedTuple):
    """A snapshot of one cell's stage.

    ``done`` of ``total`` items have an outcome. ``reused`` of them had it before this run and do not count
    towards the rate. ``failed`` of them are refused, failed or corrupt. ``note`` is a short remark ("loading
    model"). ``log`` is the present log file. ``cost`` is the USD spent on the cell in this run, earlier
    attempts of the job included (None: unknown). ``max_cost`` is the limit of the whole run.
    """

    cell: str
    stage: str
    done: int
    total: int
    reused: int = 0
    failed: int = 0
    note: str = ""
    log: str = ""
    time: float = 0.0
    cost: float | None = None
    max_cost: float | None = None


class ProgressWriter:
    """Writes snapshots to ``path``, at most two a second for each cell. Without ``path``, writes none."""

    def __init__(self, path: Path | None = None) -> None:
        self._writer = None
        if path:
            with contextlib.suppress(OSError, CellFailure):  # a missing progress display stops no job
                self._writer = JsonlWriter(path)
        self._last: dict[str, tuple[float, Progress]] = {}

    def report(self, progress: Progress, force: bool = False) -> None:
        """Write ``progress`` if half a second has passed since the cell's last snapshot, or with ``force``.

        An unchanged snapshot is written only every ten seconds, because long runs wait most of the time.
        """
        if self._writer is None:
            return
        now = time.monotonic()
        last, before = self._last.get(progress.cell, (-_UNCHANGED_INTERVAL, None))
        if force or now - last >= (_INTERVAL if progress != before else _UNCHANGED_INTERVAL):
            self._last[progress.cell] = (now, progress)
            with contextlib.suppress(CellFailure):  # a full disk of log/ must not stop the images
                self._writer.append(progress._replace(time=time.time())._asdict())


@contextlib.contextmanager
def watched(*looks: Callable[[], None]) -> Iterator[None]:
    """Call each of ``looks`` twice a second during the block, each in its own thread."""
    ended = threading.Event()

    def run(look: Callable[[], None]) -> None:
        with contextlib.suppress(CellFailure):  # a full disk: the code that writes results reports it
            while not ended.wait(_LOOK_EVERY):
                look()

    threads = [threading.Thread(target=run, args=[look], name="watch", daemon=True) for look in looks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


class ProgressReader:
    """Reads a job's progress file: each :meth:`read` reads only the lines appended since the last.

    A long job writes many thousand lines, and its launcher reads several times a second.
    """

    def __init__(self, path: Path) -> None:
        self._lines = JsonlTail(path, Reader(dict[str, Any]))
        self._snapshots: dict[str, Progress] = {}

    def read(self) -> dict[str, Progress]:
        """Returns the last snapshot of each cell by cell key."""
        for line in self._lines.read():
            with contextlib.suppress(TypeError):  # a line of another version
                progress = Progress(**line)
                self._snapshots[progress.cell] = progress
        return self._snapshots


_WINDOW = 60.0  # seconds: long enough for slow images, short enough to follow a change of speed


class Pace(NamedTuple):
    """A snapshot with its ``rate`` (items per second) and ``eta`` (seconds left); None if unknown."""

    progress: Progress
    rate: float | None
    eta: float | None


class PaceReader:
    """Reads the progress file of one running job.

    ``spent`` is the USD of all its cells so far, finished ones included; None while unknown. ``max_cost`` is
    the limit of the run, if there is one.
    """

    def __init__(self, path: Path) -> None:
        self._reader = ProgressReader(path)
        self._samples: dict[str, deque[tuple[float, int]]] = {}
        self._earlier: dict[str, Progress] = {}
        self._costs: dict[str, float] = {}
        self.max_cost: float | None = None

    def start_attempt(self) -> None:
        """Note that the job is (re)started: cells reported until now no longer run."""
        self.read()  # the cost in the last lines of the previous attempt counts
        self._earlier = dict(self._reader.read())
        self._samples.clear()

    @property
    def spent(self) -> float | None:
        return sum(self._costs.values()) if self._costs else None

    def read(self, ended: Container[str] = ()) -> list[Pace]:
        """Returns the running cells in the order in which they began, without those in ``ended``.

        If all reported cells are over, returns the last one. Empty before the first report.
        """
        snapshots = {c: p for c, p in self._reader.read().items() if self._earlier.get(c) != p}
        for progress in snapshots.values():
            self._take(progress)
        # samples are in the order in which the cells began
        running = [
            snapshots[cell]
            for cell in self._samples
            if snapshots[cell].done < snapshots[cell].total and cell not in ended
        ]
        if snapshots and not running:
            running = [max(snapshots.values(), key=lambda progress: progress.time)]
        return [self._pace(progress) for progress in running]

    def _take(self, progress: Progress) -> None:
        samples = self._samples.setdefault(progress.cell, deque())
        # reused items take no time and would make the estimate too short
        sample = (progress.time, progress.done - progress.reused)
        if len(samples) == 1 and sample[1] == samples[0][1]:
            samples.clear()  # the time to load the model does not count for the first item
        if not samples or sample[0] > samples[-1][0]:
            samples.append(sample)
        while len(samples) > 2 and samples[1][0] < sample[0] - _WINDOW:
            samples.popleft()
        if progress.cost is not None:
            # an attempt that counts from 0 again must not lower the sum
            self._costs[progress.cell] = max(progress.cost, self._costs.get(progress.cell, 0.0))
        if progress.max_cost is not None:
            self.max_cost = progress.max_cost

    def _pace(self, progress: Progress) -> Pace:
        samples = self._samples[progress.cell]
        (first, before), (last, after) = samples[0], samples[-1]
        rate = (after - before) / (last - first) or None if len(samples) > 1 else None
        left = (progress.total - progress.done) / rate - (time.time() - progress.time) if rate else None
        return Pace(progress, rate, None if left is None else max(0.0, left))
