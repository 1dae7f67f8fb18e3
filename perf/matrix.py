"""Models × benchmarks: how well the launcher uses 8 GPUs, and the time of planning many models.

The local launcher runs 5 models × 6 benchmarks on 8 simulated GPUs with jobs that sleep. A generate job makes one
benchmark after another; each evaluation waits for its images; every third evaluation needs no GPU. The lower bound of
the makespan is the larger of two: all GPU seconds over the number of GPUs, and the longest chain of jobs.

The plan is ``--dry_run`` of 500 models behind an API × 2 benchmarks of 800 items, compared with the plan of
one model.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from imageevalkit.jobs.plan import COMPLETE, Job, Outcome, Plan, cell_of, outcome_path, write_outcome
from imageevalkit.run import local
from imageevalkit.run.gpu_pool import LEASES
from perf.harness import Meter, Row, Table, at_most, run_program
from perf.toolkit import BENCHMARK, JUDGED, Toolkit, make_prompts
from tests.support.fake_gpus import install_fake_gpus
from tests.support.fake_nvml import pynvml

_GPUS, _MODELS, _BENCHMARKS = 8, 5, 6
_MAKESPAN, _PLAN, _MB = at_most(1.15), at_most(4), at_most(300)
# Sleeps for each cell, then moves its outcome into place. Not Python: two cores run thirty such jobs.
_JOB = 'while [ $# -gt 0 ]; do sleep "$1"; if [ $# -gt 1 ]; then mv "$2" "$3"; shift 2; fi; shift; done'


def jobs_of(folder: Path, mean: float) -> tuple[list[Job], float]:
    """Returns jobs whose processes sleep, with outcomes ready in ``folder``, and the lower bound of the makespan."""
    rng, lengths, chains = random.Random(17), list[float](), list[float]()
    images, judging = ([mean * rng.uniform(0.5, 1.5) for _ in range(_BENCHMARKS)] for _ in range(2))
    jobs, evaluating = list[Job](), list[Job]()
    for m in range(_MODELS):
        speed, cells = rng.uniform(0.6, 1.4), [f"model-{m}/benchmark-{b}" for b in range(_BENCHMARKS)]
        each = [(cell, speed * seconds) for cell, seconds in zip(cells, images, strict=True)]
        needs: dict[str, Any] = {"gpus": 1 + m % 2, "gpus_at_most": 1 + m % 2}
        jobs.append(_sleeping("generate", f"model-{m}", each, folder, **needs))
        lengths.append((1 + m % 2) * speed * sum(images))
        for b, cell in enumerate(cells):
            is_light, seconds = b % 3 == 2, images[b] * judging[b] / mean
            needs = {"gpus": int(not is_light), "light": is_light, "after": [jobs[-1].name]}
            evaluating.append(_sleeping("evaluate", cell, [(cell, seconds)], folder, **needs))
            lengths.append(int(not is_light) * seconds)
            chains.append(speed * sum(images[: b + 1]) + seconds)
    return jobs + evaluating, max(*chains, sum(lengths) / _GPUS)


def _sleeping(stage: str, name: str, cells: list[tuple[str, float]], folder: Path, **needs: Any) -> Job:
    words = list[str]()
    for cell, seconds in cells:
        write_outcome(folder / "left", cell_of(cell), stage, Outcome(COMPLETE))
        places = [str(outcome_path(folder / to, cell_of(cell), stage)) for to in ("left", "run")]
        words += [f"{seconds:.3f}", *places]
    command, log = ["sh", "-c", _JOB, "sh", *words], folder / "log" / f"{stage}-{name.replace('/', '-')}.log"
    return Job(f"{stage}:{name}", stage, command, [cell for cell, _ in cells], [str(log)], **needs)


@contextlib.contextmanager
def simulated_gpus(folder: Path) -> Iterator[None]:
    """Gives this machine eight GPUs, described in ``folder``, and cores for all of its jobs, in a ``with`` block."""
    uuids = [f"GPU-perf-{os.getpid()}-{n}" for n in range(_GPUS)]
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environ["FAKE_NVML"] = install_fake_gpus(folder, uuids)
    with (
        mock.patch.dict(sys.modules, {"pynvml": pynvml}),
        mock.patch.object(local, "available_cores", lambda: 8 * _GPUS),
        mock.patch.dict(os.environ, environ, clear=True),
    ):
        try:
            yield
        finally:
            for uuid in uuids:
                (LEASES / uuid).unlink(missing_ok=True)


def local_rows(folder: Path, mean: float) -> list[Row]:
    """The makespan of the local launcher over the lower bound."""
    place = Path(tempfile.mkdtemp(dir=folder))
    jobs, bound = jobs_of(place, mean)
    plan = Plan(str(place / "run"), True, jobs)
    outcome_path(place / "run", cell_of(plan.cells[0]), "").parent.mkdir(parents=True)
    output = io.StringIO()
    with (
        simulated_gpus(place / "gpus"),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        Meter() as meter,
    ):
        summary = local.run_plan(plan, {})
    problems = [f"{cell.cell} is {cell.state}" for cell in summary.cells if cell.state != COMPLETE]
    label = f"{_MODELS} models × {_BENCHMARKS} benchmarks on {_GPUS} GPUs / the lower bound"
    return [Row.of(label, meter.usage, bound, _MAKESPAN, problems)]


def plan_rows(kit: Toolkit, models: int) -> list[Row]:
    """The plan of so many models over the plan of one."""
    words = ["--use_api", "true", "--dry_run", "--ds_names", f"{BENCHMARK};{JUDGED}", "--model_names"]
    one = kit.run(*words, "model-0")
    many = kit.run(*words, ";".join(f"model-{n}" for n in range(models)))
    text, problems = (kit.log / "eval.log").read_text(), kit.failure(many)
    planned = text.count(" questions to ask of ")
    problems += [f"{planned} of {2 * models} results are in the plan: {text[-999:]}"] * (
        planned != 2 * models
    )
    row = Row.of(
        f"--dry_run of {models} models × 2 benchmarks / of one model", many, one.wall, _PLAN, problems
    )
    return [row, Row("  memory", many.peak_mb, _MB, unit=" MB")]


def main(table: Table, folder: Path, is_small: bool) -> None:
    table.measure(local_rows, folder, 0.02 if is_small else 1.5)
    table.measure(plan_rows, Toolkit(folder / "plan", make_prompts(800)), 2 if is_small else 500)


if __name__ == "__main__":
    run_program(__doc__, main)
