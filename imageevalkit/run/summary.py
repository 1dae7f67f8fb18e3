"""The end of a run: states and summaries of its stages, jobs and cells."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import ExitStatus
from imageevalkit.jobs.plan import COMPLETE, FAILED, INCOMPLETE, STALE, STATUS_OF_STATE

SKIPPED, BLOCKED, INTERRUPTED = "skipped", "blocked", "interrupted"
"""States that only a launcher sets: a dependency failed; the plan blocks the cell; the run was stopped."""

# From best to worst: a cell has the state of its worst stage. SKIPPED is better than FAILED, so that the
# message of the failed stage is shown, not that of the stage skipped after it.
GRAVITY = (COMPLETE, INCOMPLETE, SKIPPED, INTERRUPTED, STALE, FAILED)
STATUS = STATUS_OF_STATE | dict.fromkeys((SKIPPED, BLOCKED, INTERRUPTED), ExitStatus.FAILED)


@dataclass(frozen=True)
class StageSummary:
    """The end of one stage of one cell. ``attempts`` counts the starts of its job; 0: the job never ran.

    ``is_empty``: a shard produced nothing. A cell whose shards are all empty has failed.
    """

    cell: str
    stage: str
    job: str
    state: str
    message: str = ""
    log: str = ""
    attempts: int = 0
    is_empty: bool = False


@dataclass(frozen=True)
class JobSummary:
    """The end of one job. ``exit`` is how its last attempt ended (``exit status 1``, ``SIGKILL``) or ""."""

    name: str
    stage: str
    state: str
    message: str
    exit: str = ""
    attempts: int = 0
    seconds: float = 0.0
    log: str = ""


@dataclass(frozen=True)
class CellSummary:
    """The end of one cell. Its state, message and log come from its worst stage.

    ``cause`` is the message of the first earlier stage that is not complete: why images are missing.
    """

    cell: str
    state: str
    message: str
    log: str
    stages: list[StageSummary]
    cause: str = ""


@dataclass(frozen=True)
class RunSummary:
    """The end of a run. ``status`` is the exit status of the command."""

    status: ExitStatus
    seconds: float
    cells: list[CellSummary]
    jobs: list[JobSummary]

    def save(self, run_folder: Path) -> None:
        """Write ``summary.json``. Raises CellFailure if the disk is full."""
        raw = asdict(self) | {"status": int(self.status)}
        write_atomic(run_folder / "summary.json", json.dumps(raw, indent=1, ensure_ascii=False) + "\n")
