"""The books of a run: which stage of which cell, and which job, has ended, and how."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from imageevalkit import logs
from imageevalkit.cell import log_root
from imageevalkit.errors import CellFailure, ExitStatus, worst
from imageevalkit.jobs import (
    COMPLETE,
    FAILED,
    INCOMPLETE,
    USABLE,
    Job,
    Outcome,
    Plan,
    cell_of,
    outcome_path,
    read_outcome,
    write_outcome,
)
from imageevalkit.launch.display import Display
from imageevalkit.launch.process import describe_exit, last_line, log_of, progress_path
from imageevalkit.launch.summary import (
    BLOCKED,
    GRAVITY,
    INTERRUPTED,
    STATUS,
    CellSummary,
    JobSummary,
    RunSummary,
    StageSummary,
)

_JOB_STATES: dict[int | None, str] = {ExitStatus.COMPLETE: COMPLETE, ExitStatus.INCOMPLETE: INCOMPLETE}


class Verdict(NamedTuple):
    """Whether a job can start now; ``skip`` says why it never will."""

    ready: bool
    skip: str = ""


class Ending(NamedTuple):
    """How a started job ended.

    ``status`` is its exit status, or None when there is none, for the reason ``problem``. ``stopped_by``
    names the signal that stopped the run, if any.
    """

    attempts: int
    seconds: float
    status: int | None
    problem: str = ""
    stopped_by: str = ""


class Ledger:
    """Reads the outcomes that jobs leave, draws the conclusions, and tells ``display`` of each end."""

    def __init__(self, plan: Plan, display: Display) -> None:
        self._plan = plan
        self._folder = Path(plan.run_folder)
        self._display = display
        self._stages: dict[tuple[str, str], StageSummary] = {}
        self._jobs: dict[str, JobSummary] = {}
        self._jobs_of_cell = {cell: [job for job in plan.jobs if cell in _owed(job)] for cell in plan.cells}
        # a cell that only the report looks at is nothing this run works on
        self._cells = [cell for cell in plan.cells if cell in plan.blocked or self._jobs_of_cell[cell]]

    def forget_earlier_run(self) -> None:
        """Remove what an earlier run of the same plan left: it must not be taken for this one's."""
        for job in self._plan.jobs:
            for cell in job.cells:
                outcome_path(self._folder, cell_of(cell), job.stage).unlink(missing_ok=True)
            progress_path(self._plan, job).unlink(missing_ok=True)

    def verdict(self, job: Job) -> Verdict:
        """Whether the jobs that ``job`` must run after let it start."""
        if job.always:
            return Verdict(all(name in self._jobs for name in job.after))
        ready, lost = True, {}
        for cell in job.cells:
            for before in map(self._plan.job, job.after):
                stage = self._stages.get((before.name, cell))
                if cell not in _owed(before) or (stage is not None and stage.state in USABLE):
                    continue
                # only once it has ended: an attempt that failed a cell may be followed by a better one
                if stage is not None and before.name in self._jobs:
                    lost[cell] = f"not started: {before.stage} of {cell} is {stage.state}"
                else:
                    ready = False
        if lost and not job.partial:
            return Verdict(False, next(iter(lost.values())))
        if lost and len(lost) == len(job.cells):
            return Verdict(False, "not started: the stage before it failed")
        return Verdict(ready)

    def collect(self, job: Job, attempt: int) -> None:
        """Take in the outcomes that the running ``job`` has left so far."""
        for cell in _owed(job):
            outcome = None if (job.name, cell) in self._stages else self._outcome(job, cell)
            if outcome is not None:
                self._record(job, cell, outcome, attempt, log_of(job, cell))

    def ended_in(self, job: Job, attempt: int) -> set[str]:
        """The cells whose outcome this ``attempt`` of the running ``job`` has left so far."""
        stages = ((cell, self._stages.get((job.name, cell))) for cell in _owed(job))
        return {cell for cell, stage in stages if stage is not None and stage.attempts == attempt}

    def lacks_outcomes(self, job: Job) -> bool:
        """Whether ``job`` still owes the outcome of a cell."""
        return any(self._outcome(job, cell) is None for cell in _owed(job))

    def job_ended(self, job: Job, end: Ending) -> None:
        """A started job has ended for good: a cell whose outcome it owes has failed."""
        how = "" if end.status is None else describe_exit(end.status)
        if how == "SIGKILL" and not end.stopped_by:  # else it is the guard's, for what SIGTERM did not end
            how = "SIGKILL (out of memory?)"
        log = log_of(job)
        # what a process that several models share said last is about one of them, and nobody knows which
        shared = len({cell_of(cell).model for cell in job.cells}) > 1
        said = "" if end.status is None or shared else last_line(log)
        told = (end.problem or how) + (f": {said}" if said else "")
        lacks_outcomes = self.lacks_outcomes(job)
        why = f": {logs.full_words(log_root())}" if lacks_outcomes and logs.is_full(self._folder) else ""
        for cell in _owed(job):
            outcome = self._outcome(job, cell)
            if outcome is None and end.stopped_by:
                outcome = Outcome(INTERRUPTED, end.problem or f"stopped by {end.stopped_by}")
            elif outcome is None:
                outcome = Outcome(FAILED, told if end.status is None else f"left no outcome{why}, {told}")
                with contextlib.suppress(CellFailure):  # a full disk: only the report knows less
                    write_outcome(self._folder, cell_of(cell), job.stage, outcome)
            self._record(job, cell, outcome, end.attempts, log_of(job, cell))
        state, message = _JOB_STATES.get(end.status, FAILED), ""
        if end.stopped_by and (lacks_outcomes or state == FAILED):
            state, message = INTERRUPTED, end.problem
        elif lacks_outcomes:
            state = FAILED  # its cells tell why
        elif state == FAILED and all(self._stages[job.name, cell].state in USABLE for cell in _owed(job)):
            message = f"{told} (although every cell has its outcome)" if _owed(job) else told
        self._finish(JobSummary(job.name, job.stage, state, message, how, end.attempts, end.seconds, log))

    def never_started(self, job: Job, state: str, message: str) -> None:
        """``job`` will not be started; ``message`` says why."""
        for cell in _owed(job):
            self._record(job, cell, Outcome(state, message), 0, "")
        # its cells tell why, if it has any
        self._finish(JobSummary(job.name, job.stage, state, "" if _owed(job) else message, "", 0, 0.0, ""))

    def cell_states(self) -> list[str | None]:
        """The state of each cell of the run; None while it has stages to go."""
        return [self._cell(cell).state if self._is_over(cell) else None for cell in self._cells]

    def summarize(self, seconds: float, stopped: ExitStatus | None) -> RunSummary:
        """The summary of the whole run, once every job has ended; ``stopped`` if a signal ended it."""
        cells = [self._cell(cell) for cell in self._cells]
        jobs = [self._jobs[job.name] for job in self._plan.jobs]
        # a job may end badly although every outcome is there, and the report has no cell at all
        states = [*(cell.state for cell in cells), *(job.state for job in jobs)]
        statuses = [STATUS[state] for state in states]
        return RunSummary(worst([*statuses, stopped or ExitStatus.COMPLETE]), seconds, cells, jobs)

    def _is_over(self, cell: str) -> bool:
        return cell in self._plan.blocked or len(self._stages_of(cell)) == len(self._jobs_of_cell[cell])

    def _cell(self, cell: str) -> CellSummary:
        stages, blocked = self._stages_of(cell), self._plan.blocked.get(cell)
        if blocked is not None:
            return CellSummary(cell, BLOCKED, blocked, "", stages)
        gravest = max((stage.state for stage in stages), key=GRAVITY.index)
        deciding = [stage for stage in stages if stage.state == gravest]
        # of bad stages the first is the cause, of good ones the last is the result
        stage = deciding[-1 if gravest in USABLE else 0]
        message = stage.message
        if message and gravest not in USABLE:
            message = f"{stage.stage}: {message}"
        return CellSummary(cell, gravest, message, stage.log, stages)

    def _stages_of(self, cell: str) -> list[StageSummary]:
        keys: Iterable[tuple[str, str]] = ((job.name, cell) for job in self._jobs_of_cell[cell])
        return [self._stages[key] for key in keys if key in self._stages]

    def _outcome(self, job: Job, cell: str) -> Outcome | None:
        return read_outcome(self._folder, cell_of(cell), job.stage)

    def _record(self, job: Job, cell: str, outcome: Outcome, attempts: int, log: str) -> None:
        stage = StageSummary(cell, job.stage, job.name, outcome.state, outcome.message, log, attempts)
        before = self._stages.get((job.name, cell))
        self._stages[job.name, cell] = stage
        if before is None or (before.state, before.message) != (stage.state, stage.message):
            self._display.stage_ended(stage)

    def _finish(self, ended: JobSummary) -> None:
        self._jobs[ended.name] = ended
        if ended.attempts or ended.message:
            self._display.job_ended(ended)


def _owed(job: Job) -> list[str]:
    """The cells whose outcome ``job`` owes: the report looks at many and owes none."""
    return [] if job.always else job.cells
