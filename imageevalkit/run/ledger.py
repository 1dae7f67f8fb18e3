"""The state of a run: which stages and jobs have ended, how they ended, and the exit status that follows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from imageevalkit.common import logs
from imageevalkit.common.errors import CellFailure, ExitStatus, complain, worst
from imageevalkit.common.text import dollars
from imageevalkit.extension_points import connected
from imageevalkit.jobs.plan import (
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
    not_started,
    opened_path,
    outcome_path,
    outcomes_of,
    read_outcome,
    write_outcome,
)
from imageevalkit.jobs.progress import PaceReader
from imageevalkit.run.display import (
    BLOCKED,
    INTERRUPTED,
    SKIPPED,
    CellSummary,
    Display,
    JobSummary,
    RunningJob,
    RunSummary,
    StageSummary,
    View,
    WaitingJob,
)
from imageevalkit.run.runner import describe_exit, last_line, log_of, shorten
from imageevalkit.store.cell import log_root

# From best to worst: a cell has the state of its worst stage. SKIPPED is better than FAILED: the message of
# the failed stage is shown, not of the stage skipped after it.
_GRAVITY = (COMPLETE, INCOMPLETE, SKIPPED, INTERRUPTED, STALE, FAILED)
_STATUS = STATUS_OF_STATE | dict.fromkeys((SKIPPED, BLOCKED, INTERRUPTED), ExitStatus.FAILED)
_JOB_STATES: dict[int | None, str] = {ExitStatus.COMPLETE: COMPLETE, ExitStatus.INCOMPLETE: INCOMPLETE}


# Seconds between two listings of the outcome folder; if its modification time changes, it is listed at once.
_LOOK_EVERY = 1.0


class Verdict(NamedTuple):
    """Whether a job can start now (``ready``), or early beside the jobs before it (``follows``).

    If the job can never start, ``skip`` says why.
    """

    ready: bool
    skip: str = ""
    follows: bool = False


class Ledger:
    """Reads the outcomes that jobs write, derives the states of cells, and shows each end on ``display``."""

    def __init__(self, plan: Plan, display: Display) -> None:
        self._plan = plan
        self._folder = Path(plan.run_folder)
        self._display = display
        self._stages: dict[tuple[str, str], StageSummary] = {}
        self._jobs: dict[str, JobSummary] = {}
        self._opened = set[str]()
        self._job = {job.name: job for job in (*plan.jobs, *plan.parts)}
        self._jobs_of_cell: dict[str, list[Job]] = {cell: [] for cell in plan.cells}
        # the files that jobs write, by name: outcomes, and the marks of cells that are being generated
        self._owing: dict[str, tuple[Job, str]] = {}
        self._opening = {opened_path(self._folder, cell_of(cell)).name: cell for cell in plan.cells}
        for job in plan.jobs:
            for cell in job.owed:
                self._jobs_of_cell[cell].append(job)
                self._owing[outcome_path(self._folder, cell_of(cell), job.step).name] = (job, cell)
        self._files = set[str]()
        self._folder_time, self._look_at = -1, 0.0
        self._verdicts: dict[str, Verdict] = {}  # a cache; any change of state clears it
        # a cell that only the report reads is left out: this run does not work on it
        self._cells = [cell for cell in plan.cells if cell in plan.blocked or self._jobs_of_cell[cell]]
        # cached: a display reads the states of thousands of cells several times a second
        self._states = {cell: BLOCKED if cell in plan.blocked else None for cell in self._cells}

    def forget_earlier_run(self) -> None:
        """Remove the outcomes and progress files of an earlier run of this plan: they are not this run's."""
        for job in self._plan.jobs:
            for cell in job.cells:
                outcome_path(self._folder, cell_of(cell), job.step).unlink(missing_ok=True)
                opened_path(self._folder, cell_of(cell)).unlink(missing_ok=True)
            self._plan.progress_path(job).unlink(missing_ok=True)

    def forget_failures(self, job: Job) -> None:
        """Remove the outcomes of ``job`` that are not usable, because ``job`` is submitted again."""
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
        """Return whether ``job`` can start, by the states of the jobs that it must run after."""
        if job.name not in self._verdicts:
            self._verdicts[job.name] = self._judged(job)
        return self._verdicts[job.name]

    def _judged(self, job: Job) -> Verdict:
        if job.always:
            return Verdict(all(name in self._jobs for name in job.after))
        after, waiting, lost, early = {*job.after}, set[str](), dict[str, str](), False
        for cell in job.cells:
            can_begin = True
            for before in (one for one in self._jobs_of_cell[cell] if one.name in after):
                stage = self._stages.get((before.name, cell))
                if stage is not None and stage.state in USABLE:
                    continue
                # a failed cell is final only when its job has ended: the next attempt may succeed
                if stage is not None and before.name in self._jobs:
                    lost[cell] = not_started(before.stage, stage.state)
                else:
                    waiting.add(cell)
                can_begin &= stage is None and cell in self._opened
            early |= can_begin
        if lost and len(lost) == len(job.cells):
            why = lost[job.cells[0]] if len(lost) == 1 else "not started: the stage before it failed"
            return Verdict(False, why)
        return Verdict(not waiting, follows=job.follows and early and bool(waiting))

    def collect(self, attempts: Mapping[str, int]) -> None:
        """Read the new outcomes of running jobs. ``attempts`` are their current attempts, by job name."""
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
        """Return the names of the files that jobs have written since the last call.

        It lists the folder once: opening a file for each of thousands of cells is slow on a network disk.
        """
        folder, now = outcomes_of(self._folder), time.monotonic()
        try:
            changed = folder.stat().st_mtime_ns
            # not by time alone: clocks are coarse, and some network disks keep no time of folders
            if changed == self._folder_time and now < self._look_at:
                return []
            new = {*os.listdir(folder)} - self._files  # noqa: PTH208 - iterdir() takes three times as long
        except OSError:  # the folder does not exist yet, or its disk does not answer
            return []
        self._folder_time, self._look_at = changed, now + _LOOK_EVERY
        self._files |= new
        return sorted(new)

    def ended_in(self, job: Job, attempt: int) -> set[str]:
        """Return the cells whose outcome this ``attempt`` of the running ``job`` has written so far."""
        stages = ((cell, self._stages.get((job.name, cell))) for cell in job.owed)
        return {cell for cell, stage in stages if stage is not None and stage.attempts == attempt}

    def job_ended(
        self, job: Job, attempts: int, seconds: float, status: int | None, problem: str, stopped_by: str
    ) -> set[str]:
        """Record the final end of a started job. A cell without an outcome has failed or was interrupted.

        Returns the cells whose failure could not be written: other processes cannot read it. If there is no
        exit ``status``, ``problem`` says why. ``stopped_by`` names the signal that stopped the run.
        """
        how = "" if status is None else describe_exit(status)
        if how == "SIGKILL" and not stopped_by:  # in a stopped run the guard sends SIGKILL after SIGTERM
            how = "SIGKILL (out of memory?)"
        log = log_of(job)
        # if several models share a process, its last line may be about any of them
        shared = len({cell_of(cell).model for cell in job.cells}) > 1
        last = "" if status is None or shared else shorten(last_line(log))
        cause = (problem or how) + (f": {last}" if last else "")
        lacks_outcomes = bool(self._plan.lacking(job))
        why = f": {logs.full_words(log_root())}" if lacks_outcomes and logs.is_full(self._folder) else ""
        unwritten = set[str]()
        for cell in job.owed:
            outcome = self._outcome(job, cell)
            if outcome is None and stopped_by:
                outcome = Outcome(INTERRUPTED, (problem or f"stopped by {stopped_by}") + _goes_on(job, cell))
            elif outcome is None:
                outcome = Outcome(FAILED, cause if status is None else f"left no outcome{why}, {cause}")
                try:
                    write_outcome(self._folder, cell_of(cell), job.step, outcome)
                except (CellFailure, OSError):  # the disk is full: the report cannot show the reason
                    unwritten.add(cell)
            self._record(job, cell, outcome, attempts, log_of(job, cell))
        state, message = _JOB_STATES.get(status, FAILED), ""
        if stopped_by and (lacks_outcomes or state == FAILED):
            state, message = INTERRUPTED, problem
        elif lacks_outcomes:
            state = FAILED  # the messages of its cells say why
        elif state == FAILED and all(self._stages[job.name, cell].state in USABLE for cell in job.owed):
            message = f"{cause} (although every result has its outcome)" if job.owed else cause
        self._finish(JobSummary(job.name, job.stage, state, message, how, attempts, seconds, log))
        return unwritten

    def never_started(self, job: Job, state: str, message: str) -> None:
        """Record that ``job`` will not start; ``message`` says why."""
        for cell in job.owed:
            self._record(job, cell, Outcome(state, message))
        # its cells show the message; a job without cells shows it itself
        self._finish(JobSummary(job.name, job.stage, state, "" if job.owed else message))

    def view(
        self,
        seconds: float,
        running: Sequence[RunningJob],
        waiting: Sequence[WaitingJob],
        paces: Iterable[PaceReader],
    ) -> View:
        """Return the state of the run for a display, ``seconds`` after its start."""
        states = [state for state in self._states.values() if state is not None]
        failed = sum(state not in USABLE for state in states)
        return View(seconds, len(self._states), len(states), failed, running, waiting, money_of(paces))

    def close(self, pending: Iterable[Job], seconds: float, stop: signal.Signals | None) -> RunSummary:
        """Return the summary of the run and write it to ``summary.json``, once no job runs any more.

        ``stop`` is the signal that stopped the run, if any; ``pending`` are the jobs that it kept waiting.
        """
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
        # jobs count, too: a job may fail after its last outcome, and the report job has no cell
        statuses = [*(_STATUS[cell.state] for cell in cells), *(_STATUS[job.state] for job in jobs)]
        return RunSummary(worst([*statuses, stopped or ExitStatus.COMPLETE]), seconds, cells, jobs)

    def _cell(self, cell: str) -> CellSummary:
        stages, blocked = self._stages_of(cell), self._plan.blocked.get(cell)
        if blocked is not None:
            return CellSummary(cell, BLOCKED, blocked, "", stages)
        if all(stage.is_empty for stage in stages):
            stages = [replace(one, state=FAILED) if one.state == INCOMPLETE else one for one in stages]
        gravest = max((stage.state for stage in stages), key=_GRAVITY.index)
        deciding = [stage for stage in stages if stage.state == gravest]
        # among bad stages the first is the cause; among good stages the last is the result
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
    """Return the cost so far of the jobs with these ``paces``, and the budget if there is one.

    The text is empty if no price is known.
    """
    paces = list(paces)
    spent = [pace.spent for pace in paces if pace.spent is not None]
    bounds = [pace.max_cost for pace in paces if pace.max_cost is not None]
    if not spent:
        return ""
    return dollars(sum(spent)) + (f" of {dollars(min(bounds))}" if bounds else "")


def _goes_on(job: Job, key: str) -> str:
    """Return a note on requests of a stopped ``job`` that continue at the provider; empty if none do."""
    cell = cell_of(key)
    folder = cell.batches if job.stage == "generate" else cell.judge_batches
    notes = (kind.goes_on(folder) for kind in connected("sender").values())
    return "".join(f"; {note}" for note in notes if note)
