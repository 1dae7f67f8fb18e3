"""How a job tells its launcher how far it is: JSON lines in one small file per job.

A file, not a pipe: it works the same when the launcher is Slurm and the job runs on another node.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from imageevalkit.cell.jsonl import JsonlWriter, parse
from imageevalkit.errors import CellFailure

PROGRESS_ENV = "IMAGEEVALKIT_PROGRESS"
_INTERVAL = 0.5
_UNCHANGED_INTERVAL = 10.0


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
    """Reports snapshots, at most two a second of each cell; silent when no launcher asked for them."""

    def __init__(self) -> None:
        path = os.environ.get(PROGRESS_ENV)
        self._writer = None
        if path:
            with contextlib.suppress(OSError, CellFailure):  # what it shows stops nothing
                self._writer = JsonlWriter(Path(path))
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


class ProgressReader:
    """Follows a job's progress file: each :meth:`read` takes only what was appended since the last one.

    A job of many hours writes many thousand lines, and its launcher looks several times a second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._snapshots: dict[str, Progress] = {}

    def read(self) -> dict[str, Progress]:
        """The last snapshot of each cell, by cell key; empty when there is none."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return self._snapshots
        whole, newline, _ = data.rpartition(b"\n")  # a line still being written is left for the next read
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            progress = _parse(line)
            if progress:
                self._snapshots[progress.cell] = progress
        return self._snapshots


def _parse(line: bytes) -> Progress | None:
    try:
        return Progress(**parse(line))
    except (ValueError, TypeError):
        return None  # the torn line of a killed writer
