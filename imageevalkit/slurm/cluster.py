"""The Slurm launcher: submits the jobs of a plan with their dependencies, and watches them to their end.

The launcher reads results from files, and whether a job waits or runs from Slurm's queue. So it needs no
Slurm accounting, and the jobs run to their end without it.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, complain
from imageevalkit.common.redaction import environ_with
from imageevalkit.common.text import counted
from imageevalkit.jobs.plan import (
    FAILED,
    Job,
    Plan,
    cell_of,
    job_words,
    read_outcome,
    stop_path,
    write_outcome,
)
from imageevalkit.jobs.progress import Pace, PaceReader
from imageevalkit.plan.config import DRIVER_PYTHON, with_our_paths
from imageevalkit.run.display import (
    INTERRUPTED,
    SKIPPED,
    RunningJob,
    RunSummary,
    View,
    WaitingJob,
    choose_display,
    print_table,
)
from imageevalkit.run.ledger import Ledger, money_of
from imageevalkit.slurm.commands import (
    ENDED,
    FILES_COME_WITHIN,
    KILLED,
    NODES_FAULT,
    Found,
    Queued,
    Report,
    Slurm,
    SlurmFailed,
    comment_of,
    files_of,
    read_report,
    report_path,
    run_of,
    words_for_size,
)
from imageevalkit.store.cell import REPO

_TICK = 0.5
# Seconds between two reads of the queue, and the jobs that add one second: all users share the controller.
_LOOK_EVERY, _JOBS_PER_SECOND = 2.0, 100
# Seconds of submitting before the launcher looks at ended jobs again: a plan may have thousands of jobs.
_SUBMITS_FOR = 2.0
_KILLED_FOR = 4.0  # the same, if Slurm says that it has killed the job
# Seconds until the launcher tries a full queue again: jobs of other users end, too.
_FULL_FOR = 30.0
_SHOWN_PER_SECOND = 500  # jobs: the display visits all of them at each refresh
# If sbatch does not confirm a job, the job is in the queue after so many seconds, or Slurm did not accept it.
_TAKEN_WITHIN = 15.0
_STOPS_WITHIN = 60.0
# A single failure may be the fault of the job: a large model fails on a node with small GPUs.
_PROOFS = 2


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
        """Return True if ``queued`` is this job: a controller that lost its state reuses job numbers."""
        # some sites replace the comments of jobs; then the name decides
        return queued.comment == self.comment or (queued.name == self.job.name and not run_of(queued))

    @property
    def why(self) -> str:
        """The reason why the job waits."""
        text = f"in Slurm's queue ({self.reason}), job {self.id}"
        # "launch failed requeued held", "JobHeldUser": the job waits until a user releases it
        is_held = "held" in self.reason.lower()
        return f"{text}: scontrol release {self.id} lets it continue" if is_held else text


def run_plan(
    plan: Plan,
    found: Found,
    slurm: Slurm,
    words: Mapping[str, Sequence[str]],
    detached: bool = False,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> RunSummary:
    """Submit ``plan``, watch and show it to its end, print the table of all cells and write ``summary.json``.

    SIGINT, SIGTERM, SIGHUP or a file at :func:`imageevalkit.jobs.plan.stop_path` cancel all jobs of the run.

    Args:
        found: The result of :func:`look_around`; jobs that are already in the queue are not submitted again.
        words: The sbatch options of each job by name (:func:`sbatch_words`).
        detached: If True, the signals end only the launcher: a rebooting login node must not cancel all jobs.
        now: Returns the time in seconds; a simulation has a clock of its own.
        sleep: Waits for so many seconds of that clock.
    """
    return _Run(plan, found, slurm, words, detached, now, sleep).run()


class _Run:
    def __init__(
        self,
        plan: Plan,
        found: Found,
        slurm: Slurm,
        words: Mapping[str, Sequence[str]],
        detached: bool,
        now: Callable[[], float],
        sleep: Callable[[float], object],
    ) -> None:
        assert plan.cluster
        self._cluster, self._found, self._slurm, self._words = plan.cluster, found, slurm, words
        self._is_detached, self._now, self._sleep = detached, now, sleep
        self._plan, self._folder = plan, Path(plan.run_folder)
        self._display = choose_display(sys.stderr)
        self._ledger = Ledger(plan, self._display)
        self._pending = list(plan.jobs)
        self._active: list[_Submitted] = []
        self._ids: dict[str, str] = {}  # job numbers by name; empty if Slurm refused the job
        # jobs that sbatch may have submitted, by name, with the time of the call
        self._unsure: dict[str, float] = {}
        self._silence = ""  # the error of a controller that does not answer
        self._ended = set[str]()
        self._faults = NodeFaults()
        self._first_tries: dict[str, tuple[_Submitted, Report]] = {}
        self._again_at: dict[str, float] = {}  # by name: when a job was put back to be submitted again
        self._old_ids = set[str]()  # the earlier numbers of jobs that are submitted again
        self._paces: dict[str, PaceReader] = {}
        self._held_back = ""
        self._full_until = 0.0  # the queue is full until then, or until a job of this run ends
        self._next_look = self._next_view = 0.0
        self._leaves_by: signal.Signals | None = None
        self._stop: signal.Signals | None = None
        self._stop_time = 0.0
        self._is_stopping = self._is_cancelled = False
        self._began = now()

    def run(self) -> RunSummary:
        self._ledger.forget_earlier_run()
        files_of(self._folder).mkdir(parents=True, exist_ok=True)
        for name, there in self._found.jobs.items():
            text = f"{name} is job {there.number} of {there.folder}: it is not submitted again"
            self._display.tell("found", text)
            self._add(there.job, there.number, there.comment, there.folder)
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
        if note := self._faults.summary():
            self._display.tell("note", note)
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
        # only after a successful read of the queue: an old number may belong to another job
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
                taken = max(taken, most)  # no smaller GPU job overtakes it; jobs without GPUs do
                continue
            if any(name not in self._ids for name in job.after):
                continue  # a job before it is not submitted yet
            before = [one for one in self._active if one.job.name in job.after]
            # A job of another run has its outcomes in this run's folder only after its end. The number of a
            # job that has left the queue may be reused: a dependency on it could wait for the wrong job.
            if any(one.folder != self._folder or one.gone_since for one in before):
                continue
            comment = comment_of(self._plan, job)
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
                if job.name in self._first_tries:  # no other node takes it: its first failure counts
                    self._end(*self._first_tries[job.name])
                    continue
                self._ended.add(job.name)
                self._ledger.never_started(job, FAILED, f"sbatch: {error}")
                continue
            self._add(job, number, comment, self._folder)
            taken += job.gpus_at_most

    def _no_room(self) -> str:
        """Return why no job can be submitted now: a limit in config.sh or a full queue; "" if one can."""
        if self._unsure:
            return "to see which jobs Slurm has"
        if self._cluster.max_jobs is not None and len(self._active) >= self._cluster.max_jobs:
            return f"for SLURM_MAX_JOBS={self._cluster.max_jobs}"
        return "as Slurm takes no more jobs now" if self._now() < self._full_until else ""

    def _before(self, job: Job) -> list[str]:
        """Return the numbers of the jobs that must end before ``job`` starts."""
        numbers = [self._ids[name] for name in job.after if name in self._ids and name not in self._ended]
        return [*([] if self._ledger.verdict(job).ready else numbers), *self._others_at(job)]

    def _others_at(self, job: Job) -> list[str]:
        """Return the numbers of the jobs of earlier runs that hold locks on cells of ``job``."""
        # the shards of a cell share its lock
        others = (
            one for one in self._active if one.folder != self._folder and not (one.job.shard and job.shard)
        )
        return [one.id for one in others if not {*one.job.owed}.isdisjoint(job.owed)]

    def _submit(self, job: Job, comment: str) -> str:
        """Submits ``job`` and returns its number. Raises SlurmFailed."""
        words = self._faults.words(job.name, self._words.get(job.name, []))
        before = self._before(job)
        depends = [f"--dependency=afterany:{':'.join(before)}"] if before else []
        log = files_of(self._folder) / f"{job.stem}.log"
        command = [DRIVER_PYTHON, "-P", "-m", "imageevalkit.slurm.node_job"]
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

    def _add(self, job: Job, number: str, comment: str, folder: Path) -> None:
        """Watches ``job`` of the run in ``folder``, which is in the queue under ``number``."""
        self._pending.remove(self._plan.job(job.name))
        self._ids[job.name] = number
        path = folder / self._plan.progress_path(job).relative_to(self._folder)
        pace = self._paces[job.name] = PaceReader(path)
        self._active.append(_Submitted(job, number, comment, folder, pace, self._now()))

    # Watching

    def _look(self) -> None:
        self._ledger.collect({one.job.name: 1 for one in self._active})
        try:
            there = self._slurm.queue()
        except SlurmFailed as error:  # the controller may be restarting; the jobs continue
            self._silence = str(error)
            return
        self._silence = ""
        self._find_those_of_silence(there)
        self._take_in(there)
        if self._stop is None:
            self._start_early()

    def _take_in(self, there: Mapping[str, Queued]) -> None:
        """Reads the states of submitted jobs from the queue, and the reports of jobs that have left it."""
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
                if one.state == "RUNNING":  # not at every tick: hundreds of files on a network disk
                    one.paces = one.pace.read(self._ledger.ended_in(one.job, 1))
                continue
            if one not in self._active:  # it was put back together with a job before it
                continue
            report = read_report(one.folder, one.job)
            one.gone_since = one.gone_since or now
            if queued:  # stored, because Slurm soon drops the job
                one.state = queued.state
            state = one.state if one.state in ENDED else ""
            # a killed job that has not written its report writes none later
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
        """Lets an evaluation start once its images exist, even if the model still generates others."""
        waiting = (one for one in self._active if (one.state, one.reason) == ("PENDING", "Dependency"))
        early = [
            one.id
            for one in waiting
            if not one.job.always and self._ledger.verdict(one.job).ready and not self._others_at(one.job)
        ]
        if early:
            # if Slurm refuses, they start when the job before them has ended
            with contextlib.suppress(SlurmFailed, UserError):
                self._slurm.start_early(early)

    def _find_those_of_silence(self, there: Mapping[str, Queued]) -> None:
        """Finds unconfirmed jobs in the queue. If such a job is not there, it may be submitted again."""
        for name, asked in list(self._unsure.items()):
            job = self._plan.job(name)
            comment = comment_of(self._plan, job)
            numbers = (number for number, queued in there.items() if queued.comment == comment)
            number = next((number for number in numbers if number not in self._old_ids), "")
            if number:
                self._add(job, number, comment, self._folder)
                self._is_cancelled = False  # a stopping run must cancel this job, too
            if number or self._now() - asked > _TAKEN_WITHIN:
                del self._unsure[name]

    def _has_left(self, one: _Submitted, report: Report) -> None:
        """Handles a job that has left the queue: it has ended, or is submitted again for another node."""
        job, is_last = one.job, self._stop is not None or one.folder != self._folder
        if not is_last and (job.always or not report.is_good):
            # it may have seen the failure of a job before it, and that job is submitted again
            if any(self._again_at.get(name, -1.0) > one.since for name in job.after):
                self._put_back([one])
                return
            if any(other.job.name in job.after for other in self._active):
                return  # the job before it may still be submitted again
        outcomes = [
            report.outcomes.get(key) or read_outcome(one.folder, cell_of(key), job.step) for key in job.owed
        ]
        did_nothing = report.idle and all(outcome is None or outcome.state == FAILED for outcome in outcomes)
        is_bad = did_nothing and not (report.skipped or report.is_good)
        node = report.node or one.node
        if is_last or not is_bad or not self._faults.may_try_elsewhere(job.name, node):
            self._end(one, report)
            return
        reason = report.problem or next((outcome.message for outcome in outcomes if outcome), "it crashed")
        text = f"{job.name} on node {node}, job {one.id} ({reason}): it is submitted again for another node"
        self._display.tell(FAILED, text, FAILED)
        self._first_tries[job.name] = one, report
        behind = [other for other in self._active if job.name in other.job.after and other.state != "RUNNING"]
        try:
            self._slurm.cancel([other.id for other in behind])
        except (SlurmFailed, UserError):
            behind = []  # each of them sees the failure when it starts, and skips itself
        self._put_back([one, *behind])

    def _put_back(self, those: Sequence[_Submitted]) -> None:
        """Puts ``those`` jobs back among the pending jobs, in the order of the plan."""
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
        one.pace.read()  # its last progress lines count in the sum of costs
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
        """Copies missing outcomes to this run's folder, from ``report`` or from the folder of another run."""
        for key in one.job.owed:
            cell, step, outcome = cell_of(key), one.job.step, report.outcomes.get(key)
            if one.folder != self._folder:
                outcome = outcome or read_outcome(one.folder, cell, step)
            if outcome and read_outcome(self._folder, cell, step) is None:
                # if the disk is full, the ledger reports the missing outcome
                with contextlib.suppress(CellFailure, OSError):
                    write_outcome(self._folder, cell, step, outcome)

    def _view(self) -> View:
        now = self._now()
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
        running = [
            RunningJob(one.job, now - one.running_since, one.paces)
            for one in self._active
            if one.state == "RUNNING"
        ]
        return self._ledger.view(now - self._began, running, waiting, self._paces.values())

    # The end

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_detached and not stop_path(self._folder).exists():
            self._leaves_by = self._leaves_by or signal.Signals(number)
        elif self._stop is None:
            # not here: a job that is being submitted has no number yet. `_go_on` cancels all jobs
            self._stop, self._stop_time = signal.Signals(number), self._now()

    def _leave(self, why: signal.Signals) -> RunSummary:
        """Returns the summary of a run whose jobs continue. No file is written, because the run has not
        ended.
        """
        text = f"{why.name}: this launcher ends, and {counted(len(self._active), 'job')} continue in Slurm's queue"
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
                    return  # the next tick tries again
                complain(str(error))
        self._is_cancelled = True

    def _tell_what_is_left(self) -> None:
        ids = [one.id for one in self._active]
        if count := len(ids) + len(self._unsure):
            by_number = f" (scancel {' '.join(ids)})" if ids else ""
            left = f"{counted(count, 'job')} of this run may be in Slurm's queue yet"
            complain(f"{left}: bash eval.sh --cancel ends the others, once Slurm answers{by_number}")


