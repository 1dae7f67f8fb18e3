"""The local launcher: runs a plan on this machine within its cores and GPUs, every job under a guard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from imageevalkit import logs
from imageevalkit.atomic import is_disk_full
from imageevalkit.cell import REPO, log_root
from imageevalkit.errors import CellFailure, ExitStatus, UserError, complain, worst
from imageevalkit.jobs import ATTEMPT_ENV, FAILED, USABLE, Job, Plan
from imageevalkit.launch.display import Money, RunningJob, View, WaitingJob, choose_display, print_table
from imageevalkit.launch.gpu_pool import GpuPool, Lease, Offer, Share
from imageevalkit.launch.gpus import spell, visible_gpus
from imageevalkit.launch.ledger import Ending, Ledger
from imageevalkit.launch.nvidia_smi import MinFreeMemory
from imageevalkit.launch.process import (
    CANNOT_START,
    FINAL,
    describe_exit,
    guarded,
    job_environ,
    progress_path,
)
from imageevalkit.launch.summary import INTERRUPTED, SKIPPED, RunSummary
from imageevalkit.machine import available_cores
from imageevalkit.progress import Pace, PaceReader

_TICK = 0.1
# Two runs that look for GPUs at once may meet at a lock for a moment, and nvidia-smi is asked before every start.
_TELL_AFTER = 1.0
# Guards need 5 s of grace and a moment to kill; what is left after this hangs in the kernel.
_STOP_LIMIT = 9.0
# `timeout` and some wrappers deliver one signal twice: that is not a user losing patience.
_SECOND_SIGNAL_AFTER = 0.5


def run_plan(plan: Plan, lock_fds: dict[str, int]) -> RunSummary:
    """Run ``plan`` to its end, show it, print the table of all cells and write ``summary.json``.

    ``lock_fds`` are open lock files by cell key (see :func:`imageevalkit.cell.lock_cell`); the guard of every
    job holds those of its cells, so that a lock lives until the last process of the cell is gone, even when
    this process is killed. SIGINT, SIGTERM and SIGHUP end every job and are told by the summary's status.

    Raises:
        UserError: nvidia-smi fails. Nothing was started.
    """
    return asyncio.run(_Run(plan, lock_fds).run())


@dataclass
class _StartedJob:
    """A started job: what it holds, and its process while an attempt runs."""

    job: Job
    lease: Lease
    cores: int
    pace: PaceReader
    started: float
    attempts: int = 0
    process: subprocess.Popen[bytes] | None = None
    ended: asyncio.Future[int] | None = None


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
        self._ledger = Ledger(plan, self._display)
        self._active: dict[asyncio.Task[None], _StartedJob] = {}
        self._paces: list[PaceReader] = []
        self._waiting: dict[str, str] = {}
        self._waiting_since: dict[str, float] = {}
        self._stop: signal.Signals | None = None
        self._stop_time = 0.0
        self._started = time.monotonic()

    async def run(self) -> RunSummary:
        # A guard learns of our death by the end of file on this pipe, whose other end only we hold.
        self._lifeline, lifeline_end = os.pipe()
        self._ledger.forget_earlier_run()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, self._on_stop_signal, number)
        try:
            await self._drive()
            self._display.close(self._money())
            return _save_and_print(self._summarize(), Path(self._plan.run_folder))
        finally:
            self._pool.close()
            # whatever went wrong above: closing the lifeline ends every guard
            os.close(lifeline_end)
            os.close(self._lifeline)

    # Scheduling

    async def _drive(self) -> None:
        while True:
            self._reap()  # a loop flooded with signals may drop a SIGCHLD
            for active in self._active.values():
                self._ledger.collect(active.job, active.attempts)
            if self._stop is None:
                self._start_what_can()
            elif time.monotonic() - self._stop_time > _STOP_LIMIT:
                self._abandon()
            if not self._active and (self._stop is not None or not self._pending):
                return
            self._display.refresh(self._view())
            if self._active:
                done, _ = await asyncio.wait(self._active, timeout=_TICK, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del self._active[task]
                    task.result()
            else:
                await asyncio.sleep(_TICK)  # another run has the GPUs

    def _start_what_can(self) -> None:
        self._waiting = {}
        if not self._plan.parallel and self._active:
            return
        starting: list[tuple[Job, int, Share]] = []
        with self._pool.offer() as offer:
            for job in list(self._pending):
                if not self._plan.parallel and (starting or self._waiting):
                    break
                verdict = self._ledger.verdict(job)
                if verdict.skip:
                    self._give_up(job, SKIPPED, verdict.skip)
                elif verdict.ready and (cores := self._room(job, starting)) is not None:
                    share = self._reserve(job, offer)
                    if share:
                        starting.append((job, cores, share))
            offer.grow()
            for job, cores, share in starting:
                self._start(job, cores, offer.lease(share))
        now = time.monotonic()
        self._waiting_since = {job: self._waiting_since.get(job, now) for job in self._waiting}

    def _room(self, job: Job, starting: list[tuple[Job, int, Share]]) -> int | None:
        """The cores that ``job`` gets beside what runs and what is ``starting``; None when it must wait for them."""
        busy = [(active.job, active.cores) for active in self._active.values()]
        busy += [(other, cores) for other, cores, _ in starting]
        cores = min(job.cores, self._cores) if self._plan.parallel else self._cores
        if sum(taken for _, taken in busy) + cores > self._cores:
            return None
        return None if any(turn in other.turns for other, _ in busy for turn in job.turns) else cores

    def _reserve(self, job: Job, offer: Offer) -> Share | None:
        """The GPUs that ``job`` must have, or None: it waits for them, or will never have them."""
        try:
            share = offer.reserve(job.gpus, job.gpus_at_most)
        except UserError as error:
            self._give_up(job, FAILED, str(error))
            return None
        if share is None and (problem := self._pool.never(job.gpus)):
            gpus = "a GPU" if job.gpus == 1 else f"{job.gpus} GPUs"
            self._give_up(job, FAILED, f"needs {gpus}, but {problem}")
        elif share is None and (why := offer.why_not(job.gpus)):
            self._waiting[job.name] = why
        return share

    def _start(self, job: Job, cores: int, lease: Lease) -> None:
        self._pending.remove(job)
        pace = PaceReader(progress_path(self._plan, job))
        self._paces.append(pace)
        active = _StartedJob(job, lease, cores, pace, time.monotonic())
        self._active[asyncio.create_task(self._run_job(active))] = active

    def _give_up(self, job: Job, state: str, why: str) -> None:
        self._pending.remove(job)
        self._ledger.never_started(job, state, why)

    def _view(self) -> View:
        now = time.monotonic()
        states = self._ledger.cell_states()
        return View(
            seconds=now - self._started,
            cells=len(states),
            cells_done=sum(state is not None for state in states),
            cells_failed=sum(state is not None and state not in USABLE for state in states),
            running=[RunningJob(a.job, now - a.started, self._paces_of(a)) for a in self._active.values()],
            waiting=[
                WaitingJob(job, why, seconds)
                for job, why in self._waiting.items()
                if (seconds := now - self._waiting_since[job]) >= _TELL_AFTER
            ],
            money=self._money(),
        )

    def _paces_of(self, active: _StartedJob) -> list[Pace]:
        return active.pace.read(self._ledger.ended_in(active.job, active.attempts))

    def _money(self) -> Money | None:
        spent = [pace.spent for pace in self._paces if pace.spent is not None]
        bounds = [pace.max_cost for pace in self._paces if pace.max_cost is not None]
        return Money(sum(spent), min(bounds, default=None)) if spent else None

    # One job

    async def _run_job(self, active: _StartedJob) -> None:
        job = active.job
        while self._stop is None:
            active.attempts += 1
            try:
                status = await self._attempt(active)
            except OSError as error:
                why = f"{error.strerror}: {error.filename or job.command[0]}"
                if is_disk_full(error):
                    why = logs.full_words(log_root())
                self._end_job(active, None, f"cannot start: {why}")
                return
            how = describe_exit(status)
            if self._stop is not None or active.attempts > job.retries or not self._worth_retry(job, status):
                self._end_job(active, status)
                return
            self._display.job_retried(
                f"{job.name}: attempt {active.attempts + 1} of {job.retries + 1} after {how}"
            )
        self._end_job(active, None, f"not started, stopped by {self._stop.name}")

    async def _attempt(self, active: _StartedJob) -> int:
        job = active.job
        environ = job_environ(self._plan, job, active.lease.environ(), active.cores)
        environ[ATTEMPT_ENV] = str(active.attempts)
        locks = [self._lock_fds[cell] for cell in job.cells if cell in self._lock_fds]
        held = [*active.lease.fds, *locks]
        active.pace.start_attempt()
        active.ended = asyncio.get_running_loop().create_future()
        title = f"{job.name} attempt {active.attempts}"
        active.process = guarded(job.command, REPO / job.logs[0], title, environ, self._lifeline, held)
        self._display.job_started(job, active.attempts, spell(active.lease.gpus) if active.lease.gpus else "")
        return await active.ended

    def _worth_retry(self, job: Job, status: int) -> bool:
        if status in CANNOT_START:
            return False
        if not job.always:
            # whatever status it has: code of others may have ended it with that of one that is done
            return self._ledger.lacks_outcomes(job) and not logs.is_full(Path(self._plan.run_folder))
        return status not in {*FINAL, ExitStatus.FAILED}

    def _reap(self) -> None:
        for active in self._active.values():
            if active.process and active.ended and not active.ended.done():
                status = active.process.poll()
                if status is not None:
                    active.ended.set_result(status)

    def _end_job(self, active: _StartedJob, status: int | None, problem: str = "") -> None:
        self._pool.give_back(active.lease)
        active.pace.read()  # its last words, for the sum of money
        seconds = time.monotonic() - active.started
        stopped_by = self._stop.name if self._stop is not None else ""
        self._ledger.job_ended(active.job, Ending(active.attempts, seconds, status, problem, stopped_by))

    # Stopping

    def _on_stop_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._stop is None:
            self._stop, self._stop_time = number, now
            if self._active:
                self._display.stopping(f"{number.name}: ending what runs (once more kills it at once)")
        elif now - self._stop_time < _SECOND_SIGNAL_AFTER:
            return
        for active in self._active.values():
            # a guard takes the second SIGTERM as the order to kill
            if active.process and active.process.poll() is None:
                active.process.send_signal(signal.SIGTERM)

    def _abandon(self) -> None:
        """Stop waiting for what even SIGKILL does not end; the guards go on, and hold the locks."""
        for task, active in self._active.items():
            task.cancel()
            guard = active.process.pid if active.process else 0
            self._end_job(
                active, None, f"still ending after {_STOP_LIMIT:.0f} s (process {guard} watches it)"
            )
        self._active.clear()

    # The end

    def _summarize(self) -> RunSummary:
        if self._stop is not None:
            for job in self._pending:
                self._ledger.never_started(job, INTERRUPTED, f"not started, stopped by {self._stop.name}")
        stopped = None
        if self._stop is not None:
            stopped = ExitStatus.INTERRUPTED if self._stop == signal.SIGINT else ExitStatus.TERMINATED
        return self._ledger.summarize(time.monotonic() - self._started, stopped)


def _save_and_print(summary: RunSummary, run_folder: Path) -> RunSummary:
    try:
        summary.save(run_folder)
    except (CellFailure, OSError) as error:
        complain(str(error))
        summary = replace(summary, status=worst([summary.status, ExitStatus.FAILED]))
    with contextlib.suppress(OSError):  # nobody reads it; the status must not become another one by that
        print_table(summary, sys.stdout)
    return summary
