"""Slurm as a launcher sees it: its commands, the options of sbatch, and the jobs of this toolkit in its queue.

Commands and states: https://slurm.schedmd.com/sbatch.html, squeue.html.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from imageevalkit import registry
from imageevalkit.common.errors import ExitStatus, UserError, say, suggest
from imageevalkit.common.locks import why_of_one_machine
from imageevalkit.common.redaction import one_line
from imageevalkit.jobs.plan import (
    COMPLETE,
    GenerateOrder,
    Job,
    Outcome,
    Plan,
    cell_of,
    load_plan,
    read_outcome,
)
from imageevalkit.plan.config import ALL, Config, parse_count
from imageevalkit.plan.models import entry_name, model_tasks
from imageevalkit.plan.options import SLURM, Options
from imageevalkit.store.cell import LAUNCHERS_LOCK, lock_cell, output_root
from imageevalkit.store.jsonl import Int, Number, Reader
from imageevalkit.store.records import merge_shards
from imageevalkit.store.shards import FOLDER as SHARDS

# The commands of Slurm, and the meaning of their errors

_ANSWERS_WITHIN = 60.0
_PREFIX = re.compile(r"^\w+: (?:(?:error|fatal): )?")  # "sbatch: error: "
# Messages of the controller that mean "no more jobs for now", such as QOSMaxSubmitJobPerUserLimit.
_LATER = re.compile(
    r"SubmitJob|MaxJobCount|Job/step count|Resource temporarily unavailable|Slurm temporarily", re.I
)
# "submit limit" without the name of a limit means too many jobs for now, or a job that is too large or long.
_PERHAPS_LATER = re.compile(r"^(?!.*\w+Limit\b).*submit limit", re.I)
# The controller restarts, is overloaded or cannot be reached, so it may have received the command. Most of
# these messages are from slurm_errno.h.
_SILENT = re.compile(
    r"contact slurm controller|timed out|Connection (?:refused|reset)|Transport endpoint"
    r"|standby mode|Zero Bytes|Unable to connect|primary controller|Address family not supported|Unexpected message"
    r"|missing socket|Message (?:send|receive) failure|Communication (?:connection|shutdown) failure"
    r"|Protocol authentication|Insane message length|Munge (?:encode|decode) failed",
    re.I,
)


class SlurmFailed(Exception):
    """A command of Slurm failed; the text says why in one line.

    ``passes``: the command will succeed once other jobs have ended; ``may_pass``: it may. ``is_silent``:
    Slurm did not answer, and may still carry out the command.
    """

    def __init__(self, text: str, is_silent: bool = False) -> None:
        super().__init__(text)
        self.passes, self.may_pass = bool(_LATER.search(text)), bool(_PERHAPS_LATER.search(text))
        self.is_silent = is_silent or bool(_SILENT.search(text))


def ask(*command: str, environ: Mapping[str, str] | None = None) -> str:
    """Returns the output of a Slurm command. Raises UserError: it is not installed. SlurmFailed: it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWERS_WITHIN,
            env=environ,
            start_new_session=True,  # Ctrl-C must not stop sbatch: a submitted job's number would be lost
        )
    except FileNotFoundError:
        raise UserError(
            f"there is no {command[0]} on this machine: --launcher slurm is for a machine from which jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmFailed(f"{command[0]} gave no answer within {_ANSWERS_WITHIN:.0f} s", True) from None
    except OSError as error:
        raise SlurmFailed(f"{command[0]}: {one_line(error)}") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [
            f"exit status {done.returncode}"
        ]
        raise SlurmFailed(one_line("; ".join(_PREFIX.sub("", line) for line in lines[-3:]), 300))
    return done.stdout


_AT_ONCE = 500  # job numbers in one command
# "sbatch --parsable" prints the job number, then ";" and the cluster if there are several clusters.
_NUMBER = re.compile(r"(\d+)(?:;\S+)?")
# Model names are printable, so no column contains a tab.
_TAB, _COLUMNS = "\t", ("%i", "%T", "%r", "%N", "%j", "%k")
# "JOB STATE CODES" of squeue
KILLED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)
"""States of a job that Slurm or a user has ended for good."""
ENDED = KILLED | {"COMPLETED", "FAILED"}
NODES_FAULT = frozenset({"BOOT_FAIL", "FAILED", "NODE_FAIL"})
"""States that suggest a broken node (without the shared disk, say) if the job left no file."""


class Queued(NamedTuple):
    """A job in Slurm's queue. ``reason`` says why it waits; its submission set ``name`` and ``comment``."""

    state: str
    reason: str
    node: str
    name: str
    comment: str


