"""The Slurm launcher: submits a plan's jobs with their dependencies, watches them, and keeps the books.

What a job left is in files, whether it still waits or runs is in squeue: neither accounting nor this process is needed
for jobs to run to their end. Commands and states: https://slurm.schedmd.com/sbatch.html, squeue.html.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import REPO, lock_cell, output_root
from imageevalkit.cell.jsonl import Shape, parse
from imageevalkit.errors import CellFailure, ExitStatus, UserError, complain, worst
from imageevalkit.jobs import (
    FAILED,
    USABLE,
    Job,
    Plan,
    cell_of,
    job_words,
    load_plan,
    read_outcome,
    write_outcome,
)
from imageevalkit.launch.config import Config, parse_count
from imageevalkit.launch.display import RunningJob, View, WaitingJob, choose_display, print_table
from imageevalkit.launch.ledger import INTERRUPTED, SKIPPED, Ledger, RunSummary
from imageevalkit.launch.process import DRIVER_PYTHON, with_our_paths
from imageevalkit.progress import PaceReader
from imageevalkit.secrets import environ_with, one_line
from imageevalkit.text import dollars

_MAPS = {
    "SLURM_PARTITION_MAP": "--partition",
    "SLURM_ACCOUNT_MAP": "--account",
    "SLURM_QOS_MAP": "--qos",
    "SLURM_TIME_MAP": "--time",
    "SLURM_MEM_MAP": "--mem",
    "SLURM_CPUS_MAP": "--cpus-per-task",
}
MAPS = (*_MAPS, "SLURM_ARGS_MAP")
"""The maps of config.sh with what sbatch is told of a job."""
API = "api"
"""In these maps, the jobs that wait for endpoints: they need the internet, and no GPU."""
ALL = "*"
STAGES = ("rewrite", "generate", "adopt", "evaluate", "report")
_CPUS = {True: "2", False: "4"}  # by whether a job is light
_MARK = "imageevalkit"
_TICK = 0.5
# Seconds between two looks at the queue, and for so many of its jobs one more: it is one process for all users.
_LOOK_EVERY, _JOBS_PER_SECOND = 2.0, 100
# Seconds that the files of a job which has left the queue may take to be seen here: NFS clients look every 3 to 60 s.
_FILES_COME_WITHIN = 60.0
_ANSWERS_WITHIN = 60.0
_STOPS_WITHIN = 60.0
# The controller's words for "no more jobs for now", which pass when some have ended.
_LATER = re.compile(
    r"SubmitLimit|submit limit|MaxJobCount|Job/step count|Resource temporarily unavailable|Slurm temporarily",
    re.I,
)
# of a job for good: "JOB STATE CODES" of squeue
_KILLED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)
_ENDED = _KILLED | {"COMPLETED", "FAILED"}
_PREFIX = re.compile(r"^\w+: (?:(?:error|fatal): )?")  # "sbatch: error: "
_ASKS_FOR_GPUS = re.compile(r"--gpus|-G|--gres=.*\bgpu")
_GPU = re.compile(r"\bgpu(?::[^:,(\s]+)?:(\d+)")


class SlurmFailed(Exception):
    """A command of Slurm's that does not do what it should; the text says why in one line."""


