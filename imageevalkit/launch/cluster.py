"""The launcher of a cluster: submits a plan's jobs with their dependencies, watches them, and keeps the books.

What a job left is in files, whether it still waits or runs is in Slurm's queue: neither accounting nor this process is
needed for jobs to run to their end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from imageevalkit.cell import LAUNCHERS_LOCK, REPO, lock_cell, output_root
from imageevalkit.cell.jsonl import Shape, parse
from imageevalkit.cell.records import mend_records
from imageevalkit.cell.shards import FOLDER as SHARDS
from imageevalkit.errors import CellFailure, ExitStatus, UserError, complain, say
from imageevalkit.jobs import (
    COMPLETE,
    FAILED,
    USABLE,
    Job,
    Outcome,
    Plan,
    cell_of,
    job_words,
    load_plan,
    read_outcome,
    stop_path,
    write_outcome,
)
from imageevalkit.launch.display import RunningJob, View, WaitingJob, choose_display, print_table
from imageevalkit.launch.ledger import INTERRUPTED, SKIPPED, Ledger, RunSummary, money_of
from imageevalkit.launch.nodes import NodeFaults
from imageevalkit.launch.process import DRIVER_PYTHON, with_our_paths
from imageevalkit.launch.slurm import ENDED, KILLED, NODES_FAULT, Queued, Slurm, SlurmFailed, words_for_size
from imageevalkit.locks import why_of_one_machine
from imageevalkit.progress import Pace, PaceReader
from imageevalkit.secrets import environ_with, one_line
from imageevalkit.text import counted

_MARK = "imageevalkit"
_TICK = 0.5
# Seconds between two looks at the queue, and for so many of its jobs one more: it is one process for all users.
_LOOK_EVERY, _JOBS_PER_SECOND = 2.0, 100
# Seconds of submitting, of which there may be thousands, before what has ended is looked at.
_SUBMITS_FOR = 2.0
# Seconds that the files of a job which has left the queue may take to be seen here: NFS clients look every 3 to 60 s.
FILES_COME_WITHIN = 60.0
_KILLED_FOR = 4.0  # of one that Slurm says it has killed
# Seconds until a queue that was full is tried again: others' jobs end, too.
_FULL_FOR = 30.0
_SHOWN_PER_SECOND = 500  # jobs, as a display goes through them
# Seconds after which a job of which sbatch did not say that it was taken would be in the queue, if it was.
_TAKEN_WITHIN = 15.0
_STOPS_WITHIN = 60.0


@dataclass(frozen=True)
class Report:
    """What the process that runs a job on a node leaves at its end (:mod:`imageevalkit.launch.node_job`).

    ``status`` is the job's own (None: it was not started, as ``problem`` says; ``skipped``: for want of a stage
    before). Times are seconds since 1970. ``outcomes`` are those that it has left, by cell: another machine may see the
    report before their files. ``idle``: its last attempt on ``node`` recorded nothing.
    """

    status: int | None
    problem: str = ""
    skipped: bool = False
    attempts: int = 1
    began: float = 0.0
    ended: float = 0.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    node: str = ""
    idle: bool = False

    @property
    def is_good(self) -> bool:
        """True if the job did what it should, as far as it could."""
        return self.status in (ExitStatus.COMPLETE, ExitStatus.INCOMPLETE)


_REPORT = Shape.of(Report)


def files_of(folder: Path) -> Path:
    """The folder of what this launcher and the jobs tell each other of the run in ``folder``."""
    return folder / "slurm"


def report_path(folder: Path, job: Job) -> Path:
    """Where the report of ``job`` is in the run's ``folder``."""
    return files_of(folder) / f"{job.stem}.json"


