"""The launcher of a cluster before a Slurm of simulated time, whose jobs have the lengths of a matrix.

As a program, ``python -m perf.simulated_slurm MODELS BENCHMARKS SHARDS FOLDER`` runs one with each model's images in so
many shards, and prints its figures as JSON.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import itertools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.common.machine import require
from imageevalkit.common.slurm import Queued, Slurm
from imageevalkit.jobs.plan import COMPLETE, Cluster, Job, Outcome, Plan, cell_of, write_outcome
from imageevalkit.slurm.cluster import Report, look_around, report_path, run_plan
from perf.synthetic import GPUS, Matrix, replicas

NODES, _CORES = 64, 64
_SECONDS = 600.0  # of the images of a cell, in the mean
_SBATCH_TAKES = 0.02
_REMEMBERED = 300.0  # seconds that squeue shows a job which has ended: slurm.conf(5), MinJobAge


class _Needs(NamedTuple):
    gpus: int
    cores: int


class SimulatedSlurm(Slurm):
    """Starts jobs on nodes in the order of their submission; one for which no node has room keeps no other waiting.

    They start at once, take as long as ``matrix`` says, and leave in ``folder`` what jobs leave there, but for their
    progress. sbatch takes 20 ms of the simulated time. ``now`` is that time in seconds; ``spent`` are the CPU seconds
    that all of this took, ``last_submitted`` those of the launcher when it submitted last, on ``time.process_time``'s
    clock; ``is_busy`` while it is not the launcher that works.
    """

    def __init__(self, matrix: Matrix, folder: Path) -> None:
        self._jobs = {job.name: job for job in matrix.jobs}
        self._lengths, self._folder = matrix.seconds, folder
        self.now = self.spent = self.last_submitted = 0.0
        self.submitted, self.is_busy = 0, False
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()
        self._free = [_Needs(GPUS, _CORES)] * NODES
        self._queue: dict[str, Queued] = {}
        self._needs: dict[str, _Needs] = {}
        self._job_of: dict[str, Job] = {}
        self._before: dict[str, set[str]] = {}  # numbers of the jobs that a waiting one waits for
        self._behind: dict[str, list[str]] = defaultdict(list)
        self._ready: dict[_Needs, list[int]] = defaultdict(list)  # heaps of numbers

    # What the launcher is given

    def submit(self, words: Sequence[str], environ: Mapping[str, str]) -> str:
        with self._simulating():
            self.submitted += 1
            number, told = str(self.submitted), dict(word.partition("=")[::2] for word in words)
            self._job_of[number] = self._jobs[told["--job-name"]]
            self._needs[number] = _Needs(int(told.get("--gpus-per-node", 0)), int(told["--cpus-per-task"]))
            kind, *before = told.get("--dependency", "afterany").split(":")
            assert kind == "afterany", kind
            self._before[number] = {one for one in before if self._queue[one].state != "COMPLETED"}
            for one in self._before[number]:
                self._behind[one].append(number)
            self._queue[number] = Queued("PENDING", "Dependency", "", told["--job-name"], told["--comment"])
            if not self._before[number]:
                self._get_ready(number)
                self._start_what_fits()
            self._go_on_until(self.now + _SBATCH_TAKES)
        self.last_submitted = time.process_time() - self.spent
        return number

    def queue(self) -> dict[str, Queued]:
        with self._simulating():
            return dict(self._queue)

    def start_early(self, numbers: Sequence[str]) -> None:
        with self._simulating():
            for number in numbers:
                for before in self._before[number]:
                    self._behind[before].remove(number)
                self._before[number].clear()
                self._get_ready(number)
            self._start_what_fits()

    def cancel(self, numbers: Sequence[str]) -> None:
        raise AssertionError("nobody stops the run")

    def sleep(self, seconds: float) -> None:
        """Ten times as long, so that a display is drawn less often, and until something happens."""
        with self._simulating():
            self._go_on_until(max([self.now + 10 * seconds, *(at for at, *_ in self._events[:1])]))

    @contextlib.contextmanager
    def _simulating(self) -> Iterator[None]:
        began, self.is_busy = time.process_time(), True
        try:
            yield
        finally:
            self.is_busy = False
            self.spent += time.process_time() - began

    # Jobs on nodes

    def _at(self, seconds: float, happens: Callable[[], object]) -> None:
        heapq.heappush(self._events, (seconds, next(self._count), happens))

    def _go_on_until(self, seconds: float) -> None:
        while self._events and self._events[0][0] <= seconds:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
        self.now = seconds

    def _get_ready(self, number: str) -> None:
        self._queue[number] = self._queue[number]._replace(reason="Priority")
        heapq.heappush(self._ready[self._needs[number]], int(number))

    def _start_what_fits(self) -> None:
        kinds = {needs: numbers for needs, numbers in self._ready.items() if numbers}
        while kinds:
            needs = min(kinds, key=lambda one: kinds[one][0])
            fits = [
                n
                for n, free in enumerate(self._free)
                if free.gpus >= needs.gpus and free.cores >= needs.cores
            ]
            if not fits:
                del kinds[needs]  # others of its kind do not fit either
                continue
            self._start(str(heapq.heappop(kinds[needs])), min(fits, key=lambda n: self._free[n]))
            if not kinds[needs]:
                del kinds[needs]

    def _start(self, number: str, node: int) -> None:
        self._take(node, self._needs[number], 1)
        self._queue[number] = self._queue[number]._replace(state="RUNNING", reason="None", node=f"n{node}")
        job, at = self._job_of[number], self.now
        for key, seconds in zip(job.cells or [""], self._lengths[job.name], strict=True):
            at += seconds / replicas(job)
            if key:
                self._at(at, partial(write_outcome, self._folder, cell_of(key), job.step, _MADE))
        self._at(at, partial(self._end, number, node, self.now))

    def _take(self, node: int, needs: _Needs, sign: int) -> None:
        free = self._free[node]
        self._free[node] = _Needs(free.gpus - sign * needs.gpus, free.cores - sign * needs.cores)

    def _end(self, number: str, node: int, began: float) -> None:
        self._take(node, self._needs[number], -1)
        job = self._job_of[number]
        report = Report(0, began=began, ended=self.now, outcomes=dict.fromkeys(job.owed, _MADE))
        report_path(self._folder, job).write_text(json.dumps(asdict(report)))
        self._queue[number] = self._queue[number]._replace(state="COMPLETED")
        self._at(self.now + _REMEMBERED, partial(self._queue.pop, number))
        for behind in self._behind.pop(number, []):
            self._before[behind].remove(number)
            if not self._before[behind]:
                self._get_ready(behind)
        self._start_what_fits()


_MADE = Outcome(COMPLETE)


def _plan(matrix: Matrix, folder: Path) -> Plan:
    """The plan of a cluster for ``matrix``."""
    jobs = [
        replace(job, command=["true"], logs=[str(folder / f"log/{job.stem}.log")] * max(1, len(job.cells)))
        for job in matrix.jobs
    ]
    words = {job.name: [f"--cpus-per-task={2 if job.light or job.always else 4}"] for job in jobs}
    return Plan(str(folder / "run"), None, jobs, cluster=Cluster(words, 120))


def main() -> None:
    models, benchmarks, shards, place = sys.argv[1:]
    folder = Path(place).absolute()
    os.environ |= {f"IMAGEEVALKIT_{name}": str(folder / name.lower()) for name in ("OUTPUT", "LOG")}
    matrix = Matrix.of(int(models), int(benchmarks), _SECONDS, shards=int(shards))
    plan = _plan(matrix, folder)
    plan.save()
    require(2 * len(plan.cells) + 64)
    slurm, opens = SimulatedSlurm(matrix, Path(plan.run_folder)), 0

    def listen(event: str, given: tuple[Any, ...]) -> None:
        nonlocal opens
        opens += event == "open" and not slurm.is_busy and str(given[0]).startswith(str(folder))

    sys.addaudithook(listen)
    said, began = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        found = look_around(plan, slurm)
        summary = run_plan(plan, found, slurm, False, lambda: slurm.now, slurm.sleep)
    figures = {
        "complete": sum(cell.state == COMPLETE for cell in summary.cells),
        "jobs": len(plan.jobs),
        "bound": matrix.bound(NODES * GPUS),
        "makespan": slurm.now,
        "submitting": slurm.last_submitted - began,
        "opens": opens,
        "files": sum(len(names) for *_, names in os.walk(plan.run_folder)),
    }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
