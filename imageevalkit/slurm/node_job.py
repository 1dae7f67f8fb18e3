"""Runs one job of a plan on a cluster node, started by sbatch or by a script that ``--launcher export`` writes here.

Slurm may restart the job, also on another node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, run_main, say
from imageevalkit.common.locks import drop_lock, take_lock
from imageevalkit.common.machine import available_cores, start_of
from imageevalkit.common.redaction import one_line, secret_names
from imageevalkit.common.text import counted
from imageevalkit.jobs.plan import (
    USABLE,
    Job,
    Order,
    Plan,
    cell_of,
    given_job,
    job_words,
    lost_before,
    outcome_path,
    read_outcome,
    write_outcome,
)
from imageevalkit.plan.config import DRIVER_PYTHON, with_our_paths
from imageevalkit.plan.gpus import visible_gpus
from imageevalkit.run.runner import JobRun, job_environ, lifeline
from imageevalkit.slurm.commands import (
    FILES_COME_WITHIN,
    Report,
    Slurm,
    SlurmFailed,
    read_report,
    report_path,
)
from imageevalkit.store.cell import REPO, lock_cell, lock_shard, short_path
from imageevalkit.store.records import merge_shards
from imageevalkit.store.shards import Shard, own_file

_TICK = 0.2
_ENDED_WITHIN = 60.0  # seconds that Slurm may take to end a job that it puts back into the queue
_ASK_AGAIN_AFTER = 2.0  # seconds, if the controller does not answer
_MOST_RESTARTS = 5  # of a job that got too few GPUs
# If the controller loses contact to a node, the old job may hold its locks for a while beside the new one.
_LOCKED_FOR = 600.0
_LOOK_AT_CLAIM_EVERY = 5.0
_LOOK_AT_DONE_EVERY = 2.0
# Seconds. A file that this node never looked for has no old entry in the NFS cache, so it appears soon.
_SEEN_WITHIN = 5.0
# Seconds until the old process of a job reads the new claim and ends: NFS clients refresh every 3 to 60 s.
_LEFT_WITHIN = FILES_COME_WITHIN + _LOOK_AT_CLAIM_EVERY


def main(words: Sequence[str] | None = None) -> ExitStatus:
    """Runs the job that the command line names, unless an earlier stage failed, and writes its report."""
    os.chdir(REPO)
    plan, job, _ = given_job(Order, words)
    return _NodeJob(plan, job).run()


class _Claim:
    """A file that names the process that owns a job: the last one to write it.

    The claim needs no file lock, because some network disks have none.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._left = path, path.with_suffix(".left")
        self._own = f"{_node()} {os.getpid()} {start_of(os.getpid())}"
        self._next_look, self._is_ours = 0.0, True

    def take(self) -> str:
        """Claims the job for this process. Returns the claim of its previous owner; empty without one."""
        try:
            before = self._path.read_text()
        except OSError:
            before = ""
        write_atomic(self._path, self._own)
        return before

    def has_left(self, before: str) -> bool:
        """Returns True if the process that wrote the claim ``before`` has ended."""
        node, pid, start = [*before.split(), "", "", ""][:3]
        if node == _node() and not (pid.isdecimal() and start_of(int(pid)) == start):
            return True
        try:
            return self._left.read_text() == before
        except OSError:
            return False

    def is_ours(self) -> bool:
        """Returns False as soon as another process has claimed the job, and from then on."""
        if self._is_ours and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_AT_CLAIM_EVERY
            with contextlib.suppress(OSError):  # the disk does not answer: the next look decides
                self._is_ours = self._path.read_text() == self._own
        return self._is_ours

    def let_go(self) -> None:
        """Releases the claim. A process that has claimed the job meanwhile sees that this one has ended."""
        with contextlib.suppress(CellFailure, OSError):
            if self._path.read_text() == self._own:
                self._path.unlink()
            else:
                write_atomic(self._left, self._own)


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


