"""``--dry_run``: the plan of a run in words, with the images, requests, money and time that it takes."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from imageevalkit.cli.command_line import Command
from imageevalkit.common.errors import ExitStatus, show
from imageevalkit.common.machine import available_cores
from imageevalkit.common.text import counted, dollars, some
from imageevalkit.extension_points import connected
from imageevalkit.extras.dry_run.forecasts import Request, ask
from imageevalkit.jobs.estimates import SECONDS_OF_A_REPLY, SECONDS_OF_AN_IMAGE, Estimate
from imageevalkit.jobs.plan import (
    EvaluateOrder,
    GenerateOrder,
    Job,
    Plan,
    ServeOrder,
    cell_of,
)
from imageevalkit.plan.config import DRIVER_PYTHON, Config, python_of
from imageevalkit.plan.options import resolve
from imageevalkit.plan.planner import plan_run
from imageevalkit.slurm.commands import replicas_of, sbatch_words, with_nodes, words_for_size
from imageevalkit.store.cell import Cell


def _show(given: Mapping[str, Any], config: Config, here: Path) -> ExitStatus:
    options = with_nodes(replace(resolve(given, config), needs_keys=False), config)
    plan = plan_run(options, config)
    text, status = describe(plan, sbatch_words(config, plan) if plan.cluster else {})
    show(text)
    for scheduler in connected("scheduler", options.active_extras).values():
        show(scheduler.describe(options))
    return status


COMMANDS = [Command("--dry_run", _show, uses_results=False)]


def describe(plan: Plan, sbatch: Mapping[str, Sequence[str]] = {}) -> tuple[str, ExitStatus]:
    """Returns the plan in words, and the status FAILED if a cell is blocked or cannot be counted.

    ``sbatch`` has the options of each job on Slurm, by name.

    The text has a line for each job and cell, then the notes of the plan and its totals. Images are counted
    in the driver's environment, the questions of an evaluation in its own environment.
    """
    order = "side by side" if plan.parallel else "one after another"
    if plan.parallel is None and any(job.follows for job in plan.jobs):
        order += ", API judges start during generation"
    if plan.cluster:
        order = "through Slurm"
    lines = [f"plan: {counted(len(plan.cells), 'result')}, {counted(len(plan.jobs), 'job')}, {order}"]
    status = ExitStatus.FAILED if plan.blocked else ExitStatus.COMPLETE
    requests = {job.name: _requests(plan, job) for job in plan.jobs}
    _ask_all(plan, itertools.chain(*requests.values()))
    estimates = list[Estimate]()
    for job in plan.jobs:
        program = job.command[0]
        if isinstance(job.order, EvaluateOrder):  # its program may be just "bash"
            program = requests[job.name][0].python
        elif isinstance(job.order, GenerateOrder):  # the environment that the user chose
            program = job.order.python or program
        lines.append(f"{job.name}: {program}, {gpus_of(job)}, {counted(job.cores, 'core')}")
        if plan.cluster:
            words = sbatch[job.name]
            lines.append(f"  sbatch {shlex.join([*words_for_size(job, words), *words])}")
        if isinstance(job.order, ServeOrder):
            served = ", ".join(job.cells)
            lines.append(f"  serves {job.order.judge} ({job.order.command[0]}) to {served}")
        for request in requests[job.name]:
            for cell, (estimate, was_counted) in zip(request.text["cells"], request.answers, strict=True):
                found = Estimate(*estimate)
                estimates.append(found._replace(seconds=found.seconds / replicas_of(job)))
                lines.append(f"  {cell}: {found.text}")
                status = status if was_counted else ExitStatus.FAILED
    blocked: dict[str, list[str]] = {}
    for cell, reason in plan.blocked.items():
        blocked.setdefault(reason, []).append(cell)
    lines += [f"blocked {some(cells, ', ')}: {reason}" for reason, cells in blocked.items()]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join([*lines, *_totals(estimates, len(plan.blocked))]), status


def _totals(estimates: Sequence[Estimate], blocked: int) -> list[str]:
    """Returns the total images, requests, dollars and minutes of ``estimates`` in words, a few lines.

    ``blocked`` is the number of blocked cells, which the totals leave out.
    """
    images, requests, unpriced = (
        sum(getattr(one, name) for one in estimates) for name in ("images", "requests", "unpriced")
    )
    usd = math.fsum(one.usd for one in estimates)
    money = f"about {dollars(usd)}" if usd else "" if unpriced else "nothing to pay"
    if unpriced:
        money += f"{' and ' * bool(money)}{counted(unpriced, 'request')} of unknown price"
    seconds = math.fsum(
        max(one.seconds / one.at_once, 60 * one.requests / (one.per_minute or math.inf))
        for one in estimates
        if not one.wait
    )
    parts = [f"{counted(images, 'image')} to generate", counted(requests, "API request"), money]
    parts += [f"about {counted(math.ceil(seconds / 60), 'minute')}"] * bool(seconds)
    parts += dict.fromkeys(one.wait for one in estimates if one.wait)
    lines = [f"total: {', '.join(parts)}"]
    if seconds and (at_once := {one.at_once for one in estimates if one.requests and not one.wait}):
        lines.append(
            f"  assumed: {SECONDS_OF_AN_IMAGE:g} s for an image of a model without earlier images, "
            f"{SECONDS_OF_A_REPLY:g} s for "
            f"a judge's reply, {max(at_once)} requests at a time (--num_workers)"
        )
    if untimed := list(dict.fromkeys(one.untimed for one in estimates if one.untimed)):
        lines.append(
            f"  not in it: the time that this machine takes for {some(untimed, ', ')}; --limit 4 tries it"
        )
    if blocked:
        lines.append(f"  not in it: {counted(blocked, 'blocked result')}")
    return lines


def gpus_of(job: Job) -> str:
    """Returns the GPUs of ``job`` in words: ``up to 4 replicas × 2 GPUs``."""
    order = job.order
    if isinstance(order, GenerateOrder) and order.replica_gpus and job.gpus:
        replicas = job.gpus_at_most // order.replica_gpus
        count = "1 replica" if replicas == 1 else f"up to {replicas} replicas"
        return f"{count} × {counted(order.replica_gpus, 'GPU')}"
    if (
        isinstance(order, GenerateOrder)
        and not (order.replica_gpus or order.api)
        and (order.replicas or 1) > 1
    ):
        return f"{order.replicas} replicas on the CPU"
    return counted(job.gpus, "GPU")


def _requests(plan: Plan, job: Job) -> list[Request]:
    """Returns the requests that count the work of ``job``; none for a report."""
    if isinstance(job.order, ServeOrder):
        return [request for part in job.order.parts for request in _requests(plan, plan.job(part))]
    if isinstance(job.order, EvaluateOrder) and not job.always:  # it counts the repeated questions as well
        # If a benchmark has several environments, evaluation runs in the first: it records package versions.
        environment, *_ = job.order.environment.split() or [""]
        python = python_of(environment, job.name, "")
        texts = (
            {"cells": [cell], "order": job.order, "images": _images_of(plan, job, cell_of(cell))}
            for cell in job.cells
        )
        return [Request(job.order.kind, python, text, tuple(job.secrets)) for text in texts]
    if job.order and not job.always:
        text = {"cells": job.cells, "order": job.order, "shard": job.shard}
        return [Request(job.order.kind, DRIVER_PYTHON, text, tuple(job.secrets))]
    return []


def _images_of(plan: Plan, job: Job, cell: Cell) -> Any:
    """Returns how the run gets the images of ``cell`` before ``job``, for the forecast of its evaluation.

    None if no job before generates or adopts images.
    """
    before = (one for one in map(plan.job, job.after) if cell.key in one.cells)
    order = next((one.order for one in before), None)
    if not isinstance(order, GenerateOrder):
        return order
    # Settings decide which existing images stay. Without images, all models lead to the same questions.
    settings = order.settings[cell.model] if cell.folder.exists() else {}
    how = {"retry_refused": order.retry_refused, "overwrite": order.overwrite}
    return {"kind": order.kind, "settings": settings, **how}


def _ask_all(plan: Plan, requests: Iterable[Request]) -> None:
    """Answers all ``requests`` with about one process per core; each program gets its share of the cores.

    Requests about one benchmark go to one process, which reads the benchmark once for all models.
    """
    cores = available_cores()
    together: dict[tuple[str, ...], dict[str, list[Request]]] = {}
    for request in requests:
        place = (request.kind, request.python, *request.secrets)
        benchmark = cell_of(request.text["cells"][0]).benchmark
        together.setdefault(place, {}).setdefault(benchmark, []).append(request)
    groups = [list(of_benchmarks.values()) for of_benchmarks in together.values()]
    of_each = cores / max(1, sum(map(len, groups)))
    dealt = list[list[list[Request]]]()
    for group in groups:
        share = min(len(group), math.ceil(len(group) * of_each))
        dealt += [group[n::share] for n in range(share)]
    with ThreadPoolExecutor(cores) as pool:
        for ended in [pool.submit(ask, plan, part) for part in dealt]:
            ended.result()