def _asked(*command: str, environ: Mapping[str, str] | None = None) -> str:
    """What a command of Slurm's prints. Raises UserError: there is none here; SlurmFailed."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWERS_WITHIN,
            env=environ,
            start_new_session=True,  # Ctrl-C is for us: a job may be submitted, and its number be lost
        )
    except FileNotFoundError:
        raise UserError(
            f"there is no {command[0]} on this machine: --launcher slurm is for a machine from which jobs are submitted"
        ) from None
    except (subprocess.TimeoutExpired, OSError) as error:
        raise SlurmFailed(f"{command[0]}: {one_line(error)}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit status {done.returncode}"]
        raise SlurmFailed(one_line(_PREFIX.sub("", said[-1]), 300))
    return done.stdout


def gpus_per_node(config: Config) -> int:
    """The GPUs of the node that has most: what config.sh says, else what the cluster says.

    Raises UserError: neither tells.
    """
    if given := config.text("SLURM_GPUS_PER_NODE").strip():
        return 0 if given == "0" else parse_count(given, "SLURM_GPUS_PER_NODE in config.sh")
    try:
        nodes = _asked("sinfo", "--noheader", "--Node", "--format=%G").splitlines()
    except SlurmFailed as error:
        raise UserError(
            f"the cluster does not say what GPUs it has ({error}): set SLURM_GPUS_PER_NODE"
        ) from None
    return max((sum(map(int, _GPU.findall(node))) for node in nodes), default=0)


def words_for(config: Config, job: Job) -> list[str]:
    """What sbatch is told of ``job``: by its model or benchmark, else as an API's, by its stage, or as any job.

    Raises UserError: a map of config.sh is none, or its words cannot be split.
    """
    cells = [cell_of(key) for key in job.cells]
    names = {cell.benchmark if job.stage == "evaluate" else cell.raw.model for cell in cells}
    keys = [*(names if len(names) == 1 else ()), *([API] if job.light else ()), job.stage, ALL]

    def found(variable: str) -> str:
        given = config.map(variable)
        return next((given[key].strip() for key in keys if key in given), "")

    told = {option: found(variable) for variable, option in _MAPS.items()}
    told["--cpus-per-task"] = told["--cpus-per-task"] or _CPUS[job.light or job.always]
    words = [f"{option}={value}" for option, value in told.items() if value]
    try:
        return [*words, *shlex.split(found("SLURM_ARGS_MAP"))]
    except ValueError as error:
        raise UserError(f"SLURM_ARGS_MAP in config.sh: {found('SLURM_ARGS_MAP')!r}: {error}") from None


@dataclass(frozen=True)
class Report:
    """What the process that runs a job on a node leaves at its end (:mod:`imageevalkit.launch.node_job`).

    ``status`` is the job's own (None: it was not started, as ``problem`` says; ``skipped``: for want of a stage
    before). Times are seconds since 1970.
    """

    status: int | None
    problem: str = ""
    skipped: bool = False
    attempts: int = 1
    began: float = 0.0
    ended: float = 0.0


_REPORT = Shape.of(Report)
_NUMBERS = Shape[dict[str, str]]({}, rest=str)


def _files(folder: Path) -> Path:
    return folder / "slurm"


def report_path(folder: Path, job: Job) -> Path:
    """Where the report of ``job`` is in the run's ``folder``."""
    return _files(folder) / f"{job.stem}.json"


