"""Jobs in Slurm's queue: by what a launcher recognises them, the reports that they leave, and earlier runs' jobs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from imageevalkit.common.errors import ExitStatus, UserError, say
from imageevalkit.common.locks import why_of_one_machine
from imageevalkit.common.redaction import one_line
from imageevalkit.common.slurm import SlurmFailed
from imageevalkit.jobs.plan import COMPLETE, Job, Outcome, Plan, cell_of, load_plan, read_outcome
from imageevalkit.slurm.commands import ENDED, Queued, Slurm
from imageevalkit.store.cell import LAUNCHERS_LOCK, lock_cell, output_root
from imageevalkit.store.jsonl import Int, Number, Reader
from imageevalkit.store.records import merge_shards
from imageevalkit.store.shards import FOLDER as SHARDS

MARK = "imageevalkit "
"""The beginning of the comment of each job that this toolkit submits."""
FILES_COME_WITHIN = 60.0
"""Seconds until this machine sees the files of an ended job: NFS clients refresh every 3 to 60 s."""


@dataclass(frozen=True)
class Report:
    """The report that :mod:`imageevalkit.slurm.node_job` writes on a node when it ends.

    ``status`` is the exit status of the job; if it is None, ``problem`` says why. ``skipped``: the job did
    not start because an earlier stage failed. Times are seconds since 1970. ``outcomes`` are by cell: another
    machine may see the report before their files. ``idle``: the last attempt on ``node`` recorded nothing.
    """

    status: Int | None
    problem: str = ""
    skipped: bool = False
    attempts: Int = 1
    began: Number = 0.0
    ended: Number = 0.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    node: str = ""
    idle: bool = False

    @property
    def is_good(self) -> bool:
        """True if the job ended with the status COMPLETE or INCOMPLETE."""
        return self.status in (ExitStatus.COMPLETE, ExitStatus.INCOMPLETE)


_REPORT = Reader(Report)


def files_of(folder: Path) -> Path:
    """Return the folder of the files that the launcher and the jobs of the run in ``folder`` exchange."""
    return folder / "slurm"


def report_path(folder: Path, job: Job) -> Path:
    """Return the path of the report of ``job`` in the run's ``folder``."""
    return files_of(folder) / f"{job.stem}.json"


