"""What a plan has to make, counted before it begins: for its GPUs, and for ``--dry_run``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from imageevalkit.cell import REPO, Cell
from imageevalkit.errors import ExitStatus, say
from imageevalkit.jobs import Job, Plan, cell_of
from imageevalkit.judges.choice import is_judge
from imageevalkit.launch.environments import DRIVER_ENV, python_of
from imageevalkit.launch.evaluate_jobs import describe_server
from imageevalkit.launch.process import with_our_paths
from imageevalkit.machine import available_cores
from imageevalkit.secrets import environ_with
from imageevalkit.text import counted

_TELL_AFTER = 2.0


def with_gpus_of_work(plan: Plan) -> Plan:
    """``plan``, its generate jobs with GPUs for the images that they have left to make.

    Images are counted in the driver's environment. A job whose images cannot be counted stays as it is.
    """
    # what is overwritten where prompts are rewritten first, nobody knows yet
    asked = [
        job
        for job in plan.jobs
        if job.stage == "generate" and job.gpus and not (job.after and job.options["overwrite"])
    ]
    calls = _calls_left(asked) if asked else {}
    return replace(plan, jobs=[_fitted(job, calls.get(job.name)) for job in plan.jobs])


def _fitted(job: Job, calls: int | None) -> Job:
    if calls is None:
        return job
    if not calls:
        # a finished cell needs no replica, and must not wait for a GPU that others use
        return replace(job, gpus=0, gpus_at_most=0)
    return replace(job, gpus_at_most=min(job.gpus_at_most, job.gpus * calls))


def _calls_left(jobs: Sequence[Job]) -> Mapping[str, int | None]:
    """Calls of its model that each job has to make, by name, counted no further than its replicas go."""
    request = {
        job.name: {
            "cells": job.cells,
            "options": job.options,
            "enough": job.gpus_at_most // job.gpus,
        }
        for job in jobs
    }
    environ = environ_with(())
    for job in jobs:
        environ |= job.environ
    try:
        answer = _answer(json.dumps(request), environ)
        return {str(name): calls for name, calls in json.loads(answer).items()}
    except (OSError, ValueError):
        return {}


def _answer(request: str, environ: dict[str, str]) -> str:
    with subprocess.Popen(
        [str(DRIVER_ENV / "bin" / "python"), "-m", "imageevalkit.generation.forecast", "--calls"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=with_our_paths(environ),
        cwd=REPO,
    ) as counting:
        try:
            try:
                return counting.communicate(request, _TELL_AFTER)[0]
            except subprocess.TimeoutExpired:
                say("looking through the images there are, to see which jobs need GPUs")
                return counting.communicate()[0]
        except BaseException:  # a stopped launcher leaves nothing behind
            counting.kill()
            raise


def describe(plan: Plan) -> tuple[str, ExitStatus]:
    """One line per job and per cell, and FAILED when a cell cannot start or cannot be counted.

    Datasets are read in the driver's environment, what evaluators ask is counted in theirs.
    """
    order = "side by side" if plan.parallel else "one after another"
    lines = [f"plan: {counted(len(plan.cells), 'cell')}, {counted(len(plan.jobs), 'job')}, {order}"]
    status = ExitStatus.FAILED if plan.blocked else ExitStatus.COMPLETE
    by_name = {job.name: job for job in plan.jobs}
    requests = {job.name: _requests(job, by_name) for job in plan.jobs}
    told = iter(_forecasts([request for of_job in requests.values() for request in of_job]))
    for job in plan.jobs:
        server = describe_server(job)
        # the script of an evaluation says less than the environment it runs in
        program = requests[job.name][0].python if job.stage == "evaluate" and not server else job.command[0]
        lines.append(f"{job.name}: {program}, {gpus_of(job)}, {counted(job.cores, 'core')}")
        lines += server
        for _ in requests[job.name]:
            for line, was_counted in next(told):
                lines.append(f"  {line}")
                status = status if was_counted else ExitStatus.FAILED
    lines += [f"blocked {cell}: {reason}" for cell, reason in plan.blocked.items()]
    return "\n".join(lines), status


def gpus_of(job: Job) -> str:
    """The GPUs that ``job`` takes, in words: ``up to 4 replicas × 2 GPUs``."""
    each, replicas = job.options.get("replica_gpus"), job.options.get("replicas") or 1
    if each and job.gpus:
        replicas = job.gpus_at_most // each
        count = "1 replica" if replicas == 1 else f"up to {replicas} replicas"
        return f"{count} × {counted(each, 'GPU')}"
    if each == 0 and replicas > 1 and not job.options["api"]:
        return f"{replicas} replicas on the CPU"
    return counted(job.gpus, "GPU")


class _Request(NamedTuple):
    """The ``module`` that counts what cells would do, the Python it runs in, what it reads, and its environment."""

    module: str
    python: str
    text: dict[str, Any]
    environ: dict[str, str]


_ForecastLines = list[tuple[str, bool]]
"""A line for each cell of a request, and whether it could be counted."""


def _requests(job: Job, by_name: Mapping[str, Job]) -> list[_Request]:
    """What there is to count of ``job``."""
    python = str(DRIVER_ENV / "bin" / "python")
    text = {"cells": job.cells, **job.options}
    if job.stage == "generate":
        return [
            _Request("imageevalkit.generation.forecast", python, text, _environ(job.secrets, job.environ))
        ]
    if job.stage in ("adopt", "rewrite"):
        module = {"adopt": "adoption", "rewrite": "rewriting"}[job.stage]
        environ = _environ(job.secrets, job.environ)
        return [_Request(f"imageevalkit.{module}.forecast", python, text, environ)]
    if job.stage != "evaluate":
        return []
    before = {cell: by_name[name] for name in job.after for cell in by_name[name].cells}
    return [_evaluation(job, cell, before.get(cell)) for cell in job.cells]


def _evaluation(job: Job, cell: str, before: Job | None) -> _Request:
    # a job that serves a judge has all of it for each cell
    own = job.options.get("cells", {}).get(cell, job.options)
    environ = own.get("environ", job.environ)
    judge, limit = environ.get("IMAGEEVALKIT_JUDGE", ""), environ.get("IMAGEEVALKIT_LIMIT")
    # of several the first: who judges with a model of its own tells its versions there
    environment = (own["environment"].split() or [""])[0]
    return _Request(
        "imageevalkit.evaluation.forecast",
        python_of(environment, cell, "bash utils/make_env.sh"),
        {
            "cells": [cell],
            "judge": judge,
            "is_judge": is_judge(judge),
            "limit": int(limit) if limit else None,
            "images": _images_of(before, cell_of(cell)) if before else None,
        },
        _environ(own.get("secrets", job.secrets), environ),
    )


def _environ(secrets: Collection[str], own: Mapping[str, str]) -> dict[str, str]:
    return with_our_paths({**environ_with(secrets), **own})


def _images_of(job: Job, cell: Cell) -> dict[str, Any]:
    """How ``job`` gets the images of ``cell``, as the forecast of an evaluation reads it."""
    if job.stage == "adopt":
        return {"stage": job.stage, **job.options}
    how = {"stage": job.stage, **{name: job.options[name] for name in ("retry_refused", "overwrite")}}
    # the settings decide which of the images that are there stay; where there are none, all models ask the same
    return {**how, "settings": job.options["settings"][cell.model]} if cell.folder.exists() else how


def _forecasts(requests: Sequence[_Request]) -> list[_ForecastLines]:
    """What is told of each of ``requests``: all for one Python and environment by one process, several side by side.

    A process reads a benchmark once for all of its models.
    """
    together: dict[tuple[str, ...], list[int]] = {}
    for n, request in enumerate(requests):
        key = (request.module, request.python, *map("=".join, sorted(request.environ.items())))
        together.setdefault(key, []).append(n)
    # the longest first: what starts last is waited for
    groups = sorted(together.values(), key=lambda group: -sum(len(requests[n].text["cells"]) for n in group))
    found: dict[int, _ForecastLines] = {}
    with ThreadPoolExecutor(available_cores()) as pool:
        answers = pool.map(_told, ([requests[n] for n in group] for group in groups))
        for group, told in zip(groups, answers, strict=True):
            found |= zip(group, told, strict=True)
    return [found[n] for n in range(len(requests))]


def _told(requests: Sequence[_Request]) -> list[_ForecastLines]:
    module, python, _, environ = requests[0]
    answer = subprocess.run(
        [python, "-m", module],
        input=json.dumps([request.text for request in requests]),
        capture_output=True,
        text=True,
        errors="replace",
        env=environ,
        cwd=REPO,
        check=False,
    )
    try:
        told: list[_ForecastLines] = json.loads(answer.stdout)
    except ValueError:
        last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        return [[(f"counts unknown: {last}", False)] for _ in requests]
    return told