def read_report(folder: Path, job: Job) -> Report | None:
    """The report of ``job``; None while there is none."""
    try:
        return _REPORT.read(parse(report_path(folder, job).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return Report(None, f"its report is unreadable ({one_line(error, 100)})")


class Queued(NamedTuple):
    """A job in Slurm's queue: its ``state`` and why it waits; ``comment`` is what it was submitted with."""

    state: str
    reason: str
    node: str
    comment: str


def queue() -> dict[str, Queued]:
    """This user's jobs by id, those that ended within the last minutes too. Raises SlurmFailed."""
    # a user's own filters must not hide jobs that are there
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    told = _asked("squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%r|%N|%k", environ=environ)
    found = {}
    for line in told.splitlines():
        number, state, reason, node, comment = [*line.split("|", 4), "", "", "", ""][:5]
        found[number] = Queued(state, reason, node, comment)
    return found


def waiting_or_running() -> dict[str, Queued]:
    """The jobs of :func:`queue` that have not ended. Raises UserError: it cannot be seen."""
    try:
        return {number: queued for number, queued in queue().items() if queued.state not in _ENDED}
    except SlurmFailed as error:
        raise UserError(f"Slurm's queue cannot be seen: {error}") from None


def cancel(numbers: Sequence[str]) -> None:
    """End these jobs. Raises UserError."""
    try:
        _asked("scancel", *numbers)
    except SlurmFailed as error:
        raise UserError(f"{error}; to end what is left: scancel {' '.join(numbers)}") from None


def _numbers_path(folder: Path) -> Path:
    return _files(folder) / "jobs.json"


def numbers(folder: Path) -> dict[str, str]:
    """The numbers of the jobs that the run in ``folder`` has submitted or found, by name."""
    try:
        return _NUMBERS.read(parse(_numbers_path(folder).read_bytes()))
    except (OSError, ValueError):
        return {}


def identity(plan: Plan, job: Job) -> str:
    """The same for a job that does the same with the same cells, whatever run it is of."""
    order = {} if job.order is None else asdict(job.order)
    settings = {
        name: plan.settings.get(name) for name in sorted({cell_of(key).benchmark for key in job.cells})
    }
    facts = [str(output_root().absolute()), job.stage, job.cells, job.command, order, settings]
    told = json.dumps(facts, default=str, ensure_ascii=False)
    run = Path(plan.run_folder)
    for own in (str(run.absolute()), plan.run_folder, run.name):  # its name is in those of its logs
        told = told.replace(own, "")
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@dataclass
class _Submitted:
    """A job in the queue under ``id``; ``folder`` is that of the run that submitted it."""

    job: Job
    id: str
    folder: Path
    pace: PaceReader
    state: str = "PENDING"
    reason: str = ""
    running_since: float = 0.0
    gone_since: float = 0.0


def run_plan(plan: Plan) -> RunSummary:
    """Submit ``plan``, watch it to its end, show it, print the table of all cells and write ``summary.json``.

    SIGINT, SIGTERM and SIGHUP cancel all jobs of the run. Raises UserError: another run works on its cells, or the
    queue cannot be seen; nothing was submitted.
    """
    return _Run(plan).run()


def _job_of(folder: Path, key: str) -> Job | None:
    """The job with that :func:`identity` of the run in ``folder``, but for a report; None: that run is unreadable."""
    try:
        plan = load_plan(folder / "plan.json")
    except UserError:  # of another checkout, or removed
        return None
    return next((job for job in plan.jobs if not job.always and identity(plan, job) == key), None)


class _Run:
    def __init__(self, plan: Plan) -> None:
        assert plan.cluster
        self._cluster = plan.cluster
        self._plan, self._folder = plan, Path(plan.run_folder)
        self._display = choose_display(sys.stderr)
        self._ledger = Ledger(plan, self._display)
        self._pending = list(plan.jobs)
        self._active: list[_Submitted] = []
        self._ids: dict[str, str] = {}
        self._ended = set[str]()
        self._paces: dict[str, PaceReader] = {}
        self._held_back = ""
        self._full_at = 0  # jobs of ours in the queue when it took no more
        self._next_look = 0.0
        self._stop: signal.Signals | None = None
        self._stop_time = 0.0
        self._is_cancelled = False
        self._began = time.monotonic()

    def run(self) -> RunSummary:
        self._ledger.forget_earlier_run()
        _files(self._folder).mkdir(parents=True, exist_ok=True)
        self._find_those_there()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_stop_signal)
        try:
            while self._go_on():
                time.sleep(_TICK)
        except BaseException:
            self._cancel()
            raise
        self._display.close(self._money())
        return self._summarize()

    def _go_on(self) -> bool:
        self._ledger.collect({one.job.name: 1 for one in self._active})
        if self._stop and not self._is_cancelled:
            self._is_cancelled, self._next_look = True, 0.0
            self._display.tell("stopping", f"{self._stop.name}: cancelling the jobs of this run", INTERRUPTED)
            self._cancel()
        if time.monotonic() >= self._next_look:
            self._look()
            self._next_look = time.monotonic() + _LOOK_EVERY + len(self._active) / _JOBS_PER_SECOND
        if self._stop is None:
            self._submit_what_can()
        elif time.monotonic() - self._stop_time > _STOPS_WITHIN:
            for one in list(self._active):
                self._end(
                    one, Report(None, f"still in the queue {_STOPS_WITHIN:.0f} s after scancel {one.id}")
                )
        self._display.refresh(self._view())
        return bool(self._active) or (self._stop is None and bool(self._pending))

    # Submitting

    def _find_those_there(self) -> None:
        """Take up the jobs of an earlier run that do what a job of this plan shall do.

        Raises UserError: one does something else with a cell of this run, or the queue cannot be seen.
        """
        there = waiting_or_running()
        own = {identity(self._plan, job): job for job in self._pending if not job.always}
        for number, queued in there.items():
            mark, key, folder = [*queued.comment.split(" ", 2), "", ""][:3]
            if mark != _MARK:
                continue
            if job := own.pop(key, None):
                self._display.tell(
                    "found", f"{job.name} is job {number} of {folder}: it is not submitted again"
                )
                self._add(job, number, Path(folder))
            elif other := _job_of(Path(folder), key):
                self._check_apart(other, number)
        # those of jobs that are there are locked where they run; of all others no run on this machine has one
        for key in sorted({key for job in self._pending for key in job.owed} - {*self._cells_there()}):
            os.close(lock_cell(cell_of(key)))

    def _cells_there(self) -> Iterator[str]:
        return (key for one in self._active for key in one.job.owed)

    def _check_apart(self, other: Job, number: str) -> None:
        for job in self._plan.jobs:
            if not job.always and (shared := sorted({*job.owed} & {*other.owed})):
                raise UserError(
                    f"{shared[0]} is being worked on by Slurm job {number} ({other.name}), which was told otherwise "
                    f"than this run: wait for it, or end it (scancel {number})"
                )

    def _submit_what_can(self) -> None:
        self._held_back, before = "", dict(self._ids)
        try:
            self._submit_in_order()
        finally:
            if self._ids != before:
                write_atomic(_numbers_path(self._folder), json.dumps(self._ids, indent=1))

    def _submit_in_order(self) -> None:
        for job in list(self._pending):
            if self._stop:
                return
            if why := self._no_room(job):
                self._held_back = why
                return  # in order: what comes later depends on it, or can wait as well
            before = [self._ids[name] for name in job.after if name in self._ids and name not in self._ended]
            if any(name not in self._ids for name in job.after):
                continue  # one of them is not submitted yet
            if any(one.job.name in job.after and one.folder != self._folder for one in self._active):
                continue  # what that one leaves is not in this run's folder before it has ended
            try:
                number = self._submit(job, before)
            except SlurmFailed as error:
                if _LATER.search(str(error)) and self._active:
                    self._full_at, self._held_back = len(self._active), f"as Slurm says: {error}"
                    return
                self._pending.remove(job)
                self._ids[job.name] = ""
                self._ended.add(job.name)
                self._ledger.never_started(job, FAILED, f"sbatch: {error}")
                continue
            self._add(job, number, self._folder)

    def _no_room(self, job: Job) -> str:
        """Why ``job`` must wait, by the bounds of config.sh and what Slurm takes; empty: it need not."""
        jobs, gpus = self._cluster.max_jobs, self._cluster.max_gpus
        if jobs is not None and len(self._active) >= jobs:
            return f"for SLURM_MAX_JOBS={jobs}"
        taken = sum(one.job.gpus_at_most for one in self._active)
        if gpus is not None and taken and taken + job.gpus_at_most > gpus:
            return f"for SLURM_MAX_GPUS={gpus}"
        if self._full_at and len(self._active) >= self._full_at:
            return "as Slurm takes no more jobs now"
        return ""

    def _submit(self, job: Job, before: Sequence[str]) -> str:
        """Its number. Raises SlurmFailed."""
        words = self._cluster.sbatch.get(job.name, [])
        # a user who wants them of one kind says how many, too
        is_told = any(_ASKS_FOR_GPUS.match(word) for word in words)
        gpus = [f"--gpus-per-node={job.gpus_at_most}"] if job.gpus_at_most and not is_told else []
        depends = [f"--dependency=afterany:{':'.join(before)}"] if before else []
        log = _files(self._folder) / f"{job.stem}.log"
        words_of_job = job_words(self._plan.path, job.name)
        command = [DRIVER_PYTHON, "-P", "-m", "imageevalkit.launch.node_job", *words_of_job]
        return (
            _asked(
                "sbatch",
                "--parsable",
                f"--job-name={job.name}",
                f"--comment={_MARK} {identity(self._plan, job)} {self._folder.absolute()}",
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
                *gpus,
                *words,
                f"--wrap=exec {shlex.join(command)}",
                environ=with_our_paths(environ_with(job.secrets)),
            )
            .strip()
            .partition(";")[0]
        )

    def _add(self, job: Job, number: str, folder: Path) -> None:
        self._pending.remove(job)
        self._ids[job.name] = number
        pace = self._paces[job.name] = PaceReader(
            replace(self._plan, run_folder=str(folder)).progress_path(job)
        )
        self._active.append(_Submitted(job, number, folder, pace))

    # Watching

    def _look(self) -> None:
        try:
            there = queue()
        except SlurmFailed as error:  # the controller restarts; the jobs go on
            self._held_back = f"as Slurm does not answer: {error}"
            return
        now = time.monotonic()
        for one in list(self._active):
            queued = there.get(one.id)
            if queued and queued.state not in _ENDED:
                if queued.state == "RUNNING" and one.state != "RUNNING":
                    one.running_since = now
                    self._display.job_started(one.job, 1, f"node {queued.node}, job {one.id}")
                one.state, one.reason, one.gone_since = queued.state, queued.reason, 0.0
                continue
            report = read_report(one.folder, one.job)
            one.gone_since = one.gone_since or now
            state = queued.state if queued else ""
            # what left no report when it was killed never will
            is_told = state in _KILLED
            if report:
                self._end(one, report)
            elif self._stop:
                self._end(one, Report(None, began=now, ended=now))
            elif is_told or now - one.gone_since > _FILES_COME_WITHIN:
                why = f"Slurm job {one.id} is {state or 'not in the queue any more'}"
                self._end(one, Report(None, f"{why}, and left no report", began=now, ended=now))

    def _end(self, one: _Submitted, report: Report) -> None:
        self._active.remove(one)
        self._ended.add(one.job.name)
        self._full_at = 0
        one.pace.read()  # its last words, for the sum of money
        job = one.job
        if one.folder != self._folder:
            self._take_over(one)
        if report.skipped:
            self._ledger.never_started(job, SKIPPED, report.problem)
            return
        stopped_by = self._stop.name if self._stop is not None else ""
        self._ledger.job_ended(
            job, report.attempts, report.ended - report.began, report.status, report.problem, stopped_by
        )

    def _take_over(self, one: _Submitted) -> None:
        """The outcomes that a job of another run has left are of this one, too."""
        for key in one.job.owed:
            if outcome := read_outcome(one.folder, cell_of(key), one.job.stage):
                write_outcome(self._folder, cell_of(key), one.job.stage, outcome)

    def _view(self) -> View:
        now = time.monotonic()
        states = self._ledger.cell_states()
        waiting = [
            WaitingJob(
                one.job.name, f"in Slurm's queue ({one.reason or one.state}), job {one.id}", now - self._began
            )
            for one in self._active
            if one.state != "RUNNING" and one.reason not in ("Dependency", "")
        ]
        if self._held_back and self._pending:
            waiting.append(
                WaitingJob(f"{len(self._pending)} jobs", f"wait {self._held_back}", now - self._began)
            )
        return View(
            seconds=now - self._began,
            cells=len(states),
            cells_done=sum(state is not None for state in states),
            cells_failed=sum(state is not None and state not in USABLE for state in states),
            running=[
                RunningJob(one.job, now - one.running_since, one.pace.read(self._ledger.ended_in(one.job, 1)))
                for one in self._active
                if one.state == "RUNNING"
            ],
            waiting=waiting,
            money=self._money(),
        )

    def _money(self) -> str:
        spent = [pace.spent for pace in self._paces.values() if pace.spent is not None]
        bounds = [pace.max_cost for pace in self._paces.values() if pace.max_cost is not None]
        if not spent:
            return ""
        return dollars(sum(spent)) + (f" of {dollars(min(bounds))}" if bounds else "")

    # The end

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop is None:
            # what is being submitted at this moment has no number yet: `_go_on` cancels all
            self._stop, self._stop_time = signal.Signals(number), time.monotonic()

    def _cancel(self) -> None:
        if ids := [one.id for one in self._active]:
            try:
                cancel(ids)
            except UserError as error:
                complain(str(error))

    def _summarize(self) -> RunSummary:
        stopped = None
        if self._stop is not None:
            stopped = ExitStatus.INTERRUPTED if self._stop == signal.SIGINT else ExitStatus.TERMINATED
            for job in self._pending:
                self._ledger.never_started(job, INTERRUPTED, f"not submitted, stopped by {self._stop.name}")
        summary = self._ledger.summarize(time.monotonic() - self._began, stopped)
        try:
            summary.save(self._folder)
        except (CellFailure, OSError) as error:
            complain(str(error))
            summary = replace(summary, status=worst([summary.status, ExitStatus.FAILED]))
        print_table(summary, sys.stdout)
        return summary
