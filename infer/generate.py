"""The generate job: a model through all its benchmarks, or all API models at once (run by a launcher)."""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from custom_datasets.load_dataset import load_dataset
from custom_models.load_model import load_model
from imageevalkit import assets
from imageevalkit.api.traffic import Traffic
from imageevalkit.cell import Cell
from imageevalkit.errors import CellFailure, ExitStatus, run_main, worst
from imageevalkit.generation.cell_run import CellRun, GenerateOptions
from imageevalkit.generation.contract import GenerationError
from imageevalkit.generation.records import spent_since
from imageevalkit.generation.run import Planned, generate_cell, generate_together
from imageevalkit.items import items_of
from imageevalkit.jobs import STATUS_OF_STATE, Job, Outcome, Plan, cell_of, load_plan, write_outcome
from imageevalkit.progress import ProgressWriter
from imageevalkit.secrets import one_line, redact


class ModelHolder:
    """The one model in memory; the next task's class replaces it, the next benchmark's does not."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._task = ""
        self._model: Any = None
        self._failure = ""

    def get(self, run: CellRun) -> Any:
        """The model for the cell's task, loaded now if it is not yet.

        Raises:
            CellFailure: it does not load (and did not before: loading is tried once).
        """
        if run.task != self._task:
            self._model, self._failure, self._task = None, "", run.task
            _free_memory()
            started = time.perf_counter()
            try:
                self._model = _load(self._traffic, run)
            except CellFailure as error:
                self._failure = str(error)
            else:
                run.making.log(f"model loaded in {time.perf_counter() - started:.1f} s")
        if self._failure:
            raise CellFailure(self._failure)
        return self._model


def _load(traffic: Traffic, run: CellRun) -> Any:
    """Load the model of a cell; its requests, if it makes any, go through ``traffic``.

    Raises:
        CellFailure: it does not load.
    """
    try:
        model = load_model(run.setting)
    except GenerationError as error:
        raise CellFailure(f"model does not load: {one_line(error)}") from None
    except Exception as error:
        run.making.log(redact(traceback.format_exc()))
        raise CellFailure(f"model does not load: {type(error).__name__}: {one_line(error, 300)}") from None
    if hasattr(model, "use_traffic"):
        model.use_traffic(traffic)
    elif run.setting.get("api") and traffic.budget.max_cost is not None:
        raise CellFailure("--max_cost cannot bound a model class that does not tell what its images cost")
    return model


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> ExitStatus:
    """Run every cell of the job; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--job", required=True)
    args = parser.parse_args()
    plan = load_plan(args.plan)
    job = plan.job(args.job)
    if job.options["api"]:
        return asyncio.run(_generate_all_at_once(plan, job, since=args.plan.stat().st_mtime))
    return _generate_one_by_one(plan, job)


def _generate_one_by_one(plan: Plan, job: Job) -> ExitStatus:
    progress, holder = ProgressWriter(), ModelHolder(_traffic(job))
    statuses = []
    for key, log in zip(job.cells, job.logs, strict=True):
        cell = cell_of(key)
        _switch_log(Path(log))
        say = functools.partial(print, flush=True)
        planned = Planned(cell, functools.partial(_open, cell, job, progress, say), say)
        say(f"=== generate {key}")
        outcome = generate_cell(planned, holder.get)
        statuses.append(_settle(plan, planned, outcome))
    return worst(statuses)


async def _generate_all_at_once(plan: Plan, job: Job, since: float) -> ExitStatus:
    """All cells of the job side by side; ``since`` is when the run began, in seconds since 1970."""
    traffic = _traffic(job)
    progress = ProgressWriter()
    models: dict[str, list[Planned]] = {}
    for key, path in zip(job.cells, job.logs, strict=True):
        cell = cell_of(key)
        # a job that crashed and was started again must not spend the money twice
        spent = spent_since(cell, since)
        traffic.budget.spent += spent
        say = functools.partial(_append, Path(path))
        say(f"=== generate {key}")
        planned = Planned(cell, functools.partial(_open, cell, job, progress, say, spent), say)
        models.setdefault(cell.model, []).append(planned)
    logs = {planned.cell: planned for cells in models.values() for planned in cells}
    statuses = []

    def settle(cell: Cell, outcome: Outcome) -> None:
        statuses.append(_settle(plan, logs[cell], outcome))

    making = asyncio.ensure_future(
        generate_together(list(models.values()), functools.partial(_load, traffic), traffic.workers, settle)
    )
    # what is under way may be billed all the same: it goes on record before the process ends
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, making.cancel)
    try:
        await making
    except asyncio.CancelledError:
        return ExitStatus.TERMINATED
    return worst(statuses)


def _traffic(job: Job) -> Traffic:
    options = job.options
    return Traffic(options["workers"], options["requests_per_minute"], options["max_cost"])


def _settle(plan: Plan, planned: Planned, outcome: Outcome) -> ExitStatus:
    planned.log(f"=== {outcome.state}: {outcome.message}")
    write_outcome(Path(plan.run_folder), planned.cell, "generate", outcome)
    return STATUS_OF_STATE[outcome.state]


def _open(
    cell: Cell, job: Job, progress: ProgressWriter, log: Callable[[str], None], spent: float = 0.0
) -> CellRun:
    """Survey the cell, on which this run has ``spent`` so many USD before.

    Raises:
        CellFailure: its files are not what they should be.
    """
    options = job.options
    # the pinned bytes, before an image is made (and paid for) from other ones
    problems = assets.check(cell.benchmark, hashes=True)
    if problems:
        raise CellFailure(assets.explain(problems, cell.benchmark))
    dataset = load_dataset(cell.benchmark)
    run = CellRun(
        cell,
        items_of(dataset, cell, options["limit"]),
        dataset.dataset_task,
        options["settings"][cell.model][dataset.dataset_task],
        GenerateOptions(
            options["overwrite"], options["retry_refused"], options["blank_on_error"], options["workers"]
        ),
        progress,
        log,
    )
    run.making.max_cost, run.making.cost = options["max_cost"], spent or None
    return run


def _append(path: Path, text: str) -> None:
    """Add a line to the log of one cell, beside those that other cells write at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def _switch_log(path: Path) -> None:
    """Send stdout and stderr, child processes' and C libraries' too, to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


if __name__ == "__main__":
    run_main(main)