class Slurm:
    """The Slurm that this machine submits jobs to."""

    def submit(self, words: Sequence[str], environ: Mapping[str, str]) -> str:
        """Submits a job with the sbatch options ``words`` and the variables ``environ``; returns its number.

        Raises SlurmFailed: sbatch fails. UserError: there is no sbatch on this machine.
        """
        printed = ask("sbatch", "--parsable", *words, environ=environ)
        # a site's plugins may print a banner before or after the number
        for line in reversed(printed.splitlines()):
            if found := _NUMBER.fullmatch(line.strip()):
                return found[1]
        raise SlurmFailed(f"sbatch printed no job number ({one_line(printed, 100)})", is_silent=True)

    def queue(self) -> dict[str, Queued]:
        """Returns this user's jobs by number, also recently ended ones. Raises as :meth:`submit`."""
        # SQUEUE_* variables of the user could filter out jobs.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
        columns = f"--format={_TAB.join(_COLUMNS)}"
        printed = ask("squeue", "--noheader", "--me", "--states=all", columns, environ=environ)
        rows = (line.split(_TAB, len(_COLUMNS) - 1) for line in printed.splitlines())
        return {number: Queued(*row) for number, *row in rows if len(row) == len(Queued._fields)}

    def is_preempted(self, number: str) -> bool:
        """Returns True if Slurm is taking the nodes of this job for another one. Raises as :meth:`submit`."""
        printed = ask("squeue", "--noheader", f"--jobs={number}", "--Format=PreemptTime")
        return printed.strip() not in ("", "N/A")

    def requeue(self, number: str) -> None:
        """Ends a running job and puts it back into the queue. Raises as :meth:`submit`."""
        ask("scontrol", "requeue", number)

    def start_early(self, numbers: Sequence[str]) -> None:
        """Removes the dependencies of these jobs, so that they can start now. Raises as :meth:`submit`."""
        _for_all(numbers, lambda part: ask("scontrol", "update", f"JobId={','.join(part)}", "Dependency="))

    def cancel(self, numbers: Sequence[str]) -> None:
        """Ends these jobs. Raises as :meth:`submit`."""
        _for_all(numbers, lambda part: ask("scancel", *part))


def _for_all(numbers: Sequence[str], call: Callable[[Sequence[str]], object]) -> None:
    """Calls ``call`` with all ``numbers``, part by part. Raises SlurmFailed at the end if a call failed."""
    failed: SlurmFailed | None = None
    for n in range(0, len(numbers), _AT_ONCE):
        try:
            call(numbers[n : n + _AT_ONCE])
        except SlurmFailed as error:
            failed = error
    if failed:
        raise failed


# The options of sbatch, from the maps of config.sh

_MAPS = {
    "SLURM_PARTITION_MAP": "--partition",
    "SLURM_ACCOUNT_MAP": "--account",
    "SLURM_QOS_MAP": "--qos",
    "SLURM_TIME_MAP": "--time",
    "SLURM_MEM_MAP": "--mem",
    "SLURM_CPUS_MAP": "--cpus-per-task",
}
_ARGS = "SLURM_ARGS_MAP"
_API = "api"
# Keys in these maps: a model or benchmark, ``api`` for jobs that wait for endpoints (they need the internet, but
# no GPU), a stage, or ``*``.
_STAGES = ("rewrite", "generate", "adopt", "evaluate", "report")
_CPUS = {True: 2, False: 4}  # CPUs for each replica; the key is True for a light job
# sbatch options by which the launcher finds and restarts its jobs. A user's value would replace its own.
_OURS = (
    *("--job-name", "--comment", "--dependency", "--chdir", "--output", "--open-mode", "--nodes", "--ntasks"),
    *(
        "--requeue",
        "--no-requeue",
        "--kill-on-invalid-dep",
        "--signal",
        "--export",
        "--wrap",
        "--array",
        "--wait",
    ),
    *("--parsable", "--test-only"),
)
_OURS_SHORT = "JdDoNnaW"
_ASKS_FOR_GPUS = re.compile(r"--gpus|-G|--gres=.*\bgpu")
_ASKS_FOR_CPUS = re.compile(r"--cpus-per-(?:task|gpu)|-c")
_GPU = re.compile(r"\bgpu(?::[^:,(\s]+)?:(\d+)")


