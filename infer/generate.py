"""The generate job: a local model through all its benchmarks, or all API models at once (run by a launcher)."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from custom_models.load_model import load_model
from imageevalkit import logs
from imageevalkit.api.limiter import Traffic
from imageevalkit.cell import Cell
from imageevalkit.cell.records import spent_since
from imageevalkit.errors import CellFailure, ExitStatus, UserError, complain, run_main, worst
from imageevalkit.generation.cell_run import CellRun, open_cell
from imageevalkit.generation.concurrent import CellPlan, generate_together
from imageevalkit.generation.fork import run_apart
from imageevalkit.generation.model import GenerationError, ImageModel, image_model
from imageevalkit.generation.replicas import pool as devices
from imageevalkit.generation.replicas.model import load_replicated
from imageevalkit.generation.replicas.pool import Replicas
from imageevalkit.guest_code import guest_code
from imageevalkit.jobs import (
    ATTEMPT_ENV,
    FAILED,
    STATUS_OF_STATE,
    USABLE,
    Job,
    Outcome,
    Plan,
    cell_of,
    load_plan,
    read_outcome,
    write_outcome,
)
from imageevalkit.machine import Fit, requests_that_fit
from imageevalkit.progress import ProgressWriter
from imageevalkit.secrets import one_line, redact


def _load(traffic: Traffic, run: CellRun) -> ImageModel:
    """Load the model of a cell; its requests, if it makes any, go through ``traffic``.

    Raises:
        CellFailure: it does not load.
    """
    try:
        with guest_code():
            model = image_model(load_model(run.setting))
    except GenerationError as error:
        raise CellFailure(f"model does not load: {one_line(error)}") from None
    except Exception as error:
        run.outcomes.log(redact(traceback.format_exc()))
        raise CellFailure(f"model does not load: {type(error).__name__}: {one_line(error, 300)}") from None
    is_bounded = model.use_traffic(traffic)
    if not is_bounded and run.setting.get("api") and traffic.budget.max_cost is not None:
        raise CellFailure("--max_cost cannot bound a model class that does not tell what its images cost")
    return model


def main() -> ExitStatus:
    """Run every cell of the job; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--job", required=True)
    args = parser.parse_args()
    logs.print_without_fear()
    plan = load_plan(args.plan)
    job, since = plan.job(args.job), args.plan.stat().st_mtime
    several = len({cell_of(key).model for key in job.cells}) > 1
    if several and int(os.environ.get(ATTEMPT_ENV, "1")) > 1:
        return _one_by_one(plan, job, since)
    try:
        return _run(plan, job, job.cells, since)
    except UserError as error:
        for key in job.cells:
            write_outcome(Path(plan.run_folder), cell_of(key), "generate", Outcome(FAILED, one_line(error)))
        return ExitStatus.FAILED


def _run(plan: Plan, job: Job, keys: list[str], since: float) -> ExitStatus:
    return asyncio.run(_generate(plan, job, keys, since))


def _one_by_one(plan: Plan, job: Job, since: float) -> ExitStatus:
    """Each model in a process of its own: the one that they shared was ended, perhaps by the code of one of them."""
    folder = Path(plan.run_folder)
    by_model: dict[str, list[str]] = {}
    for key in job.cells:
        by_model.setdefault(cell_of(key).model, []).append(key)
    for keys in by_model.values():
        log = Path(job.logs[job.cells.index(keys[0])])
        left = [key for key in keys if read_outcome(folder, cell_of(key), "generate") is None]
        if not left:
            continue
        ended = run_apart(functools.partial(_run, plan, job, left, since), log)
        if ended.stopped_by:
            return ended.stopped_by
        for key in left:
            if read_outcome(folder, cell_of(key), "generate") is None:
                outcome = Outcome(
                    FAILED, f"its process ended in the middle, {ended.how}; {log} has its last words"
                )
                write_outcome(folder, cell_of(key), "generate", outcome)
    outcomes = [read_outcome(folder, cell_of(key), "generate") for key in job.cells]
    return worst(STATUS_OF_STATE[outcome.state] if outcome else ExitStatus.FAILED for outcome in outcomes)


