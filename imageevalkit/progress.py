"""How a job tells its launcher how far it is: JSON lines in one small file per job; and how fast that is.

A file, not a pipe: it works the same when the launcher is Slurm and the job runs on another node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.cell.jsonl import JsonlTail, JsonlWriter, Shape
from imageevalkit.errors import CellFailure

_INTERVAL = 0.5
_UNCHANGED_INTERVAL = 10.0
_LOOK_EVERY = 0.5  # seconds


class Progress(NamedTuple):
    """A snapshot of one cell's stage.

    ``done`` of ``total`` items have an outcome; ``reused`` of them had it before this run (they do not count
    towards the rate); ``failed`` of them are refused, failed or corrupt. ``note`` is a short live remark
    ("loading model"). ``log`` is the log file being written. ``cost`` is the USD spent on the cell in this
    run, earlier attempts of the job included (None: the price is unknown), and ``max_cost`` the bound of the
    whole run.
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
    """Reports snapshots to ``path``, at most two a second of each cell; silent without one: nobody asked for them."""

    def __init__(self, path: Path | None = None) -> None:
        self._writer = None
        if path:
            with contextlib.suppress(OSError, CellFailure):  # what it shows stops nothing
                self._writer = JsonlWriter(path)
        self._last: dict[str, tuple[float, Progress]] = {}

    def report(self, progress: Progress, force: bool = False) -> None:
        """Write ``progress`` now (``force``) or when half a second has passed since the cell's last one.

        What has not changed is written every ten seconds only: a run of many hours waits most of the time.
        """
        if self._writer is None:
            return
        now = time.monotonic()
        last, before = self._last.get(progress.cell, (-_UNCHANGED_INTERVAL, None))
        if force or now - last >= (_INTERVAL if progress != before else _UNCHANGED_INTERVAL):
            self._last[progress.cell] = (now, progress)
            with contextlib.suppress(CellFailure):  # a full disk of log/ is no reason to make no images
                self._writer.append(progress._replace(time=time.time())._asdict())


@contextlib.contextmanager
def watched(*looks: Callable[[], None]) -> Iterator[None]:
    """A block beside which each of ``looks`` is called twice a second, from a thread of its own."""
    ended = threading.Event()

    def run(look: Callable[[], None]) -> None:
        with contextlib.suppress(CellFailure):  # a full disk: who writes what counts meets it too
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
    """Follows a job's progress file: each :meth:`read` takes only what was appended since the last one.

    A job of many hours writes many thousand lines, and its launcher looks several times a second.
    """

    def __init__(self, path: Path) -> None:
        self._lines = JsonlTail(path, Shape[dict[str, Any]]({}))
        self._snapshots: dict[str, Progress] = {}

    def read(self) -> dict[str, Progress]:
        """The last snapshot of each cell, by cell key; empty when there is none."""
        for line in self._lines.read():
            with contextlib.suppress(TypeError):  # of another version
                progress = Progress(**line)
                self._snapshots[progress.cell] = progress
        return self._snapshots


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
        self.read()  # the money of its last words counts
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
        samples = self._samples.setdefault(progress.cell, deque())
        # reused items cost nothing: they would promise an end that never comes
        sample = (progress.time, progress.done - progress.reused)
        if len(samples) == 1 and sample[1] == samples[0][1]:
            samples.clear()  # loading the model is not a slow first item
        if not samples or sample[0] > samples[-1][0]:
            samples.append(sample)
        while len(samples) > 2 and samples[1][0] < sample[0] - _WINDOW:
            samples.popleft()
        if progress.cost is not None:
            # money does not come back: an attempt that starts to count anew lowers no sum
            self._costs[progress.cell] = max(progress.cost, self._costs.get(progress.cell, 0.0))
        if progress.max_cost is not None:
            self.max_cost = progress.max_cost

    def _pace(self, progress: Progress) -> Pace:
        samples = self._samples[progress.cell]
        (first, before), (last, after) = samples[0], samples[-1]
        rate = (after - before) / (last - first) or None if len(samples) > 1 else None
        left = (progress.total - progress.done) / rate - (time.time() - progress.time) if rate else None
        return Pace(progress, rate, None if left is None else max(0.0, left))