def gpus_per_node(config: Config) -> int:
    """Returns the number of GPUs of the largest node: SLURM_GPUS_PER_NODE in config.sh, else from sinfo.

    Raises UserError: SLURM_GPUS_PER_NODE is not a number, or it is empty and sinfo fails.
    """
    if given := config.text("SLURM_GPUS_PER_NODE").strip():
        return 0 if given == "0" else parse_count(given, "SLURM_GPUS_PER_NODE in config.sh")
    try:
        nodes = ask("sinfo", "--noheader", "--Node", "--format=%G").splitlines()
    except SlurmFailed as error:
        # without a controller, sinfo looks for its configuration and fails there
        if error.is_silent or "fetch_config" in str(error):
            raise UserError(f"no Slurm controller answers: {error}; --launcher local needs none") from None
        raise UserError(f"the cluster does not report its GPUs ({error}): set SLURM_GPUS_PER_NODE") from None
    return max((sum(map(int, _GPU.findall(node))) for node in nodes), default=0)


def with_nodes(options: Options, config: Config) -> Options:
    """Returns ``options``; for a run on Slurm with the GPUs of a node. Raises UserError as :func:`gpus_per_node`."""
    return replace(options, gpus_per_node=gpus_per_node(config)) if options.launcher == SLURM else options


def sbatch_words(config: Config, plan: Plan) -> dict[str, list[str]]:
    """Returns the sbatch options of each job of ``plan`` by name.

    Raises UserError as :func:`words_for`, or a map has a misspelt key: the job would go to another partition.
    """
    known = [ALL, _API, *_STAGES, *model_tasks(), *registry.benchmark_tasks()]
    for variable in (*_MAPS, _ARGS):
        for key in config.map(variable):
            if key not in known and (near := suggest(key, known)) and not registry.is_plugin(key):
                raise UserError(f"{variable} (config.sh, config.local.sh) names unknown key '{key}'{near}")
    return {job.name: words_for(config, job) for job in plan.jobs}


def words_for(config: Config, job: Job) -> list[str]:
    """Returns the sbatch options of ``job`` from the maps of config.sh.

    In each map, the first of these keys counts: model or benchmark, ``api`` (light jobs), stage, ``*``.

    Raises UserError: a variable is no map, its options cannot be split, or one is reserved for the launcher.
    """
    cells = [cell_of(key) for key in job.cells]
    names = {cell.benchmark if job.stage == "evaluate" else entry_name(cell.raw.model) for cell in cells}
    keys = [*(names if len(names) == 1 else ()), *([_API] if job.light else ()), job.stage, ALL]

    def found(variable: str) -> str:
        given = config.map(variable)
        return next((given[key].strip() for key in keys if key in given), "")

    options = {option: found(variable) for variable, option in _MAPS.items()}
    words = [f"{option}={value}" for option, value in options.items() if value]
    try:
        more = shlex.split(found(_ARGS))
    except ValueError as error:
        raise UserError(f"{_ARGS} in config.sh: {found(_ARGS)!r}: {error}") from None
    if wrong := next(filter(_is_ours, more), ""):
        raise UserError(
            f"{_ARGS} in config.sh: '{wrong}' is reserved for the launcher, which finds its jobs by it: leave it out"
        )
    return [*words, *more]


def _is_ours(word: str) -> bool:
    option = word.partition("=")[0]
    # sbatch also accepts an unambiguous beginning of a long option
    is_long = len(option) > 4 and any(one.startswith(option) for one in _OURS)
    return is_long or (len(word) > 1 and word[0] == "-" and word[1] in _OURS_SHORT)


def words_for_size(job: Job, words: Iterable[str]) -> list[str]:
    """Returns the sbatch options for GPUs and CPUs of ``job``, unless ``words`` (config.sh) set them."""
    words = list(words)
    size = list[str]()
    if job.gpus_at_most and not any(map(_ASKS_FOR_GPUS.match, words)):
        size.append(f"--gpus-per-node={job.gpus_at_most}")
    if not any(map(_ASKS_FOR_CPUS.match, words)):
        size.append(f"--cpus-per-task={_CPUS[job.light or job.always] * replicas_of(job)}")
    return size


def replicas_of(job: Job) -> int:
    """Returns how many copies of its model the job may run at once."""
    if job.gpus:
        return job.gpus_at_most // job.gpus
    order = job.order
    if isinstance(order, GenerateOrder) and not order.api and not order.replica_gpus:
        return order.replicas or 1
    return 1


# The jobs of this toolkit in the queue

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
    text = json.dumps(facts, default=str, ensure_ascii=False)
    run = Path(plan.run_folder)
    for own in (str(run.absolute()), plan.run_folder, run.name):  # the names of its logs contain its name
        text = text.replace(own, "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
        raise UserError(f"Slurm's queue cannot be read: {error}; check `squeue`") from None


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
