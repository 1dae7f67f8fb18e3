"""The local launcher: runs a plan on this machine within its cores and GPUs, every job under a guard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from imageevalkit import logs
from imageevalkit.atomic import is_disk_full
from imageevalkit.cell import REPO, log_root
from imageevalkit.errors import ExitStatus, UserError
from imageevalkit.jobs import FAILED, INCOMPLETE, USABLE, Job, Plan, stop_path
from imageevalkit.launch.display import RunningJob, View, WaitingJob, choose_display, print_table
from imageevalkit.launch.gpu_pool import GpuPool, Lease, Offer
from imageevalkit.launch.gpus import MinFreeMemory, spell, visible_gpus
from imageevalkit.launch.ledger import INTERRUPTED, SKIPPED, Ledger, RunSummary, money_of
from imageevalkit.launch.process import CANNOT_START, FINAL, describe_exit, guarded, job_environ
from imageevalkit.machine import available_cores
from imageevalkit.progress import PaceReader

_TICK = 0.1
# jobs that wait for an endpoint take little time, but memory
_LIGHT_PER_CORE = 2
# Two runs that look for GPUs at once may meet at a lock for a moment, and nvidia-smi is asked before every start.
_TELL_AFTER = 1.0
# Guards need 5 s of grace and a moment to kill; what is left after this hangs in the kernel.
_STOP_LIMIT = 9.0
# `timeout` and some wrappers deliver one signal twice: that is not a user losing patience.
_SECOND_SIGNAL_AFTER = 0.5


def run_plan(plan: Plan, lock_fds: dict[str, int], with_table: bool = True) -> RunSummary:
    """Run ``plan`` to its end, show it, print the table of all cells (``with_table``) and write ``summary.json``.

    ``lock_fds`` are open lock files by cell key (see :func:`imageevalkit.cell.lock_cell`); the guard of every
    job holds those of its cells, so that a lock lives until the last process of the cell is gone, even when
    this process is killed. SIGINT, SIGTERM and SIGHUP end every job and are told by the summary's status.
    A command calls :func:`imageevalkit.logs.print_without_fear` before: a terminal that is gone is no end of the run.

    Raises UserError: nvidia-smi fails. Nothing was started.
    """
    summary = asyncio.run(_Run(plan, lock_fds).run())
    if with_table:
        print_table(summary, sys.stdout)
    return summary


@dataclass
class _Started:
    """A job that is under way (or about to be): what it holds, and the process of its latest attempt."""

    job: Job
    cores: int
    lease: Lease
    pace: PaceReader
    began: float
    follows: bool = False
    """It was started before what it works at was there; it may end with the status LATER."""
    is_stranded: bool = False
    """It would wait for ever for an outcome that the disk has not taken: it is being ended."""
    attempts: int = 0
    process: subprocess.Popen[bytes] | None = None


class _Run:
    def __init__(self, plan: Plan, lock_fds: dict[str, int]) -> None:
        self._plan = plan
        self._lock_fds = lock_fds
        self._display = choose_display(sys.stderr)
        self._cores = available_cores()
        self._pool = GpuPool(
            visible_gpus() if any(job.gpus for job in plan.jobs) else [],
            MinFreeMemory.parse(plan.gpu_min_free_memory, "gpu_min_free_memory of the plan"),
            plan.share_gpus,
        )
        self._pending = list(plan.jobs)
        self._in_turn: set[str] = (
            set()
        )  # of those that may follow, by name, what starts after the others none the less
        self._ledger = Ledger(plan, self._display)
        self._active: list[_Started] = []
        self._paces: dict[
            str, PaceReader
        ] = {}  # by job; one that starts again in its turn keeps what it told
        self._waiting: dict[str, str] = {}
        self._waiting_since: dict[str, float] = {}
        self._stop: signal.Signals | None = None
        self._stop_time = 0.0
        self._began = time.monotonic()

    async def run(self) -> RunSummary:
        # A guard learns of our death by the end of file on this pipe, whose other end only we hold.
        self._lifeline, lifeline_end = os.pipe()
        self._ledger.forget_earlier_run()
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGCHLD, woken.set)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._on_stop_signal, number)
        try:
            while self._go_on():
                # not for ever: a loop flooded with signals may drop one, and another run may have the GPUs
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), _TICK)
                woken.clear()
            self._display.close(money_of(self._paces.values()))
            return self._ledger.close(self._pending, time.monotonic() - self._began, self._stop)
        finally:
            # whatever went wrong above: closing the lifeline ends every guard
            os.close(lifeline_end)
            os.close(self._lifeline)

    def _go_on(self) -> bool:
        """Do what is due now; whether there is more to come."""
        if self._stop is None and stop_path(Path(self._plan.run_folder)).exists():
            self._on_stop_signal(signal.SIGTERM)
        self._ledger.collect({started.job.name: started.attempts for started in self._active})
        for started in list(self._active):
            if started.process and (status := started.process.poll()) is not None:
                self._ended(started, status)
        if self._stop is None:
            self._start_what_can()
        elif time.monotonic() - self._stop_time > _STOP_LIMIT:
            # what even SIGKILL does not end is not waited for; the guards go on, and hold the locks
            for started in list(self._active):
                guard = started.process.pid if started.process else 0
                self._end(
                    started, None, f"still ending after {_STOP_LIMIT:.0f} s (process {guard} watches it)"
                )
        self._display.refresh(self._view())
        return bool(self._active) or (self._stop is None and bool(self._pending))

    # Scheduling

    def _start_what_can(self) -> None:
        self._waiting = {}
        starting: list[_Started] = []
        # what could only begin early takes nothing from what can begin, nor does what did and waits for images
        followers, is_crowded = list[Job](), False
        busy = [one for one in self._active if not (one.job.light and self._is_early(one))]
        with Offer(self._pool) as offer:
            for job in list(self._pending):
                alone = not (self._plan.parallel or self._accompanies(job))
                if alone and (self._active or starting or self._waiting):
                    continue
                verdict = self._ledger.verdict(job)
                if verdict.skip:
                    self._give_up(job, SKIPPED, verdict.skip)
                elif verdict.follows and job.name not in self._in_turn:
                    followers.append(job)
                elif verdict.ready and (cores := self._room(job, busy + starting)) is not None:
                    if lease := self._reserve(job, offer):
                        starting.append(self._start(job, cores, lease))
                elif verdict.ready:
                    is_crowded = True
            offer.grow()
            # nor a GPU that the next to come can use, nor more than half of the cores where others are to come
            early = {job.name for job in followers}
            spare = max((job.gpus_at_most for job in self._pending if job.name not in early), default=0)
            # the report waits for the end of all
            to_come = sum(job.cores for job in self._pending if not (job.light or job.always))
            for job in followers:
                if (is_crowded and not job.light) or (job.gpus and self._waiting):
                    continue
                others = min(to_come - job.cores, (self._cores + 1) // 2)
                cores = self._room(job, self._active + starting, others)
                try:
                    if cores is None or (job.gpus and not offer.could(job.gpus, spare)):
                        continue
                    lease = offer.reserve(job.gpus, job.gpus)
                except UserError:  # it may still have them in its turn, which is told then
                    self._in_turn.add(job.name)
                    continue
                if lease:
                    starting.append(self._start(job, cores, lease, follows=True))
                    to_come -= 0 if job.light else job.cores
        self._active += starting
        for started in starting:
            self._attempt(started)
        now = time.monotonic()
        self._waiting_since = {job: self._waiting_since.get(job, now) for job in self._waiting}

    def _accompanies(self, job: Job) -> bool:
        """Whether ``job`` may run beside the one that it follows, where no others do."""
        runs = {started.job.name for started in self._active}
        return self._plan.parallel is None and job.follows and job.light and not runs.isdisjoint(job.after)

    def _is_early(self, started: _Started) -> bool:
        """Whether not all is there that ``started`` works at."""
        return started.follows and not self._ledger.verdict(started.job).ready

    def _room(self, job: Job, busy: list[_Started], spare: int = 0) -> int | None:
        """The cores that ``job`` gets beside what is ``busy``; None: there are not as many, and ``spare`` ones more."""
        cores = min(job.cores, self._cores) if self._plan.parallel else self._cores
        if job.light:
            fits = sum(other.job.light for other in busy) < _LIGHT_PER_CORE * self._cores
        else:
            taken = sum(other.cores for other in busy if not other.job.light)
            fits = taken + cores + spare <= self._cores
        return cores if fits else None

    def _reserve(self, job: Job, offer: Offer) -> Lease | None:
        """The GPUs that ``job`` must have, or None: it waits for them, or will never have them."""
        try:
            lease = offer.reserve(job.gpus, job.gpus_at_most)
        except UserError as error:
            self._give_up(job, FAILED, str(error))
            return None
        if lease is None and (problem := self._pool.never(job.gpus)):
            gpus = "a GPU" if job.gpus == 1 else f"{job.gpus} GPUs"
            self._give_up(job, FAILED, f"needs {gpus}, but {problem}")
        elif lease is None and (why := offer.why_not(job.gpus)):
            self._waiting[job.name] = why
        return lease

    def _start(self, job: Job, cores: int, lease: Lease, follows: bool = False) -> _Started:
        self._pending.remove(job)
        pace = self._paces.setdefault(job.name, PaceReader(self._plan.progress_path(job)))
        return _Started(job, cores, lease, pace, time.monotonic(), follows)

    def _give_up(self, job: Job, state: str, why: str) -> None:
        self._pending.remove(job)
        self._ledger.never_started(job, state, why)

    def _view(self) -> View:
        now = time.monotonic()
        states = self._ledger.cell_states()
        return View(
            seconds=now - self._began,
            cells=len(states),
            cells_done=sum(state is not None for state in states),
            cells_failed=sum(state is not None and state not in USABLE for state in states),
            running=[
                RunningJob(s.job, now - s.began, s.pace.read(self._ledger.ended_in(s.job, s.attempts)))
                for s in self._active
            ],
            waiting=[
                WaitingJob(job, why, seconds)
                for job, why in self._waiting.items()
                if (seconds := now - self._waiting_since[job]) >= _TELL_AFTER
            ],
            money=money_of(self._paces.values()),
        )

    # One job

    def _attempt(self, started: _Started) -> None:
        job, lease = started.job, started.lease
        started.attempts += 1
        started.pace.start_attempt()
        environ = job_environ(job, lease.environ(), started.cores, started.attempts)
        held = [*lease.fds, *(self._lock_fds[cell] for cell in job.cells if cell in self._lock_fds)]
        title = f"{job.name} attempt {started.attempts}"
        try:
            started.process = guarded(job.command, REPO / job.logs[0], title, environ, self._lifeline, held)
        except OSError as error:
            full = logs.full_words(log_root()) if is_disk_full(error) else ""
            why = full or f"{error.strerror}: {error.filename or job.command[0]}"
            self._end(started, None, f"cannot start: {why}")
            return
        self._display.job_started(job, started.attempts, spell(lease.gpus) if lease.gpus else "")

    def _ended(self, started: _Started, status: int) -> None:
        """An attempt has ended."""
        job = started.job
        if started.follows and (status == ExitStatus.LATER or started.is_stranded) and self._stop is None:
            self._active.remove(started)
            self._pool.give_back(started.lease)
            self._pending.append(job)
            self._in_turn.add(job.name)
        elif self._stop is not None or started.attempts > job.retries or not self._worth_retry(job, status):
            self._end(started, status)
        else:
            again = f"attempt {started.attempts + 1} of {job.retries + 1} after {describe_exit(status)}"
            self._display.tell("retry", f"{job.name}: {again}", INCOMPLETE)
            self._attempt(started)

    def _worth_retry(self, job: Job, status: int) -> bool:
        if status in CANNOT_START:
            return False
        if not job.always:
            # whatever status it has: code of others may have ended it with that of one that is done
            return self._ledger.lacks_outcomes(job) and not logs.is_full(Path(self._plan.run_folder))
        return status not in {*FINAL, ExitStatus.FAILED}

    def _end(self, started: _Started, status: int | None, problem: str = "") -> None:
        """No other attempt comes."""
        self._active.remove(started)
        self._pool.give_back(started.lease)
        started.pace.read()  # its last words, for the sum of money
        seconds = time.monotonic() - started.began
        stopped_by = self._stop.name if self._stop is not None else ""
        untold = self._ledger.job_ended(started.job, started.attempts, seconds, status, problem, stopped_by)
        for other in self._active:
            if (
                other.follows
                and started.job.name in other.job.after
                and not untold.isdisjoint(other.job.cells)
            ):
                other.is_stranded = True
                if other.process:
                    other.process.terminate()

    # The end

    def _on_stop_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._stop is None:
            self._stop, self._stop_time = number, now
            if self._active:
                what = f"{number.name}: ending what runs (once more kills it at once)"
                self._display.tell("stopping", what, INTERRUPTED)
        elif now - self._stop_time < _SECOND_SIGNAL_AFTER:
            return
        for started in self._active:
            # a guard takes the second SIGTERM as the order to kill
            if started.process and started.process.poll() is None:
                started.process.send_signal(signal.SIGTERM)
