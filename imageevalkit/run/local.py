"""The local launcher: runs a plan on this machine within its cores and GPUs, every job under a guard."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from imageevalkit.common.errors import CellFailure, ExitStatus, UserError
from imageevalkit.common.machine import available_cores
from imageevalkit.jobs.plan import EARLY_ENV, FAILED, INCOMPLETE, Job, Plan, stop_path
from imageevalkit.jobs.progress import PaceReader
from imageevalkit.plan.gpus import MinFreeMemory, spell, visible_gpus
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
from imageevalkit.run.gpu_pool import GpuPool, Lease, Offer
from imageevalkit.run.ledger import Ledger, money_of
from imageevalkit.run.runner import JobRun, describe_exit, job_environ, lifeline

_TICK = 0.1
# Light jobs wait for an endpoint most of the time: they need little CPU, but they do need memory.
_LIGHT_PER_CORE = 2
# Seconds until a waiting job is shown: a lock of another run, or the GPU driver, may delay it for a moment only.
_TELL_AFTER = 1.0
# Seconds. A guard kills its job after 5 s of grace; a process that is left after 9 s hangs in the kernel.
_STOP_LIMIT = 9.0
# Seconds. `timeout` and some wrappers send one signal twice; the second one must not kill the jobs at once.
_SECOND_SIGNAL_AFTER = 0.5


def run_plan(plan: Plan, lock_fds: dict[str, int], with_table: bool = True) -> RunSummary:
    """Runs ``plan`` to its end, prints the table of all cells (``with_table``) and writes ``summary.json``.

    ``lock_fds`` are open lock files by cell key (see :func:`imageevalkit.store.cell.lock_cell`). The guard of
    a job inherits the locks of its cells. So a lock is held until the last process of the cell ends, even if
    this process is killed. SIGINT, SIGTERM and SIGHUP end every job; the status of the summary shows it. Call
    :func:`imageevalkit.common.logs.print_without_fear` before, or a closed terminal would end the run.

    Raises UserError: the GPU driver fails; nothing was started.
    """
    summary = asyncio.run(_Run(plan, lock_fds).run())
    if with_table:
        print_table(summary, sys.stdout)
    return summary


@dataclass
class _Started:
    """A job that runs or is about to start, and its GPUs. ``cores`` are reserved for it."""

    job: Job
    cores: int
    lease: Lease
    pace: PaceReader
    began: float
    follows: bool = False
    """True if the job started before all of its images existed; it may end with the status LATER."""
    is_stranded: bool = False
    """True if the full disk did not take an outcome that the job waits for; the job is then ended."""
    run: JobRun = field(init=False)


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
        # names of jobs that could follow, but start only when the jobs before them have ended
        self._in_turn: set[str] = set()
        self._ledger = Ledger(plan, self._display)
        self._active: list[_Started] = []
        # by job; a follower that starts a second time keeps its progress and money
        self._paces: dict[str, PaceReader] = {}
        self._waiting: dict[str, str] = {}
        self._waiting_since: dict[str, float] = {}
        self._stop: signal.Signals | None = None
        self._stop_time = 0.0
        self._began = time.monotonic()

    async def run(self) -> RunSummary:
        self._ledger.forget_earlier_run()
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGCHLD, woken.set)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._on_stop_signal, number)
        with lifeline() as self._lifeline:
            while self._go_on():
                # The timeout matters: a flooded loop may drop a signal, and another run may free its GPUs.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), _TICK)
                woken.clear()
            self._display.close(money_of(self._paces.values()))
            return self._ledger.close(self._pending, time.monotonic() - self._began, self._stop)

    def _go_on(self) -> bool:
        """Handles ended jobs, starts new ones, refreshes the display. Returns True while the run
        continues."""
        if self._stop is None and stop_path(Path(self._plan.run_folder)).exists():
            self._on_stop_signal(signal.SIGTERM)
        self._ledger.collect({started.job.name: started.run.attempts for started in self._active})
        for started in list(self._active):
            if (status := started.run.poll()) is not None:
                self._ended(started, status)
        if self._stop is None:
            self._start_what_can()
        elif time.monotonic() - self._stop_time > _STOP_LIMIT:
            # Do not wait for processes that even SIGKILL does not end: their guards keep the locks.
            for started in list(self._active):
                guard = started.run.pid
                self._end(
                    started, None, f"still ending after {_STOP_LIMIT:.0f} s (process {guard} watches it)"
                )
        self._display.refresh(self._view())
        return bool(self._active) or (self._stop is None and bool(self._pending))

    # Scheduling

    def _start_what_can(self) -> None:
        self._waiting = {}
        starting: list[_Started] = []
        # Early jobs never take the place of ready jobs: neither at their start nor while waiting for images.
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
            # Early jobs leave GPUs for the largest pending job, and up to half of the cores for pending jobs.
            early = {job.name for job in followers}
            spare = max((job.gpus_at_most for job in self._pending if job.name not in early), default=0)
            # Jobs with ``always`` (the report) start after all others: no cores are kept for them.
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
                except UserError:  # the job tries again when it is ready, and reports the error then
                    self._in_turn.add(job.name)
                    continue
                if lease:
                    starting.append(self._start(job, cores, lease, follows=True))
                    to_come -= 0 if job.light else job.cores
        for started in starting:
            self._begin(started)
        now = time.monotonic()
        self._waiting_since = {job: self._waiting_since.get(job, now) for job in self._waiting}

    def _accompanies(self, job: Job) -> bool:
        """Returns True if ``job`` may run beside the job that it follows, in a run of one job at a time."""
        runs = {started.job.name for started in self._active}
        return self._plan.parallel is None and job.follows and job.light and not runs.isdisjoint(job.after)

    def _is_early(self, started: _Started) -> bool:
        """Returns True if ``started`` started early and its cells still wait for jobs before it."""
        return started.follows and not self._ledger.verdict(started.job).ready

    def _room(self, job: Job, busy: list[_Started], spare: int = 0) -> int | None:
        """Returns the cores for ``job`` beside ``busy`` jobs; None if so many plus ``spare`` are not free."""
        cores = min(job.cores, self._cores) if self._plan.parallel else self._cores
        if job.light:
            fits = sum(other.job.light for other in busy) < _LIGHT_PER_CORE * self._cores
        else:
            taken = sum(other.cores for other in busy if not other.job.light)
            fits = taken + cores + spare <= self._cores
        return cores if fits else None

    def _reserve(self, job: Job, offer: Offer) -> Lease | None:
        """Returns the GPUs of ``job``; None if the job waits for them, or fails as it can never get them."""
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
        running = [
            RunningJob(s.job, now - s.began, s.pace.read(self._ledger.ended_in(s.job, s.run.attempts)))
            for s in self._active
        ]
        waiting = [
            WaitingJob(job, why, seconds)
            for job, why in self._waiting.items()
            if (seconds := now - self._waiting_since[job]) >= _TELL_AFTER
        ]
        return self._ledger.view(now - self._began, running, waiting, self._paces.values())

    # One job

    def _begin(self, started: _Started) -> None:
        self._active.append(started)
        job, lease = started.job, started.lease
        environ = job_environ(job, lease.environ(), started.cores)
        environ |= {EARLY_ENV: "1"} if started.follows else {}
        held = [*lease.fds, *(self._lock_fds[cell] for cell in job.cells if cell in self._lock_fds)]
        started.run = JobRun(self._plan, job, environ, self._lifeline, held)
        self._attempt(started)

    def _attempt(self, started: _Started) -> None:
        started.pace.start_attempt()
        try:
            started.run.start()
        except CellFailure as failure:
            self._end(started, None, str(failure))
            return
        gpus = started.lease.gpus
        self._display.job_started(started.job, started.run.attempts, spell(gpus) if gpus else "")

    def _ended(self, started: _Started, status: int) -> None:
        """Handles the end of an attempt: the job ends, is retried, or is pending again (status LATER)."""
        job = started.job
        if started.follows and (status == ExitStatus.LATER or started.is_stranded) and self._stop is None:
            self._active.remove(started)
            self._pool.give_back(started.lease)
            self._pending.append(job)
            self._in_turn.add(job.name)
        elif self._stop is not None or not started.run.is_worth_retry(status):
            self._end(started, status)
        else:
            again = f"attempt {started.run.attempts + 1} of {job.retries + 1} after {describe_exit(status)}"
            self._display.tell("retry", f"{job.name}: {again}", INCOMPLETE)
            self._attempt(started)

    def _end(self, started: _Started, status: int | None, problem: str = "") -> None:
        """Ends a job for good and records its outcomes.

        If the disk took no outcome of a cell, the jobs that wait for it are ended: they would wait forever.
        """
        self._active.remove(started)
        self._pool.give_back(started.lease)
        started.pace.read()  # the last progress line counts for the sum of money
        seconds = time.monotonic() - started.began
        stopped_by = self._stop.name if self._stop is not None else ""
        unwritten = self._ledger.job_ended(
            started.job, started.run.attempts, seconds, status, problem, stopped_by
        )
        for other in self._active:
            if (
                other.follows
                and started.job.name in other.job.after
                and not unwritten.isdisjoint(other.job.cells)
            ):
                other.is_stranded = True
                other.run.ask_to_end()

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
            started.run.ask_to_end()
