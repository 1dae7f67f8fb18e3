"""How a job tells its launcher how far it is: JSON lines in one small file per job.

A file, not a pipe: it works the same when the launcher is Slurm and the job runs on another node.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.jsonl import JsonlWriter, read_jsonl

PROGRESS_ENV = "IMAGEEVALKIT_PROGRESS"
_INTERVAL = 0.5


class Progress(NamedTuple):
    """A snapshot of one cell's stage.

    ``done`` of ``total`` items have an outcome; ``reused`` of them had it before this run (they do not count
    towards the rate); ``failed`` of them are refused, failed or corrupt. ``note`` is a short live remark
    ("loading model"). ``log`` is the log file being written.
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


class ProgressWriter:
    """Reports snapshots, at most two a second; silent when no launcher asked for them."""

    def __init__(self) -> None:
        path = os.environ.get(PROGRESS_ENV)
        self._writer = JsonlWriter(Path(path)) if path else None
        self._last = 0.0

    def report(self, progress: Progress, force: bool = False) -> None:
        """Write ``progress`` now (``force``) or when half a second has passed since the last one."""
        now = time.monotonic()
        if self._writer and (force or now - self._last >= _INTERVAL):
            self._last = now
            self._writer.append(progress._replace(time=time.time())._asdict())


def latest(path: Path) -> dict[str, Progress]:
    """The last snapshot of each cell in a job's progress file, by cell key; empty when there is none."""
    snapshots: dict[str, Progress] = {}
    for record in read_jsonl(path):
        progress = _parse(record)
        if progress:
            snapshots[progress.cell] = progress
    return snapshots


def _parse(record: dict[str, Any]) -> Progress | None:
    try:
        return Progress(**record)
    except TypeError:
        return None
