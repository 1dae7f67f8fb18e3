"""A matrix of models × benchmarks: the time that launchers take over what no order of its jobs can beat; its plan.

The bound is the larger of two: all GPU seconds over the number of GPUs, and the longest way through the jobs, each with
all the replicas that it may have. A generate job makes the images of one benchmark after another, and what evaluates a
cell begins as soon as its images are there. Evaluations take a GPU, or wait for an API beside all others.

The local launcher runs real processes that sleep and leave the outcomes that jobs leave; NVML shows it 8 GPUs that are
not there, and it takes the machine for one with many cores. A model has one replica, the lengths are the same in every
run. What is added to a job is from its start to its end on the books, over the job's own length; in turn, it is all
between one start and the next. With all replicas, a model takes as many GPUs as are free when it starts, as it does
without REPLICAS.

The plan is ``--dry_run`` of 1 and 50 models behind an API × 20 benchmarks, nothing made yet: 12 shipped ones, whose
data a mirror has (SHARED_MIRROR), and others of 800 items that a judge is asked about. All share the driver's
environment: one more costs more processes.

The launcher of a cluster runs 200 models × 20 benchmarks before a simulated Slurm (``perf/simulated_slurm.py``) of 64
nodes with 8 GPUs each: bound and time are seconds of its clock, in which each sbatch takes 20 ms, and jobs start as
soon as there is room. What is submitted in a second is by the CPU time that the launcher itself takes until its last
job is, sbatch not included; CPU and memory are those of the whole process, the simulation included.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from imageevalkit.jobs.plan import COMPLETE, Job, Outcome, Plan, cell_of, outcome_path, write_outcome
from imageevalkit.run import local
from imageevalkit.run.gpu_pool import LEASES
from imageevalkit.run.ledger import RunSummary
from perf.harness import MIRROR, REPO, USAGE, Bar, Cost, Row, Table, at_least, at_most, measure, run_program
from perf.simulated_slurm import NODES
from perf.synthetic import GPUS, Matrix
from perf.toolkit import JUDGED, MODEL, Toolkit, geneval2_items
from tests.support.fake_gpus import install_fake_gpus
from tests.support.fake_nvml import pynvml

_SIDE_BY_SIDE, _SIMULATED, _SUBMITTED = at_most(1.15), at_most(1.15), at_least(200)
_LOCAL = 5, 6
_LABEL = f"{_LOCAL[0]} models × {_LOCAL[1]} benchmarks on {GPUS} GPUs"
_PLAN_S, _MB = at_most(5), at_most(300)
_BENCHMARKS = 20
# of the shipped benchmarks those that need no weights here, and their judges
_SHIPPED = {
    "quicktext": "",
    "longtext": "ppocr",
    **dict.fromkeys(("wise", "wise-verified", "wise-rewrite", "geneval2", "genai", "tiff"), "openai:judge"),
    **dict.fromkeys(("unigenbench", "t2ireasonbench", "oneig", "oneig-zh"), "openai:judge"),
}
_SETTINGS = "DS_KWARGS_MAP=(['oneig']=\"tasks='alignment,text'\" ['oneig-zh']=\"tasks='alignment,text'\")\n"
# Sleeps for each number of milliseconds over the replicas that it has GPUs for, and then moves the outcome of a cell to
# its place. No Python: the machine that measures may have two cores for thirty such jobs.
_JOB = """
each=$1; shift
IFS=,; set -f; there=0
for gpu in $CUDA_VISIBLE_DEVICES; do there=$((there + 1)); done
replicas=1; if [ "$each" -gt 0 ]; then replicas=$((there / each)); fi
echo "$replicas"
while [ $# -gt 0 ]; do
  sleep "$(($1 / replicas))e-3"
  shift
  if [ $# -gt 0 ]; then
    mv "$1" "$2"
    shift 2
  fi
done
"""


class LocalRun(NamedTuple):
    """A matrix that the local launcher has run; ``added`` are the seconds that each job took over its own length."""

    summary: RunSummary
    cost: Cost
    added: list[float]

    @classmethod
    def of(cls, matrix: Matrix, folder: Path, parallel: bool) -> LocalRun:
        """Run ``matrix`` in a folder of its own below ``folder``."""
        folder = Path(tempfile.mkdtemp(dir=folder))
        plan = Plan(str(folder / "run"), parallel, [_sleeping(job, matrix, folder) for job in matrix.jobs])
        outcome_path(folder / "run", cell_of(plan.cells[0]), "").parent.mkdir(parents=True)
        said = io.StringIO()
        with (
            _eight_gpus(folder / "gpus"),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            Cost() as cost,
        ):
            summary = local.run_plan(plan, {})
        added = []
        for job, ended in zip(plan.jobs, summary.jobs, strict=True):
            *_, there = Path(job.logs[0]).read_text().split()
            added.append(ended.seconds - sum(matrix.seconds[job.name]) / int(there))
        return cls(summary, cost, added)

    def row(self, label: str, bound: float, bar: Bar | None = None) -> Row:
        """Its makespan over ``bound`` seconds."""
        cells = self.summary.cells
        lost = sum(cell.state != COMPLETE for cell in cells)
        problems = [f"{lost} of {len(cells)} cells are not complete"] if lost or self.summary.status else []
        figures = {
            "bound s": f"{bound:.2f}",
            "wall s": f"{self.cost.wall:.2f}",
            "CPU s": f"{self.cost.cpu:.1f}",
        }
        return Row(label, self.cost.wall / bound, bar, figures, problems, self.cost.others)


def _sleeping(job: Job, matrix: Matrix, folder: Path) -> Job:
    """``job`` with a process for its cells, whose outcomes are written beforehand, elsewhere in ``folder``."""
    words = list[str]()
    for key, seconds in zip(job.cells or [""], matrix.seconds[job.name], strict=True):
        words.append(str(round(1000 * seconds)))
        if key:
            write_outcome(folder / "left", cell_of(key), job.step, Outcome(COMPLETE))
            words += [str(outcome_path(folder / to, cell_of(key), job.step)) for to in ("left", "run")]
    command = ["sh", "-c", _JOB, "sh", str(job.gpus), *words]
    return replace(job, command=command, logs=[str(folder / f"log/{job.stem}.log")])


@contextlib.contextmanager
def _eight_gpus(folder: Path) -> Iterator[None]:
    """For its time this machine has eight GPUs, described in ``folder``, and cores for all of its jobs."""
    uuids = [f"GPU-perf-{os.getpid()}-{n}" for n in range(GPUS)]
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environ["FAKE_NVML"] = install_fake_gpus(folder, uuids)
    with (
        mock.patch.dict(sys.modules, {"pynvml": pynvml}),
        mock.patch.object(local, "available_cores", lambda: 8 * GPUS),
        mock.patch.dict(os.environ, environ, clear=True),
    ):
        try:
            yield
        finally:
            for uuid in uuids:
                (LEASES / uuid).unlink(missing_ok=True)


def local_rows(folder: Path, seconds: float, parallel: bool) -> list[Row]:
    """5 models × 6 benchmarks on this machine, each model with one replica."""
    matrix = Matrix.of(*_LOCAL, seconds)
    run = LocalRun.of(matrix, folder, parallel)
    how, added = "side by side", statistics.mean(run.added)
    if not parallel:
        how, added = "in turn", (run.cost.wall - matrix.in_turn) / len(matrix.jobs)
    return [
        run.row(f"{_LABEL}, {how}", matrix.bound(GPUS), _SIDE_BY_SIDE if parallel else None),
        Row("  added to each job", added, unit=" s", others=run.cost.others),
    ]


def replicas_row(folder: Path, seconds: float) -> list[Row]:
    """The same side by side, each model with as many replicas as it gets."""
    matrix = Matrix.of(*_LOCAL, seconds, replicas=None)
    return [LocalRun.of(matrix, folder, True).row("  with all replicas, side by side", matrix.bound(GPUS))]


def simulated_rows(folder: Path, models: int, shards: int) -> list[Row]:
    """So many models on the simulated cluster, the images of each in so many shards."""
    place = Path(tempfile.mkdtemp(dir=folder))
    words = [str(models), str(_BENCHMARKS), str(shards), str(place)]
    command, log = [sys.executable, "-m", "perf.simulated_slurm", *words], folder / f"{place.name}.log"
    usage = measure(command, cwd=REPO, environ=os.environ, log=log)
    label, said = f"{models} models × {_BENCHMARKS} benchmarks on {NODES * GPUS} GPUs", log.read_text()
    label = f"{label}, simulated" if shards == 1 else f"  each model in {shards} shards, simulated"
    if usage.status:
        return [Row(label, 0.0, problems=[f"{usage.how_it_ended}: {said[-2000:]}"], others=usage.others)]
    told, others = json.loads(said.splitlines()[-1]), usage.others
    lost = models * _BENCHMARKS - told["complete"]
    figures = {**usage.figures, "bound s": f"{told['bound']:.0f}", "wall s": f"{told['makespan']:.0f}"}
    problems = [f"{lost} cells are not complete"] * bool(lost)
    rate, opens = told["jobs"] / told["submitting"], told["opens"] / told["makespan"]
    return [
        Row(label, told["makespan"] / told["bound"], _SIMULATED, figures, problems, others),
        Row("    submitted in a second of CPU", rate, _SUBMITTED, others=others),
        Row("    files opened in a second of the simulated time", opens, others=others),
        Row("    files in the run folder for each job", told["files"] / told["jobs"], others=others),
        Row("    memory", usage.peak_mb, _MB, unit=" MB", others=others),
    ]


class Plans:
    """A copy of the toolkit in ``folder`` with the data of twenty benchmarks, nothing made yet."""

    def __init__(self, folder: Path) -> None:
        self._kit = kit = Toolkit(folder, geneval2_items(800).entries)
        kit.prefetch("--eval", "false", "--model_names", MODEL, "--ds_names", ";".join(_SHIPPED))
        (kit.checkout / "config.local.sh").write_text(_SETTINGS)
        place = kit.checkout / "benchmarks/perf_variants"
        place.mkdir()
        names = [f"{JUDGED}-{n}" for n in range(_BENCHMARKS - len(_SHIPPED))]
        classes = [
            f'\n\nclass Variant{n}(PerfJudged):\n    name = "{name}"\n' for n, name in enumerate(names)
        ]
        text = "from benchmarks.perf.benchmark import PerfJudged\n" + "".join(classes)
        (place / "benchmark.py").write_text(text)
        for name in names:
            (kit.checkout / f"eval/{name}.sh").symlink_to("../utils/evaluate.sh")
        self._judges = {**_SHIPPED, **dict.fromkeys(names, "")}

    def rows(self, models: int) -> list[Row]:
        """The plan of so many models on all of the benchmarks."""
        log, cells, kit = self._kit.log / "eval.log", models * len(self._judges), self._kit
        log.unlink(missing_ok=True)
        judges = [f"{name}={judge}" for name, judge in self._judges.items() if judge]
        usage = kit.run(
            *[
                "--model_names",
                ";".join(f"model-{n}" for n in range(models)),
                "--use_api",
                "true",
                "--dry_run",
            ],
            *["--ds_names", ";".join(self._judges), "--judges", ";".join(judges)],
        )
        text = log.read_text()
        planned = min(text.count(" images to make"), text.count(" questions to ask of "))
        lost = [f"{planned} of {cells} cells are in the plan: {text[-1000:]}"] * (planned != cells)
        label = f"--dry_run of {models} models × {len(self._judges)} benchmarks"
        return [
            kit.seconds_row(label, usage, _PLAN_S, *lost),
            Row("  memory", usage.peak_mb, _MB, unit=" MB", others=usage.others),
        ]


def main(options: argparse.Namespace, folder: Path) -> Table:
    table = Table("makespan / bound, seconds, megabytes", "bound s", *USAGE[:3], tries=options.tries)
    if "local" in options.parts:
        table.measure(local_rows, folder, options.seconds, True)
        table.measure(replicas_row, folder, options.seconds)
        table.measure(local_rows, folder, options.seconds, False)
    if "plan" in options.parts and not MIRROR.is_dir():
        print("--dry_run is left out: no mirror has the benchmarks' data (SHARED_MIRROR names one)")
    elif "plan" in options.parts:
        plans = Plans(folder / "plan")
        for models in sorted({1, options.models}):
            table.measure(plans.rows, models)
    if "cluster" in options.parts:
        for shards in (1, 4):
            table.measure(simulated_rows, folder, options.simulated, shards)
    return table


if __name__ == "__main__":
    run_program(
        __doc__,
        main,
        seconds=(1.5, "of the images of a cell, in the mean"),
        models=(50, "of the plan"),
        simulated=(200, "models of the simulated cluster"),
        parts=(("local", "plan", "cluster"), "what is measured"),
    )