class NodeFaults:
    """The nodes on which jobs of a run failed before they had done anything.

    Each job has one more try, on another node. If that try succeeds, the failure was the first node's. A node with two
    such failures is excluded for all jobs that are submitted later.
    """

    def __init__(self) -> None:
        self._first = dict[str, str]()  # the node that failed a job first, by the job's name
        self._failed = Counter[str]()  # by node: the jobs that another node completed

    def may_try_elsewhere(self, job: str, node: str) -> bool:
        """Notes that ``node`` failed ``job``. Returns True if the job may try another node (once only)."""
        if not node or job in self._first:
            return False
        self._first[job] = node
        return True

    def completed(self, job: str) -> None:
        """Notes that ``job`` succeeded: if it failed before, the first node was at fault."""
        if node := self._first.pop(job, ""):
            self._failed[node] += 1

    def words(self, job: str, words: Sequence[str]) -> list[str]:
        """Returns the options ``words`` of sbatch, with an --exclude of the nodes that must not get ``job``."""
        nodes = {node for node, count in self._failed.items() if count >= _PROOFS}
        if not (excluded := sorted(nodes | {self._first[job]} if job in self._first else nodes)):
            return list(words)
        options = argparse.ArgumentParser(add_help=False)
        options.add_argument("-x", "--exclude", action="append", default=[])
        given, rest = options.parse_known_args(words)
        # sbatch uses the last --exclude only, so it must repeat the nodes of the user's own --exclude.
        return [*rest, f"--exclude={','.join([*given.exclude[-1:], *excluded])}"]

    def summary(self) -> str:
        """Returns one line about the nodes that failed jobs; empty if there are none."""
        nodes = [f"{node} failed {counted(count, 'job')}" for node, count in sorted(self._failed.items())]
        return f"node {', node '.join(nodes)} that another node completed: have it checked" if nodes else ""