class _NodeJob:
    def __init__(self, plan: Plan, job: Job) -> None:
        self._plan, self._job, self._folder = plan, job, Path(plan.run_folder)
        self._claim = _Claim(report_path(self._folder, job).with_suffix(".claim"))
        self._is_slurms = plan.cluster is not None and "SLURM_JOB_ID" in os.environ
        self._began = time.time()
        self._stopping: signal.Signals | None = None
        self._is_ending = False
        self._job_run: JobRun | None = None

    def run(self) -> ExitStatus:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        before = self._claim.take()
        try:
            return self._run(before)
        finally:
            self._claim.let_go()

    def _run(self, before: str) -> ExitStatus:
        """Runs the job after the previous owner ``before`` has ended, or after ``_LEFT_WITHIN`` seconds."""
        job = self._job
        until = time.monotonic() + _LEFT_WITHIN
        while before and not self._claim.has_left(before) and time.monotonic() < until:
            if self._stopping:
                return self._stopped(0, has_moved=False)
            time.sleep(_TICK)
        report_path(self._folder, job).unlink(missing_ok=True)  # an earlier start may have left it
        if self._plan.cluster is None:  # the user has started an exported script again: it does all again
            for key in job.owed:
                outcome_path(self._folder, cell_of(key), job.step).unlink(missing_ok=True)
        lost = {} if job.always else self._lost_before()
        if self._stopping:
            return self._stopped(0, has_moved=False)
        if lost and len(lost) == len(job.cells):
            return self._leave(Report(None, next(iter(lost.values())), skipped=True))
        given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        # Slurm 22.05 does so if a node dies while its job is put back
        if self._is_slurms and len(given) < job.gpus:
            what = f"Slurm gave it {len(given)} of {job.gpus} GPUs"
            again = int(os.environ.get("SLURM_RESTART_COUNT", "0")) < _MOST_RESTARTS
            return self._back_in_queue(what) if again else self._leave(Report(None, what, idle=True))
        try:
            locks = self._locks()
        except (UserError, OSError) as error:
            return self._leave(Report(None, one_line(error)))
        written, status, idle = self._written(), None, True
        with lifeline() as end_of_this:
            self._job_run = run = self._prepared(end_of_this, locks)
            while self._stopping is None and self._claim.is_ours():
                before_attempt = self._written()
                try:
                    run.start()
                except CellFailure as failure:
                    return self._leave(Report(None, str(failure), attempts=run.attempts, idle=True))
                status = self._watch(run, locks)
                idle = self._written() == before_attempt
                if not run.is_worth_retry(status):
                    break
        if not self._claim.is_ours():
            say("another machine has this job now")
            return ExitStatus.TERMINATED
        has_moved = self._written() != written  # also smaller: a batch's files are deleted once it is read
        if job.shard:
            self._gather(locks)
        if self._stopping and (job.always or self._plan.lacking(job)):
            return self._stopped(run.attempts, has_moved)
        return self._leave(Report(status, attempts=run.attempts, idle=idle))

    def _lost_before(self) -> dict[str, str]:
        """Returns :func:`imageevalkit.jobs.plan.lost_before`, after waiting for outcomes that other nodes wrote.

        If an outcome does not appear, it is copied from the report of its job.
        """
        job, until = self._job, time.monotonic() + _SEEN_WITHIN
        for before in map(self._plan.job, job.after):
            for key in {*job.cells} & {*before.owed}:
                while read_outcome(self._folder, cell_of(key), before.step) is None and not self._stopping:
                    report = read_report(self._folder, before)
                    if report and key in report.outcomes:
                        with contextlib.suppress(OSError):  # another job may write it at the same moment
                            write_outcome(self._folder, cell_of(key), before.step, report.outcomes[key])
                    elif report or time.monotonic() > until:
                        break
                    else:
                        time.sleep(_TICK)
        return lost_before(self._plan, job)

    def _locks(self) -> dict[str, list[int]]:
        """Locks the cells of the job (or its shard of them) and returns the descriptors by cell.

        A cell that an earlier start of the job has completed is left out: its evaluation may hold the lock.

        Raises UserError: another process holds a lock for too long. OSError: a lock file cannot be opened.
        """
        found, job = dict[str, list[int]](), self._job
        for key in sorted(job.owed):
            if self._is_done(key):
                continue
            if job.shard:
                found[key] = lock_shard(cell_of(key), job.shard, _LOCKED_FOR)
            else:
                found[key] = [lock_cell(cell_of(key), _LOCKED_FOR, for_owner=True)]
        return found

    def _is_done(self, key: str) -> bool:
        """Returns True if this run on Slurm has completed the cell; always False in an exported script."""
        if self._plan.cluster is None:
            return False
        outcome = read_outcome(self._folder, cell_of(key), self._job.step)
        return outcome is not None and outcome.state in USABLE

    def _drop_locks_of_done(self, locks: Mapping[str, list[int]]) -> None:
        """Unlocks completed cells: their evaluation may start on another node while this job runs."""
        for key, (lock, *_) in locks.items():
            if self._is_done(key):
                drop_lock(lock)

    def _gather(self, locks: Mapping[str, list[int]]) -> None:
        """Merges the records of all shards into the cell's, if no other shard is still running."""
        for key, (lock, *_) in locks.items():
            # BlockingIOError: other shards are running. After other errors, the next job of the cell merges.
            with contextlib.suppress(BlockingIOError, UserError, CellFailure, OSError):
                take_lock(lock, cell_of(key).folder)
                merge_shards(cell_of(key))

    def _prepared(self, lifeline: int, locks: Mapping[str, list[int]]) -> JobRun:
        job = self._job
        # On a node without cgroups, a job without GPUs would see all GPUs of the node.
        gpus = {} if job.gpus else {"CUDA_VISIBLE_DEVICES": ""}
        if job.gpus and not self._is_slurms:  # a container has its GPUs, but may not set the variable
            gpus = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.name for gpu in visible_gpus()[: job.gpus_at_most])}
        environ = job_environ(job, gpus, available_cores())
        place = f", Slurm job {os.environ['SLURM_JOB_ID']} on" if self._is_slurms else ", on"
        place += f" {_node()}"
        if shown := environ.get("CUDA_VISIBLE_DEVICES"):
            place += f", GPUs {shown}"
        fds = [fd for of_cell in locks.values() for fd in of_cell]
        return JobRun(self._plan, job, environ, lifeline, fds, place)

    def _watch(self, run: JobRun, locks: Mapping[str, list[int]]) -> int:
        """Waits until the attempt has ended, and returns its exit status."""
        if self._stopping:
            run.ask_to_end()
        look_at_done = time.monotonic() + _LOOK_AT_DONE_EVERY
        while (status := run.poll()) is None:
            time.sleep(_TICK)
            if len(locks) > 1 and time.monotonic() > look_at_done:
                self._drop_locks_of_done(locks)
                look_at_done = time.monotonic() + _LOOK_AT_DONE_EVERY
            if not self._claim.is_ours():
                run.ask_to_end()
        return status

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ends the job after a signal: SIGUSR1 at the time limit, or SIGTERM by preemption or scancel."""
        self._stopping = self._stopping or signal.Signals(number)
        self._is_ending = number != signal.SIGUSR1
        if self._job_run:
            self._job_run.ask_to_end()

    def _stopped(self, attempt: int, has_moved: bool) -> ExitStatus:
        """Requeues a job that was stopped, if it can continue later, and returns the exit status.

        If the job ran into its time limit without having recorded anything, it fails: it would never finish.
        """
        if self._stopping != signal.SIGUSR1 or not self._is_slurms:
            return ExitStatus.TERMINATED  # Slurm itself requeues the job if it is to continue
        if self._is_preempted():
            if self._is_ending:
                return ExitStatus.TERMINATED  # SIGTERM came, too: Slurm has requeued the job itself
            return self._back_in_queue("another job takes its place", attempt)
        if not has_moved:
            problem = (
                "it had to end SLURM_GRACE seconds before its time limit, without any progress: give it "
                "more time (SLURM_TIME_MAP)"
            )
            return self._leave(Report(None, problem, attempts=attempt))
        return self._back_in_queue("its time limit came", attempt)

    def _is_preempted(self) -> bool:
        """Returns True if Slurm sent SIGUSR1 because it preempts the job, not because of the time limit.

        With ``preempt_send_user_signal``, Slurm sends SIGUSR1 when the grace time begins and SIGTERM when it
        ends. Without that setting, Slurm sends SIGTERM only.
        """
        try:
            return Slurm().is_preempted(os.environ["SLURM_JOB_ID"])
        except (SlurmFailed, UserError):  # a node without squeue, or a silent controller
            return False

    def _back_in_queue(self, why: str, attempt: int = 1) -> ExitStatus:
        until = time.monotonic() + _ENDED_WITHIN
        while True:
            try:
                Slurm().requeue(os.environ["SLURM_JOB_ID"])
                break
            except (SlurmFailed, UserError) as error:
                is_silent = isinstance(error, SlurmFailed) and error.is_silent
                if is_silent and not self._is_ending and time.monotonic() < until:
                    time.sleep(_ASK_AGAIN_AFTER)
                    continue
                problem = f"{why}, and Slurm does not requeue it ({one_line(error, 200)}): run the same command again"
                return self._leave(Report(None, problem, attempts=attempt))
        say(f"{why}: back in the queue")
        until = time.monotonic() + _ENDED_WITHIN
        while not self._is_ending and time.monotonic() < until:
            time.sleep(_TICK)
        return ExitStatus.TERMINATED

    def _written(self) -> int:
        """Returns the total size in bytes of the files that change when the job makes progress."""
        size = 0
        for cell in map(cell_of, self._job.owed):
            records = own_file(cell.generation, Shard.of(self._job.shard))
            for path in (
                records,
                cell.judgements,
                cell.repeats,
                *cell.batches.glob("*"),
                *cell.judge_batches.glob("*"),
                cell.prompts,
            ):
                with contextlib.suppress(OSError):
                    size += path.stat().st_size
        return size

    def _leave(self, report: Report) -> ExitStatus:
        owed = {key: read_outcome(self._folder, cell_of(key), self._job.step) for key in self._job.owed}
        outcomes = {key: asdict(outcome) for key, outcome in owed.items() if outcome}
        written = asdict(report) | {"began": self._began, "ended": time.time(), "outcomes": outcomes}
        written["node"] = _node()
        with contextlib.suppress(CellFailure, OSError):  # full disk: a missing report counts as a failed job
            write_atomic(report_path(self._folder, self._job), json.dumps(written))
        if report.problem:
            say(report.problem)
        for key, outcome in owed.items():
            if outcome and outcome.state not in USABLE:
                say(f"{key}: {outcome.state}: {outcome.message}")
        # An incomplete cell is no failure: a workflow engine must not start its script again.
        return ExitStatus.COMPLETE if report.is_good else ExitStatus.FAILED


# The scripts of --launcher export

# The variables that eval.sh exports, and our own: without them a job would behave differently elsewhere.
_PASSED_ON = (
    *(
        "CONDA_BASE",
        "CUDA_BASE",
        "TORCH_HOME",
        "HF_HOME",
        "TRANSFORMERS_CACHE",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
    ),
    *(
        "BASE_URL",
        "AZURE_OPENAI_ENDPOINT",
        "OPENAI_API_VERSION",
        "OPENAI_ORG_ID",
        "OPENAI_PROJECT_ID",
        "HF_ENDPOINT",
    ),
    *(
        "IMAGEEVALKIT_OUTPUT",
        "IMAGEEVALKIT_LOG",
        "ORT_DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
        "PYTHONUTF8",
        "PYTHONPATH",
    ),
)


def export(plan: Plan) -> ExitStatus:
    """Writes the scripts of ``plan`` and prints their folder. Raises CellFailure: the disk is full."""
    folder = write_scripts(plan)
    say(f"{counted(len(plan.jobs), 'script')} and jobs.json in {short_path(folder)}: nothing was started")
    return ExitStatus.COMPLETE


def write_scripts(plan: Plan) -> Path:
    """Writes the scripts of ``plan`` to ``export`` in its run folder, which is returned.

    Raises CellFailure: the disk is full.

    ``jobs.json`` lists the jobs in an order in which they can run. ``after`` names the jobs that must end
    first, well or not. Jobs of the same ``level`` do not depend on each other. A ``light`` job waits for
    endpoints most of the time. ``secrets`` are the variables that the engine must pass to the job.
    """
    folder, levels, jobs = (
        Path(plan.run_folder).absolute() / "export",
        dict[str, int](),
        list[dict[str, object]](),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for number, job in enumerate(plan.jobs, 1):
        levels[job.name] = 1 + max((levels[name] for name in job.after), default=0)
        script = folder / f"{number:04}-{job.stem}.sh"
        write_atomic(script, _script(plan, job))
        script.chmod(0o755)
        entry = {"name": job.name, "script": str(script), "after": job.after, "level": levels[job.name]}
        entry |= {"gpus": job.gpus_at_most, "cpus": job.cores, "light": job.light, "secrets": job.secrets}
        jobs.append(entry)
    write_atomic(folder / "jobs.json", json.dumps(jobs, indent=1, ensure_ascii=False) + "\n")
    return folder


def _script(plan: Plan, job: Job) -> str:
    environ, secrets = with_our_paths(dict(os.environ)), {*secret_names()}
    exported = {name: environ[name] for name in _PASSED_ON if environ.get(name) and name not in secrets}
    lines = [
        "#!/usr/bin/env bash",
        f"# {job.name}: {counted(job.gpus_at_most, 'GPU')}, {counted(job.cores, 'core')}",
    ]
    lines += [f"# needs {name} in its environment" for name in job.secrets]
    lines += ["set -euo pipefail", f"cd {shlex.quote(str(REPO))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in exported.items()]
    words = [DRIVER_PYTHON, "-P", "-m", "imageevalkit.slurm.node_job", *job_words(plan.path, job.name)]
    return "\n".join([*lines, f"exec {shlex.join(words)}"]) + "\n"


if __name__ == "__main__":
    run_main(main)
