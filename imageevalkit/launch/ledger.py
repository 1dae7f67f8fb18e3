"""The books of a run: which stage of which cell, and which job, has ended, and how; the status that follows from it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from imageevalkit import logs
from imageevalkit.atomic import write_atomic
from imageevalkit.cell import log_root
from imageevalkit.errors import CellFailure, ExitStatus, complain, worst
from imageevalkit.jobs import (
    COMPLETE,
    FAILED,
    INCOMPLETE,
    STALE,
    STATUS_OF_STATE,
    USABLE,
    Job,
    Outcome,
    Plan,
    cell_of,
    opened_path,
    outcome_path,
    outcomes_of,
    read_outcome,
    write_outcome,
)
from imageevalkit.launch.process import describe_exit, last_line, log_of
from imageevalkit.progress import PaceReader
from imageevalkit.requests.batches import not_ended
from imageevalkit.text import dollars

if TYPE_CHECKING:
    from imageevalkit.launch.display import Display

SKIPPED, BLOCKED, INTERRUPTED = "skipped", "blocked", "interrupted"
"""States only a launcher gives: a dependency failed; the plan held the cell back; the run was stopped."""

# A cell is as bad as its worst stage; a skipped stage has a worse one before it, whose reason is shown.
GRAVITY = (COMPLETE, INCOMPLETE, SKIPPED, INTERRUPTED, STALE, FAILED)
STATUS = STATUS_OF_STATE | dict.fromkeys((SKIPPED, BLOCKED, INTERRUPTED), ExitStatus.FAILED)


@dataclass(frozen=True)
class StageSummary:
    """One stage of one cell. ``attempts`` counts the starts of its job; 0 means that it never ran. ``is_empty``: it has
    made nothing, which only matters where no other shard of the cell has."""

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
    """One job. ``exit`` is how its last attempt ended (``exit status 1``, ``SIGKILL``), "" if none did."""

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
    """One cell: the state, message and log are those of the stage that decides.

    ``cause`` is what the first stage before it says that is not complete: why images are missing, for one.
    """

    cell: str
    state: str
    message: str
    log: str
    stages: list[StageSummary]
    cause: str = ""


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


_JOB_STATES: dict[int | None, str] = {ExitStatus.COMPLETE: COMPLETE, ExitStatus.INCOMPLETE: INCOMPLETE}


# seconds; a folder whose time has changed is looked at earlier
_LOOK_EVERY = 1.0


class Verdict(NamedTuple):
    """Whether a job can start now, or at least follow the jobs before it; ``skip`` says why it never will."""

    ready: bool
    skip: str = ""
    follows: bool = False


class Ledger:
    """Reads the outcomes that jobs leave, draws the conclusions, and tells ``display`` of each end."""

    def __init__(self, plan: Plan, display: Display) -> None:
        self._plan = plan
        self._folder = Path(plan.run_folder)
        self._display = display
        self._stages: dict[tuple[str, str], StageSummary] = {}
        self._jobs: dict[str, JobSummary] = {}
        self._opened = set[str]()
        self._job = {job.name: job for job in (*plan.jobs, *plan.parts)}
        self._jobs_of_cell: dict[str, list[Job]] = {cell: [] for cell in plan.cells}
        # the files that jobs leave, by name: outcomes, and the marks of cells that are opened
        self._owing: dict[str, tuple[Job, str]] = {}
        self._opening = {opened_path(self._folder, cell_of(cell)).name: cell for cell in plan.cells}
        for job in plan.jobs:
            for cell in job.owed:
                self._jobs_of_cell[cell].append(job)
                self._owing[outcome_path(self._folder, cell_of(cell), job.step).name] = (job, cell)
        self._files = set[str]()
        self._folder_time, self._look_at = -1, 0.0
        self._verdicts: dict[str, Verdict] = {}  # those that nothing has changed since
        # a cell that only the report looks at is nothing this run works on
        self._cells = [cell for cell in plan.cells if cell in plan.blocked or self._jobs_of_cell[cell]]
        # kept, as a display asks for those of thousands several times a second
        self._states = {cell: BLOCKED if cell in plan.blocked else None for cell in self._cells}

    def forget_earlier_run(self) -> None:
        """Remove what an earlier run of the same plan left: it must not be taken for this one's."""
        for job in self._plan.jobs:
            for cell in job.cells:
                outcome_path(self._folder, cell_of(cell), job.step).unlink(missing_ok=True)
                opened_path(self._folder, cell_of(cell)).unlink(missing_ok=True)
            self._plan.progress_path(job).unlink(missing_ok=True)

    def forget_failures(self, job: Job) -> None:
        """Remove the outcomes of ``job`` that are not usable: it is submitted again."""
        for key in job.owed:
            path = outcome_path(self._folder, cell_of(key), job.step)
            outcome = self._outcome(job, key)
            if outcome and outcome.state not in USABLE:
                path.unlink(missing_ok=True)
            stage = self._stages.get((job.name, key))
            if stage and stage.state not in USABLE:
                del self._stages[job.name, key]
                self._files.discard(path.name)
                self._states[key] = None
        self._verdicts.clear()

    def verdict(self, job: Job) -> Verdict:
        """Whether the jobs that ``job`` must run after let it start."""
        if job.name not in self._verdicts:
            self._verdicts[job.name] = self._judged(job)
        return self._verdicts[job.name]

    def _judged(self, job: Job) -> Verdict:
        if job.always:
            return Verdict(all(name in self._jobs for name in job.after))
        ready, follows, lost = True, job.follows, {}
        for cell in job.cells:
            for before in (self._job[name] for name in job.after):
                stage = self._stages.get((before.name, cell))
                if before not in self._jobs_of_cell[cell] or (stage is not None and stage.state in USABLE):
                    continue
                # only once it has ended: an attempt that failed a cell may be followed by a better one
                if stage is not None and before.name in self._jobs:
                    lost[cell] = f"not started: {before.stage} of {cell} is {stage.state}"
                else:
                    ready = False
                    follows &= stage is None and cell in self._opened
        if lost and not job.partial:
            return Verdict(False, next(iter(lost.values())))
        if lost and len(lost) == len(job.cells):
            return Verdict(False, "not started: the stage before it failed")
        return Verdict(ready, follows=follows and not ready)

    def collect(self, attempts: Mapping[str, int]) -> None:
        """Take in what running jobs have left so far; ``attempts`` are theirs, by name."""
        for name in self._new_files():
            if cell := self._opening.get(name):
                self._opened.add(cell)
                self._verdicts.clear()
            elif name in self._owing:
                job, cell = self._owing[name]
                attempt = attempts.get(job.name)
                if attempt is None or (job.name, cell) in self._stages:
                    continue
                if outcome := self._outcome(job, cell):
                    self._record(job, cell, outcome, attempt, log_of(job, cell))

    def _new_files(self) -> list[str]:
        """The names of the files that jobs have left since the last time.

        There may be thousands of cells, and a network between: one look at the folder stands for one at each file.
        """
        folder, now = outcomes_of(self._folder), time.monotonic()
        try:
            changed = folder.stat().st_mtime_ns
            # a time is as coarse as the kernel's clock, and some network disks keep none of folders
            if changed == self._folder_time and now < self._look_at:
                return []
            new = {*os.listdir(folder)} - self._files  # noqa: PTH208 - paths of thousands take three times as long
        except OSError:  # none yet, or one that does not answer now
            return []
        self._folder_time, self._look_at = changed, now + _LOOK_EVERY
        self._files |= new
        return sorted(new)

    def ended_in(self, job: Job, attempt: int) -> set[str]:
        """The cells whose outcome this ``attempt`` of the running ``job`` has left so far."""
        stages = ((cell, self._stages.get((job.name, cell))) for cell in job.owed)
        return {cell for cell, stage in stages if stage is not None and stage.attempts == attempt}

    def lacks_outcomes(self, job: Job) -> bool:
        """Whether ``job`` still owes the outcome of a cell."""
        return any(self._outcome(job, cell) is None for cell in job.owed)

    def job_ended(
        self, job: Job, attempts: int, seconds: float, status: int | None, problem: str, stopped_by: str
    ) -> set[str]:
        """A started job has ended for good: a cell whose outcome it owes has failed. Returns those cells of which no
        other process will see it, as the run folder takes no file.

        ``status`` is None where there is none, for the reason ``problem``; ``stopped_by`` names the signal that stopped
        the run, if any.
        """
        how = "" if status is None else describe_exit(status)
        if how == "SIGKILL" and not stopped_by:  # else it is the guard's, for what SIGTERM did not end
            how = "SIGKILL (out of memory?)"
        log = log_of(job)
        # what a process that several models share said last is about one of them, and nobody knows which
        shared = len({cell_of(cell).model for cell in job.cells}) > 1
        said = "" if status is None or shared else last_line(log)
        told = (problem or how) + (f": {said}" if said else "")
        lacks_outcomes = self.lacks_outcomes(job)
        why = f": {logs.full_words(log_root())}" if lacks_outcomes and logs.is_full(self._folder) else ""
        untold = set[str]()
        for cell in job.owed:
            outcome = self._outcome(job, cell)
            if outcome is None and stopped_by:
                outcome = Outcome(INTERRUPTED, (problem or f"stopped by {stopped_by}") + _goes_on(job, cell))
            elif outcome is None:
                outcome = Outcome(FAILED, told if status is None else f"left no outcome{why}, {told}")
                try:
                    write_outcome(self._folder, cell_of(cell), job.step, outcome)
                except (CellFailure, OSError):  # a full disk: the report knows less
                    untold.add(cell)
            self._record(job, cell, outcome, attempts, log_of(job, cell))
        state, message = _JOB_STATES.get(status, FAILED), ""
        if stopped_by and (lacks_outcomes or state == FAILED):
            state, message = INTERRUPTED, problem
        elif lacks_outcomes:
            state = FAILED  # its cells tell why
        elif state == FAILED and all(self._stages[job.name, cell].state in USABLE for cell in job.owed):
            message = f"{told} (although every cell has its outcome)" if job.owed else told
        self._finish(JobSummary(job.name, job.stage, state, message, how, attempts, seconds, log))
        return untold

    def never_started(self, job: Job, state: str, message: str) -> None:
        """``job`` will not be started; ``message`` says why."""
        for cell in job.owed:
            self._record(job, cell, Outcome(state, message))
        # its cells tell why, if it has any
        self._finish(JobSummary(job.name, job.stage, state, "" if job.owed else message))

    def cell_states(self) -> list[str | None]:
        """The state of each cell of the run; None while it has stages to go."""
        return list(self._states.values())

    def close(self, pending: Iterable[Job], seconds: float, stop: signal.Signals | None) -> RunSummary:
        """The summary of the whole run, once no job runs, which is also written into its folder; ``stop`` is the signal
        that ended it, ``pending`` are the jobs that it kept from starting."""
        stopped = None
        if stop is not None:
            stopped = ExitStatus.INTERRUPTED if stop == signal.SIGINT else ExitStatus.TERMINATED
            for job in pending:
                self.never_started(job, INTERRUPTED, f"not started, stopped by {stop.name}")
        summary = self._summary(seconds, stopped)
        try:
            summary.save(self._folder)
        except (CellFailure, OSError) as error:
            complain(str(error))
            summary = replace(summary, status=worst([summary.status, ExitStatus.FAILED]))
        return summary

    def _summary(self, seconds: float, stopped: ExitStatus | None) -> RunSummary:
        cells = [self._cell(cell) for cell in self._cells]
        jobs = [self._jobs[job.name] for job in self._plan.jobs]
        # a job may end badly although every outcome is there, and the report has no cell at all
        statuses = [*(STATUS[cell.state] for cell in cells), *(STATUS[job.state] for job in jobs)]
        return RunSummary(worst([*statuses, stopped or ExitStatus.COMPLETE]), seconds, cells, jobs)

    def _cell(self, cell: str) -> CellSummary:
        stages, blocked = self._stages_of(cell), self._plan.blocked.get(cell)
        if blocked is not None:
            return CellSummary(cell, BLOCKED, blocked, "", stages)
        if all(stage.is_empty for stage in stages):
            stages = [replace(one, state=FAILED) if one.state == INCOMPLETE else one for one in stages]
        gravest = max((stage.state for stage in stages), key=GRAVITY.index)
        deciding = [stage for stage in stages if stage.state == gravest]
        # of bad stages the first is the cause, of good ones the last is the result
        stage = deciding[-1 if gravest in USABLE else 0]
        message = stage.message
        if message and gravest not in USABLE:
            message = f"{stage.stage}: {message}"
        before = stages[: stages.index(stage)]
        causes = (f"{one.stage}: {one.message}" for one in before if one.state != COMPLETE and one.message)
        return CellSummary(cell, gravest, message, stage.log, stages, next(causes, ""))

    def _stages_of(self, cell: str) -> list[StageSummary]:
        stages = (self._stages.get((job.name, cell)) for job in self._jobs_of_cell[cell])
        return [stage for stage in stages if stage]

    def _outcome(self, job: Job, cell: str) -> Outcome | None:
        return read_outcome(self._folder, cell_of(cell), job.step)

    def _record(self, job: Job, cell: str, outcome: Outcome, attempts: int = 0, log: str = "") -> None:
        stage = StageSummary(
            cell, job.stage, job.name, outcome.state, outcome.message, log, attempts, outcome.is_empty
        )
        before = self._stages.get((job.name, cell))
        self._stages[job.name, cell] = stage
        if len(self._stages_of(cell)) == len(self._jobs_of_cell[cell]):
            self._states[cell] = self._cell(cell).state
        self._verdicts.clear()
        if before is None or (before.state, before.message) != (stage.state, stage.message):
            self._display.stage_ended(stage)

    def _finish(self, ended: JobSummary) -> None:
        self._jobs[ended.name] = ended
        self._verdicts.clear()
        if ended.attempts or ended.message:
            self._display.job_ended(ended)


def money_of(paces: Iterable[PaceReader]) -> str:
    """What the jobs with these ``paces`` have spent so far, and their bound, if there is one; empty where no price is
    known."""
    paces = list(paces)
    spent = [pace.spent for pace in paces if pace.spent is not None]
    bounds = [pace.max_cost for pace in paces if pace.max_cost is not None]
    if not spent:
        return ""
    return dollars(sum(spent)) + (f" of {dollars(min(bounds))}" if bounds else "")


def _goes_on(job: Job, key: str) -> str:
    """That requests of a stopped ``job`` go on at the provider, where they do."""
    cell = cell_of(key)
    batches = not_ended(cell.batches if job.stage == "generate" else cell.judge_batches)
    if not batches:
        return ""
    return (
        f"; {', '.join(batches)} goes on at the provider, and the same command collects it "
        f"(POST /batches/{batches[0]}/cancel there ends it)"
    )