def read_report(folder: Path, job: Job) -> Report | None:
    """The report of ``job``; None while there is none."""
    try:
        return _REPORT.read(parse(report_path(folder, job).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return Report(None, f"its report is unreadable ({one_line(error, 100)})")


def waiting_or_running(slurm: Slurm) -> dict[str, Queued]:
    """The jobs of this user that have not ended, by number. Raises UserError: they cannot be seen."""
    try:
        return {number: queued for number, queued in slurm.queue().items() if queued.state not in ENDED}
    except SlurmFailed as error:
        raise UserError(f"Slurm's queue cannot be seen: {error}") from None


def run_of(queued: Queued) -> str:
    """The folder of the run that has submitted it; empty: none of ours."""
    mark, _, folder = [*queued.comment.split(" ", 2), "", ""][:3]
    return folder if mark == _MARK else ""


def identity(plan: Plan, job: Job) -> str:
    """The same for a job that does the same with the same cells, whatever run it is of."""
    order = {} if job.order is None else asdict(job.order)
    settings = {
        name: plan.settings.get(name) for name in sorted({cell_of(key).benchmark for key in job.cells})
    }
    facts = [str(output_root().absolute()), job.step, job.cells, job.command, order, settings]
    told = json.dumps(facts, default=str, ensure_ascii=False)
    run = Path(plan.run_folder)
    for own in (str(run.absolute()), plan.run_folder, run.name):  # its name is in those of its logs
        told = told.replace(own, "")
    return hashlib.sha256(told.encode()).hexdigest()[:16]


class FoundJob(NamedTuple):
    """A job in the queue that an earlier run has submitted with ``comment``. It reports to ``folder`` and ``logs``."""

    number: str
    folder: Path
    logs: list[str]
    comment: str


@dataclass(frozen=True)
class Found:
    """What is there when a run begins: ``jobs`` of earlier ones that do what one of its own shall do, by the name of
    that; ``locks``, open files by cell, keep other launchers from its cells as long as this one lives."""

    jobs: Mapping[str, FoundJob] = field(default_factory=dict)
    locks: Mapping[str, int] = field(default_factory=dict)


def look_around(plan: Plan, slurm: Slurm) -> Found:
    """Take the cells of ``plan``; a job in the queue that has one must do the same as one of its own.

    Raises UserError: it does something else, another run has a cell, or the queue cannot be seen.
    """
    if why := why_of_one_machine(output_root()):
        say(
            f"{output_root()} is on {why}: locks there hold on one machine only. A user's runs with --launcher slurm "
            "see each other in the queue; keep others away from these cells"
        )
    owed = sorted({key for job in plan.jobs for key in job.owed})
    with contextlib.ExitStack() as on_failure:
        locks = dict[str, int]()
        for key in owed:  # first: who has them submits no more from now on
            locks[key] = lock_cell(cell_of(key), name=LAUNCHERS_LOCK)
            on_failure.callback(os.close, locks[key])
        found = Found(_jobs_there(plan, slurm, owed), locks)
        on_failure.pop_all()
    return found


def _jobs_there(plan: Plan, slurm: Slurm, owed: Sequence[str]) -> dict[str, FoundJob]:
    """Those of :class:`Found`; records that shards of the other cells have left are gathered. Raises as
    :func:`look_around`."""
    there, others = waiting_or_running(slurm), _Others()
    own, cells = {identity(plan, job): job for job in plan.jobs if not job.always}, {*owed}
    jobs, ending = dict[str, FoundJob](), set[str]()
    for number, queued in there.items():
        mark, key, folder = [*queued.comment.split(" ", 2), "", ""][:3]
        if mark != _MARK or not (other := others.job(Path(folder), key)):
            continue
        if queued.state == "COMPLETING":
            ending.update(other.owed)  # it has left what it leaves; who comes next waits for its locks
        elif key in own:
            jobs.setdefault(own[key].name, FoundJob(number, Path(folder), other.logs, queued.comment))
        elif shared := sorted(cells & {*other.owed}):
            raise UserError(
                f"{shared[0]} is being worked on by Slurm job {number} ({other.name}), which was told otherwise "
                f"than this run: wait for it, or end it (scancel {number})"
            )
    for job in plan.jobs:
        # what it goes on from would be made again behind its back
        if job.name in jobs and (lacking := _not_at_hand(plan, job, jobs)):
            number = jobs[job.name].number
            raise UserError(
                f"{job.name} is Slurm job {number} of an earlier run, whose {lacking} has not made all: wait, or "
                f"end it (scancel {number})"
            )
    theirs = ending | {key for job in plan.jobs if job.name in jobs for key in job.owed}
    for cell in (cell_of(key) for key in owed if key not in theirs):
        lock = lock_cell(cell)  # a run on one machine has it, or nobody
        if (cell.folder / SHARDS).is_dir():
            mend_records(cell)  # today there may be others
        os.close(lock)
    return jobs


def _not_at_hand(plan: Plan, job: Job, found: Mapping[str, FoundJob]) -> str:
    """A job before ``job``, itself ``found``, that is neither found nor has made all that there is to make."""
    for before in (plan.job(name) for name in job.after if name not in found):
        for key in {*job.owed} & {*before.owed}:
            outcome = read_outcome(found[job.name].folder, cell_of(key), before.step)
            if outcome is None or outcome.state != COMPLETE:
                return before.name
    return ""


class _Others:
    """The jobs of other runs, each of whose plans is read once."""

    def __init__(self) -> None:
        self._jobs = dict[Path, dict[str, Job]]()

    def job(self, folder: Path, key: str) -> Job | None:
        """The job with that :func:`identity`, but for a report; None: that run is unreadable."""
        if folder not in self._jobs:
            try:
                plan = load_plan(folder / "plan.json")
            except UserError:  # of another checkout, or removed
                self._jobs[folder] = {}
            else:
                self._jobs[folder] = {identity(plan, job): job for job in plan.jobs if not job.always}
        return self._jobs[folder].get(key)


@dataclass(eq=False)
class _Submitted:
    """A job in the queue under ``id``, submitted with ``comment`` by the run in ``folder``."""

    job: Job
    id: str
    comment: str
    folder: Path
    pace: PaceReader
    since: float
    state: str = "PENDING"
    reason: str = ""
    node: str = ""
    running_since: float = 0.0
    gone_since: float = 0.0
    paces: Sequence[Pace] = ()

    def is_queued_as(self, queued: Queued) -> bool:
        """True if the job in the queue is this one. A controller that lost its state gives old numbers to new jobs."""
        # some sites replace comments by their own
        is_marked = queued.comment.startswith(f"{_MARK} ")
        return queued.comment == self.comment or (queued.name == self.job.name and not is_marked)

    @property
    def why(self) -> str:
        """Why it waits."""
        told = f"in Slurm's queue ({self.reason}), job {self.id}"
        # "launch failed requeued held", "JobHeldUser": for ever, if nobody acts
        is_held = "held" in self.reason.lower()
        return f"{told}: scontrol release {self.id} lets it go on" if is_held else told


def run_plan(
    plan: Plan,
    found: Found,
    slurm: Slurm,
    detached: bool = False,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> RunSummary:
    """Submit ``plan``, but for what was ``found`` (:func:`look_around`), watch it to its end, show it, print the table
    of all cells and write ``summary.json``.

    A file at :func:`imageevalkit.jobs.stop_path` cancels all jobs of the run, and so do SIGINT, SIGTERM and SIGHUP. If
    the launcher is ``detached``, these signals end the launcher only: a login node that reboots must not cancel days of
    work.

    Args:
        now: Returns the time in seconds; a simulation has a clock of its own.
        sleep: Waits for so many seconds of that clock.
    """
    return _Run(plan, found, slurm, detached, now, sleep).run()


class _Run:
    def __init__(
        self,
        plan: Plan,
        found: Found,
        slurm: Slurm,
        detached: bool,
        now: Callable[[], float],
        sleep: Callable[[float], object],
    ) -> None:
        assert plan.cluster
        self._cluster, self._found, self._slurm = plan.cluster, found, slurm
        self._is_detached, self._now, self._sleep = detached, now, sleep
        self._plan, self._folder = plan, Path(plan.run_folder)
        self._display = choose_display(sys.stderr)
        self._ledger = Ledger(plan, self._display)
        self._pending = list(plan.jobs)
        self._active: list[_Submitted] = []
        self._ids: dict[str, str] = {}  # of what is submitted, by name; empty of what Slurm refused
        # what sbatch may have submitted, by name, and when it was asked
        self._unsure: dict[str, float] = {}
        self._silence = ""  # of a controller that does not answer
        self._ended = set[str]()
        self._faults = NodeFaults()
        self._first_tries: dict[str, tuple[_Submitted, Report]] = {}
        self._again_at: dict[str, float] = {}  # when it was decided to submit a job again, by name
        self._old_ids = set[str]()  # of jobs that were submitted again
        self._paces: dict[str, PaceReader] = {}
        self._held_back = ""
        self._full_until = 0.0  # it takes no more jobs until then, or until one of ours has ended
        self._next_look = self._next_view = 0.0
        self._leaves_by: signal.Signals | None = None
        self._stop: signal.Signals | None = None
        self._stop_time = 0.0
        self._is_stopping = self._is_cancelled = False
        self._began = now()

    def run(self) -> RunSummary:
        self._ledger.forget_earlier_run()
        files_of(self._folder).mkdir(parents=True, exist_ok=True)
        for job in list(self._pending):
            if there := self._found.jobs.get(job.name):
                told = f"{job.name} is job {there.number} of {there.folder}: it is not submitted again"
                self._display.tell("found", told)
                self._add(job, there.number, there.comment, there.folder, there.logs)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_stop_signal)
        try:
            while self._go_on():
                self._sleep(_TICK)
        except BaseException:
            if not self._is_detached:
                self._cancel()
            if not self._is_cancelled:
                self._tell_what_is_left()
            raise
        if told := self._faults.summary():
            self._display.tell("note", told)
        self._display.close(money_of(self._paces.values()))
        if self._leaves_by:
            return self._leave(self._leaves_by)
        summary = self._ledger.close(self._pending, self._now() - self._began, self._stop)
        print_table(summary, sys.stdout)
        return summary

    def _go_on(self) -> bool:
        if stop_path(self._folder).exists():
            self._on_stop_signal(signal.SIGTERM, None)
        elif self._leaves_by:
            return False
        if self._stop and not self._is_cancelled:
            if not self._is_stopping:
                words = f"{self._stop.name}: cancelling the jobs of this run"
                self._display.tell("stopping", words, INTERRUPTED)
            self._is_stopping, self._next_look = True, 0.0
        if self._now() >= self._next_look:
            self._look()
            self._next_look = self._now() + _LOOK_EVERY + len(self._active) / _JOBS_PER_SECOND
        # after the look: numbers that it did not confirm may be those of other jobs
        if self._stop and not self._is_cancelled and not self._silence:
            self._cancel()
        if self._stop is None:
            self._submit_in_order()
        elif self._now() - self._stop_time > _STOPS_WITHIN:
            self._tell_what_is_left()
            self._unsure.clear()
            why = "still in the queue" if self._is_cancelled else f"Slurm does not answer ({self._silence})"
            for one in list(self._active):
                self._end(one, Report(None, f"{why} {_STOPS_WITHIN:.0f} s after scancel {one.id}"))
        if self._now() >= self._next_view:
            self._display.refresh(self._view())
            self._next_view = self._now() + len(self._active) / _SHOWN_PER_SECOND
        return bool(self._active or self._unsure) or (self._stop is None and bool(self._pending))

    # Submitting

    def _submit_in_order(self) -> None:
        self._held_back, until = "", self._now() + _SUBMITS_FOR
        taken = sum(one.job.gpus_at_most for one in self._active)
        for job in list(self._pending):
            if self._stop or self._silence or self._now() > until:
                return
            if why := self._no_room():
                self._held_back = why
                return
            most = self._cluster.max_gpus
            if most is not None and taken and job.gpus_at_most and taken + job.gpus_at_most > most:
                self._held_back = f"for SLURM_MAX_GPUS={most}"
                taken = max(taken, most)  # nor does a smaller one overtake it; one without GPUs does
                continue
            if any(name not in self._ids for name in job.after):
                continue  # one of them is not submitted yet
            before = [one for one in self._active if one.job.name in job.after]
            # what a job of another run leaves is not in this run's folder before it has ended; the number of a job that
            # has left the queue may be that of another job
            if any(one.folder != self._folder or one.gone_since for one in before):
                continue
            comment = self._comment(job)
            try:
                number = self._submit(job, comment)
            except SlurmFailed as error:
                if error.is_silent:
                    self._unsure[job.name], self._silence = self._now(), str(error)
                    return
                if error.passes or (error.may_pass and self._active):
                    self._full_until = self._now() + _FULL_FOR
                    self._held_back = f"as Slurm says: {error}"
                    return
                self._pending.remove(job)
                self._ids[job.name] = ""
                if job.name in self._first_tries:  # there is no other node for it
                    self._end(*self._first_tries[job.name])
                    continue
                self._ended.add(job.name)
                self._ledger.never_started(job, FAILED, f"sbatch: {error}")
                continue
            self._add(job, number, comment, self._folder)
            taken += job.gpus_at_most

    def _no_room(self) -> str:
        """Why another job must wait, by the bound of config.sh and what Slurm takes; empty: it need not."""
        if self._unsure:
            return "to see which jobs Slurm has"
        if self._cluster.max_jobs is not None and len(self._active) >= self._cluster.max_jobs:
            return f"for SLURM_MAX_JOBS={self._cluster.max_jobs}"
        return "as Slurm takes no more jobs now" if self._now() < self._full_until else ""

    def _before(self, job: Job) -> list[str]:
        """The numbers of the jobs that must have ended before ``job`` starts."""
        numbers = [self._ids[name] for name in job.after if name in self._ids and name not in self._ended]
        return [*([] if self._ledger.verdict(job).ready else numbers), *self._others_at(job)]

    def _others_at(self, job: Job) -> list[str]:
        """The numbers of the jobs of earlier runs that have the locks of cells of ``job``."""
        # shards share the lock
        others = (
            one for one in self._active if one.folder != self._folder and not (one.job.shard and job.shard)
        )
        return [one.id for one in others if not {*one.job.owed}.isdisjoint(job.owed)]

    def _comment(self, job: Job) -> str:
        """By which ``job`` is known in the queue, whoever looks there."""
        return f"{_MARK} {identity(self._plan, job)} {self._folder.absolute()}"

    def _submit(self, job: Job, comment: str) -> str:
        """Submits ``job`` and returns its number. Raises SlurmFailed."""
        words = self._faults.words(job.name, self._cluster.sbatch.get(job.name, []))
        before = self._before(job)
        depends = [f"--dependency=afterany:{':'.join(before)}"] if before else []
        log = files_of(self._folder) / f"{job.stem}.log"
        command = [DRIVER_PYTHON, "-P", "-m", "imageevalkit.launch.node_job"]
        return self._slurm.submit(
            [
                f"--job-name={job.name}",
                f"--comment={comment}",
                f"--chdir={REPO}",
                f"--output={log.absolute()}",
                "--open-mode=append",
                "--nodes=1",
                "--ntasks=1",
                "--requeue",
                "--kill-on-invalid-dep=yes",
                f"--signal=B:USR1@{self._cluster.grace}",
                "--export=ALL",
                *depends,
                *words_for_size(job, words),
                *words,
                f"--wrap=exec {shlex.join([*command, *job_words(self._plan.path, job.name)])}",
            ],
            with_our_paths(environ_with(job.secrets)),
        )

    def _add(self, job: Job, number: str, comment: str, folder: Path, logs: list[str] | None = None) -> None:
        self._pending.remove(job)
        self._ids[job.name] = number
        job = replace(job, logs=logs or job.logs)
        pace = self._paces[job.name] = PaceReader(
            replace(self._plan, run_folder=str(folder)).progress_path(job)
        )
        self._active.append(_Submitted(job, number, comment, folder, pace, self._now()))

    # Watching

    def _look(self) -> None:
        self._ledger.collect({one.job.name: 1 for one in self._active})
        try:
            there = self._slurm.queue()
        except SlurmFailed as error:  # the controller starts again; the jobs go on
            self._silence = str(error)
            return
        self._silence = ""
        self._find_those_of_silence(there)
        self._take_in(there)
        if self._stop is None:
            self._start_early()

    def _take_in(self, there: Mapping[str, Queued]) -> None:
        """Reads the states of the submitted jobs from the queue, and the reports of jobs that have left it."""
        now = self._now()
        for one in list(self._active):
            queued = there.get(one.id)
            if queued and not one.is_queued_as(queued):
                queued = None
            one.node = (queued and queued.node) or one.node
            if queued and queued.state not in ENDED:
                if queued.state == "RUNNING" and one.state != "RUNNING":
                    one.running_since = now
                    one.pace.start_attempt()
                    self._display.job_started(one.job, 1, f"node {queued.node}, job {one.id}")
                one.state, one.reason, one.gone_since = queued.state, queued.reason, 0.0
                if one.state == "RUNNING":  # not at every tick: hundreds of files, and a network between
                    one.paces = one.pace.read(self._ledger.ended_in(one.job, 1))
                continue
            if one not in self._active:  # it was put back with a job before it
                continue
            report = read_report(one.folder, one.job)
            one.gone_since = one.gone_since or now
            if queued:  # Slurm forgets it soon
                one.state = queued.state
            state = one.state if one.state in ENDED else ""
            # what left no report when it was killed never will
            patience = _KILLED_FOR if state in KILLED else FILES_COME_WITHIN
            if report:
                self._has_left(one, report)
            elif self._stop:
                self._end(one, Report(None, began=now, ended=now))
            elif now - one.gone_since > patience:
                why = f"Slurm job {one.id} is {state or 'not in the queue any more'}"
                on = f" on node {one.node}" if one.node else ""
                idle = state in NODES_FAULT
                self._has_left(
                    one, Report(None, f"{why}{on}, and left no report", began=now, ended=now, idle=idle)
                )

    def _start_early(self) -> None:
        """Lets an evaluation start if its own images exist, while the model makes images of other benchmarks."""
        waiting = (one for one in self._active if (one.state, one.reason) == ("PENDING", "Dependency"))
        early = [
            one.id
            for one in waiting
            if not one.job.always and self._ledger.verdict(one.job).ready and not self._others_at(one.job)
        ]
        if early:
            # else they start when the job before them has ended
            with contextlib.suppress(SlurmFailed, UserError):
                self._slurm.start_early(early)

    def _find_those_of_silence(self, there: Mapping[str, Queued]) -> None:
        """What is in the queue of the jobs that sbatch may have submitted; what is not may be submitted again."""
        for name, asked in list(self._unsure.items()):
            job = self._plan.job(name)
            comment = self._comment(job)
            numbers = (number for number, queued in there.items() if queued.comment == comment)
            number = next((number for number in numbers if number not in self._old_ids), "")
            if number:
                self._add(job, number, comment, self._folder)
                self._is_cancelled = False  # if the run is being stopped, it comes late
            if number or self._now() - asked > _TAKEN_WITHIN:
                del self._unsure[name]

    def _has_left(self, one: _Submitted, report: Report) -> None:
        """The job has left the queue: it has ended, or must be submitted again."""
        job, is_last = one.job, self._stop is not None or one.folder != self._folder
        if not is_last and (report.skipped or job.always):
            # a job before it was submitted again, and this one began when that job had failed
            if any(self._again_at.get(name, -1.0) > one.since for name in job.after):
                self._put_back([one])
                return
            if any(other.job.name in job.after for other in self._active):
                return  # whether that one is submitted again is not decided
        outcomes = [
            report.outcomes.get(key) or read_outcome(one.folder, cell_of(key), job.step) for key in job.owed
        ]
        did_nothing = report.idle and all(outcome is None or outcome.state == FAILED for outcome in outcomes)
        is_bad = did_nothing and not (report.skipped or report.is_good)
        node = report.node or one.node
        if is_last or not is_bad or not self._faults.may_try_elsewhere(job.name, node):
            self._end(one, report)
            return
        said = report.problem or next((outcome.message for outcome in outcomes if outcome), "it crashed")
        text = f"{job.name} on node {node}, job {one.id} ({said}): it is submitted again for another node"
        self._display.tell(FAILED, text, FAILED)
        self._first_tries[job.name] = one, report
        behind = [other for other in self._active if job.name in other.job.after and other.state != "RUNNING"]
        try:
            self._slurm.cancel([other.id for other in behind])
        except (SlurmFailed, UserError):
            behind = []  # they see that it failed, and leave
        self._put_back([one, *behind])

    def _put_back(self, those: Sequence[_Submitted]) -> None:
        """Puts ``those`` jobs back among the pending ones, which are submitted in order."""
        for one in those:
            self._active.remove(one)
            self._old_ids.add(one.id)
            self._again_at[one.job.name] = self._now()
            del self._ids[one.job.name]
            job = self._plan.job(one.job.name)
            self._ledger.forget_failures(job)
            report_path(self._folder, job).unlink(missing_ok=True)
        names = {job.name for job in self._pending} | {one.job.name for one in those}
        self._pending = [job for job in self._plan.jobs if job.name in names]

    def _end(self, one: _Submitted, report: Report) -> None:
        if one in self._active:
            self._active.remove(one)
        if report.is_good:
            self._faults.completed(one.job.name)
        self._ended.add(one.job.name)
        self._full_until = 0.0
        one.pace.read()  # its last words, for the sum of money
        job = one.job
        self._take_over(one, report)
        if report.skipped:
            self._ledger.never_started(job, SKIPPED, report.problem)
            return
        stopped_by = self._stop.name if self._stop is not None else ""
        self._ledger.job_ended(
            job, report.attempts, report.ended - report.began, report.status, report.problem, stopped_by
        )

    def _take_over(self, one: _Submitted, report: Report) -> None:
        """The outcomes that the job has told of are those of its run, and those of a job of another run this one's."""
        for key in one.job.owed:
            cell, step, outcome = cell_of(key), one.job.step, report.outcomes.get(key)
            if one.folder != self._folder:
                outcome = outcome or read_outcome(one.folder, cell, step)
            if outcome and read_outcome(self._folder, cell, step) is None:
                # of a full disk the ledger tells, which finds none
                with contextlib.suppress(CellFailure, OSError):
                    write_outcome(self._folder, cell, step, outcome)

    def _view(self) -> View:
        now = self._now()
        states = self._ledger.cell_states()
        waiting = [
            WaitingJob(one.job.name, one.why, now - one.since)
            for one in self._active
            if one.state == "PENDING" and one.reason not in ("Dependency", "None", "")
        ]
        if self._silence:
            waiting.append(WaitingJob("all", f"Slurm does not answer: {self._silence}", now - self._began))
        elif self._held_back and self._pending:
            jobs = counted(len(self._pending), "job")
            waiting.append(WaitingJob(jobs, f"held back {self._held_back}", now - self._began))
        return View(
            seconds=now - self._began,
            cells=len(states),
            cells_done=sum(state is not None for state in states),
            cells_failed=sum(state is not None and state not in USABLE for state in states),
            running=[
                RunningJob(one.job, now - one.running_since, one.paces)
                for one in self._active
                if one.state == "RUNNING"
            ],
            waiting=waiting,
            money=money_of(self._paces.values()),
        )

    # The end

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_detached and not stop_path(self._folder).exists():
            self._leaves_by = self._leaves_by or signal.Signals(number)
        elif self._stop is None:
            # what is being submitted at this moment has no number yet: `_go_on` cancels all
            self._stop, self._stop_time = signal.Signals(number), self._now()

    def _leave(self, why: signal.Signals) -> RunSummary:
        """The summary of a run whose jobs go on without this launcher. It is not written: the run has not ended."""
        text = (
            f"{why.name}: this launcher ends, and {counted(len(self._active), 'job')} go on in Slurm's queue"
        )
        if late := len(self._pending):
            text += f"; {counted(late, 'more job')} not submitted yet"
        self._display.tell(
            "stopping", f"{text}. The same command resumes the run; bash eval.sh --cancel ends it"
        )
        return RunSummary(ExitStatus.TERMINATED, self._now() - self._began, [], [])

    def _cancel(self) -> None:
        if ids := [one.id for one in self._active if not one.gone_since]:
            try:
                self._slurm.cancel(ids)
            except (SlurmFailed, UserError) as error:
                if isinstance(error, SlurmFailed) and error.is_silent:
                    return  # once more
                complain(str(error))
        self._is_cancelled = True

    def _tell_what_is_left(self) -> None:
        ids = [one.id for one in self._active]
        if count := len(ids) + len(self._unsure):
            by_number = f" (scancel {' '.join(ids)})" if ids else ""
            left = f"{counted(count, 'job')} of this run may be in Slurm's queue yet"
            complain(f"{left}: bash eval.sh --cancel ends what is left, once Slurm answers{by_number}")
