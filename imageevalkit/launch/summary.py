"""How a run ended: per cell, per stage and per job, and the one exit status that follows from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from imageevalkit.atomic import write_atomic
from imageevalkit.errors import ExitStatus
from imageevalkit.jobs import COMPLETE, FAILED, INCOMPLETE, STALE, STATUS_OF_STATE

SKIPPED, BLOCKED, INTERRUPTED = "skipped", "blocked", "interrupted"
"""States only a launcher gives: a dependency failed; the plan held the cell back; the run was stopped."""

# A cell is as bad as its worst stage; a skipped stage has a worse one before it, whose reason is shown.
GRAVITY = (COMPLETE, INCOMPLETE, SKIPPED, INTERRUPTED, STALE, FAILED)
STATUS = STATUS_OF_STATE | dict.fromkeys((SKIPPED, BLOCKED, INTERRUPTED), ExitStatus.FAILED)


@dataclass(frozen=True)
class StageSummary:
    """One stage of one cell. ``attempts`` counts the starts of its job; 0 means that it never ran."""

    cell: str
    stage: str
    job: str
    state: str
    message: str = ""
    log: str = ""
    attempts: int = 0


@dataclass(frozen=True)
class JobSummary:
    """One job. ``exit`` is how its last attempt ended (``exit status 1``, ``SIGKILL``), "" if none did."""

    name: str
    stage: str
    state: str
    message: str
    exit: str
    attempts: int
    seconds: float
    log: str


@dataclass(frozen=True)
class CellSummary:
    """One cell: the state, message and log are those of the stage that decides."""

    cell: str
    state: str
    message: str
    log: str
    stages: list[StageSummary]


@dataclass(frozen=True)
class RunSummary:
    """A whole run. ``status`` is the exit status of the command."""

    status: ExitStatus
    seconds: float
    cells: list[CellSummary]
    jobs: list[JobSummary]

    def save(self, run_folder: Path) -> None:
        """Write ``summary.json``. Raises CellFailure when the disk is full."""
        raw = asdict(self) | {"status": int(self.status)}
        write_atomic(run_folder / "summary.json", json.dumps(raw, indent=1, ensure_ascii=False) + "\n")