async def _generate(plan: Plan, job: Job, keys: list[str], since: float) -> ExitStatus:
    """The cells ``keys`` of the job; ``since`` is when the run began, in seconds since 1970."""
    traffic = _traffic(job)
    # nothing was left to make when the plan was made
    unlent = bool(job.options["replica_gpus"]) and not job.gpus
    replicas = None if job.options["api"] else Replicas([] if unlent else _environs(job))
    in_flight = traffic.workers if replicas is None else max(1, replicas.size)
    progress = ProgressWriter()
    models: dict[str, list[CellPlan]] = {}
    for key, path in zip(job.cells, job.logs, strict=True):
        cell = cell_of(key)
        # a job that crashed and was started again must not spend the money twice
        spent = spent_since(cell, since) if job.options["api"] else 0.0
        traffic.budget.spent += spent
        if key not in keys:
            continue
        say = functools.partial(logs.append, Path(path))
        say(f"=== generate {key}")
        opening = functools.partial(open_cell, cell, job.options, progress, Path(path), in_flight, spent)
        before = read_outcome(Path(plan.run_folder), cell, "rewrite")
        if before and before.state not in USABLE:
            opening = functools.partial(_not_started, f"rewrite of {key} is {before.state}")
        planned = CellPlan(cell, opening, say)
        models.setdefault(cell.model, []).append(planned)
    by_cell = {planned.cell: planned for cells in models.values() for planned in cells}
    statuses = []
    stopping: list[ExitStatus] = []

    def settle(cell: Cell, outcome: Outcome) -> None:
        if traffic.lowered:
            outcome = replace(outcome, message=f"{outcome.message}; {traffic.lowered}")
        if not stopping:  # what ends because it is stopped has not failed
            statuses.append(_settle(plan, by_cell[cell], outcome))

    loop = asyncio.get_running_loop()

    def load(run: CellRun) -> Any:  # called in a thread
        if replicas is None:
            return _load(traffic, run)
        if unlent:  # never on the CPU instead
            raise CellFailure(
                "images were damaged or removed after the run had begun, and its job has no GPU to make them again: "
                "the same command does"
            )
        return asyncio.run_coroutine_threadsafe(load_replicated(replicas, run), loop).result()

    making = asyncio.ensure_future(generate_together(list(models.values()), load, traffic.workers, settle))

    # what is under way may be billed all the same: it goes on record before the process ends
    def stop(status: ExitStatus) -> None:
        if not stopping:
            stopping.append(status)
            making.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop, ExitStatus.TERMINATED)
    loop.add_signal_handler(signal.SIGINT, stop, ExitStatus.INTERRUPTED)
    try:
        await making
    except asyncio.CancelledError:
        if not stopping:
            raise
    finally:
        if replicas:
            await replicas.close()
    return worst([*statuses, *stopping])


def _not_started(why: str) -> CellRun:
    raise CellFailure(f"not started: {why}")


def _environs(job: Job) -> list[dict[str, str]]:
    """What sets the replicas of a local model apart; their number is that of the workers.

    Raises:
        UserError: the GPUs that the job was given are too few for one.
    """
    found = devices.environs(job.options["replica_gpus"], job.options["replicas"])
    if not found:
        raise UserError(f"{job.name} needs {job.gpus} GPU(s), and CUDA_VISIBLE_DEVICES has fewer")
    return found


def _traffic(job: Job) -> Traffic:
    """Bounds for all requests of the job. Raises UserError: not even one fits beside the open files."""
    options = job.options
    fit = Fit(options["workers"])
    if options["api"]:
        # a request and the download of its image; a model's connections stay open for a while when another's turn comes
        clients = sum(map(len, options["settings"].values()))
        fit = requests_that_fit(options["workers"], each=len(job.turns) + clients)
    return Traffic(fit.requests, options["requests_per_minute"], options["max_cost"], fit.told)


def _settle(plan: Plan, planned: CellPlan, outcome: Outcome) -> ExitStatus:
    planned.log(f"=== {outcome.state}: {outcome.message}")
    try:
        write_outcome(Path(plan.run_folder), planned.cell, "generate", outcome)
    except (CellFailure, OSError) as error:
        # the launcher tells what a cell without an outcome may mean; the others go on
        complain(str(error))
        return ExitStatus.FAILED
    return STATUS_OF_STATE[outcome.state]


if __name__ == "__main__":
    run_main(main)