def read_report(folder: Path, job: Job) -> Report | None:
    """Return the report of ``job``; None while there is none. An unreadable report has no status."""
    try:
        return _REPORT.decode(report_path(folder, job).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return Report(None, f"its report is unreadable ({one_line(error, 100)})")


def identity(plan: Plan, job: Job) -> str:
    """Return a hash that is equal for jobs of different runs that do the same with the same cells."""
    order = {} if job.order is None else msgspec.to_builtins(job.order)
    settings = {
        name: plan.settings.get(name) for name in sorted({cell_of(key).benchmark for key in job.cells})
    }
    facts = [str(output_root().absolute()), job.step, job.cells, job.command, order, settings]
    told = json.dumps(facts, default=str, ensure_ascii=False)
    run = Path(plan.run_folder)
    for own in (str(run.absolute()), plan.run_folder, run.name):  # the names of its logs contain its name
        told = told.replace(own, "")
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def comment_of(plan: Plan, job: Job) -> str:
    """Return the comment by which this and later launchers recognise ``job`` in the queue."""
    return f"{MARK}{identity(plan, job)} {Path(plan.run_folder).absolute()}"


def run_of(queued: Queued) -> str:
    """Return the folder of the run that submitted the job; empty if this toolkit did not submit it."""
    return queued.comment.split(" ", 2)[-1] if queued.comment.startswith(MARK) else ""


def waiting_or_running(slurm: Slurm) -> dict[str, Queued]:
    """Return this user's unfinished jobs by number. Raises UserError: the queue cannot be read."""
    try:
        return {number: queued for number, queued in slurm.queue().items() if queued.state not in ENDED}
    except SlurmFailed as error:
        raise UserError(f"Slurm's queue cannot be seen: {error}") from None


class FoundJob(NamedTuple):
    """A ``job`` of an earlier run, in ``folder``, that is in the queue, submitted with ``comment``."""

    number: str
    folder: Path
    job: Job
    comment: str


@dataclass(frozen=True)
class Found:
    """The jobs and locks that a run starts with.

    ``jobs`` maps names of this run's jobs to queued jobs of earlier runs that do the same.
    ``locks`` are open files by cell; they keep other launchers from the cells until this launcher ends.
    """

    jobs: Mapping[str, FoundJob] = field(default_factory=dict)
    locks: Mapping[str, int] = field(default_factory=dict)


def look_around(plan: Plan, slurm: Slurm) -> Found:
    """Lock the cells of ``plan``, and find the queued jobs of earlier runs that do the same as its jobs.

    Raises UserError: a queued job does something else with a cell, another run has one, or the queue cannot
    be read.
    """
    if why := why_of_one_machine(output_root()):
        say(
            f"{output_root()} is on {why}: locks there hold on one machine only. A user's runs with --launcher slurm "
            "see each other in the queue; start no other runs on these results"
        )
    owed = sorted({key for job in plan.jobs for key in job.owed})
    with contextlib.ExitStack() as on_failure:
        locks = dict[str, int]()
        for key in owed:  # before the queue is read: from now on no other launcher submits jobs for them
            locks[key] = lock_cell(cell_of(key), name=LAUNCHERS_LOCK)
            on_failure.callback(os.close, locks[key])
        found = Found(_jobs_there(plan, slurm, owed), locks)
        on_failure.pop_all()
    return found


def _jobs_there(plan: Plan, slurm: Slurm, owed: Sequence[str]) -> dict[str, FoundJob]:
    """Return the jobs of :class:`Found`, and merge the shard records of cells that no such job works on.

    Raises UserError as :func:`look_around`.
    """
    there = waiting_or_running(slurm)
    others = {folder: _jobs_of(Path(folder)) for folder in {*map(run_of, there.values())} - {""}}
    own, cells = {identity(plan, job): job for job in plan.jobs if not job.always}, {*owed}
    jobs, ending = dict[str, FoundJob](), set[str]()
    for number, queued in there.items():
        key, folder = queued.comment.removeprefix(MARK).partition(" ")[0], run_of(queued)
        if not (other := others.get(folder, {}).get(key)):
            continue
        if queued.state == "COMPLETING":
            ending.update(other.owed)  # its files are written, and the next job waits for its locks
        elif key in own:
            jobs.setdefault(own[key].name, FoundJob(number, Path(folder), other, queued.comment))
        elif shared := sorted(cells & {*other.owed}):
            raise UserError(
                f"{shared[0]} is being worked on by Slurm job {number} ({other.name}), which has other settings "
                f"than this run: wait for it, or end it (scancel {number})"
            )
    for job in plan.jobs:
        # otherwise this run would repeat a stage whose results the found job uses
        if job.name in jobs and (lacking := _not_at_hand(plan, job, jobs)):
            number = jobs[job.name].number
            raise UserError(
                f"{job.name} is Slurm job {number} of an earlier run, whose {lacking} is not complete: wait, or "
                f"end it (scancel {number})"
            )
    theirs = ending | {key for job in plan.jobs if job.name in jobs for key in job.owed}
    for cell in (cell_of(key) for key in owed if key not in theirs):
        lock = lock_cell(cell)  # raises UserError if a run on one machine has the cell
        if (cell.folder / SHARDS).is_dir():
            merge_shards(cell)  # this run may divide the cell into other shards
        os.close(lock)
    return jobs


def _not_at_hand(plan: Plan, job: Job, found: Mapping[str, FoundJob]) -> str:
    """Return the name of a job before the found ``job`` that is neither found nor complete, or ""."""
    for before in (plan.job(name) for name in job.after if name not in found):
        for key in {*job.owed} & {*before.owed}:
            outcome = read_outcome(found[job.name].folder, cell_of(key), before.step)
            if outcome is None or outcome.state != COMPLETE:
                return before.name
    return ""


def _jobs_of(folder: Path) -> dict[str, Job]:
    """Return the jobs of the run in ``folder`` by :func:`identity`; none without a readable plan."""
    try:
        plan = load_plan(folder / "plan.json")
    except UserError:  # the plan is of another version, or was removed
        return {}
    return {identity(plan, job): job for job in plan.jobs if not job.always}
