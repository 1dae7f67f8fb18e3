"""``--dry_run``: the plan in words, with what each cell would make, reuse or repair, and ask its judge."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from eval_models.judge.registry import find
from imageevalkit.cell import REPO
from imageevalkit.errors import ExitStatus
from imageevalkit.jobs import Job, Plan
from imageevalkit.launch.environments import DRIVER_ENV, python_of
from imageevalkit.launch.serving_jobs import describe_server
from imageevalkit.secrets import environ_with


def describe(plan: Plan) -> tuple[str, ExitStatus]:
    """One line per job and per cell, and FAILED when a cell cannot start or cannot be counted.

    Datasets are read in the driver's environment.
    """
    order = "side by side" if plan.parallel else "one after another"
    lines = [f"plan: {len(plan.cells)} cells, {len(plan.jobs)} jobs, {order}"]
    status = ExitStatus.FAILED if plan.blocked else ExitStatus.COMPLETE
    for job in plan.jobs:
        requests, server = _requests(job), describe_server(job)
        # the script of an evaluation says less than the environment it runs in
        program = requests[0].python if job.stage == "evaluate" and not server else job.command[0]
        lines.append(f"{job.name}: {program}, {gpus_of(job)}, {job.cores} cores")
        lines += server
        for request in requests:
            counts, counted = _forecast(request)
            lines += [f"  {line}" for line in counts]
            status = status if counted else ExitStatus.FAILED
    lines += [f"blocked {cell}: {reason}" for cell, reason in plan.blocked.items()]
    return "\n".join(lines), status


def gpus_of(job: Job) -> str:
    """The GPUs that ``job`` takes, in words: ``up to 4 replicas × 2 GPUs``."""
    each, replicas = job.options.get("replica_gpus"), job.options.get("replicas") or 1
    if each and job.gpus:
        replicas = job.gpus_at_most // each
        count = "1 replica" if replicas == 1 else f"up to {replicas} replicas"
        return f"{count} × {each} {'GPU' if each == 1 else 'GPUs'}"
    if each == 0 and replicas > 1 and not job.options["api"]:
        return f"{replicas} replicas on the CPU"
    return f"{job.gpus} GPUs"


class _Request(NamedTuple):
    """The ``module`` that counts what cells would do, the Python it runs in, what it reads, and its environment."""

    module: str
    python: str
    text: dict[str, Any]
    environ: dict[str, str]


def _requests(job: Job) -> list[_Request]:
    """What there is to count of ``job``."""
    if job.stage == "generate":
        python = str(DRIVER_ENV / "bin" / "python")
        text = {"cells": job.cells, **job.options}
        return [
            _Request("imageevalkit.generation.forecast", python, text, _environ(job.secrets, job.environ))
        ]
    if job.stage == "adopt":
        text = {"cells": job.cells, **job.options}
        python = str(DRIVER_ENV / "bin" / "python")
        return [_Request("imageevalkit.adoption.forecast", python, text, _environ(job.secrets, job.environ))]
    return [_evaluation(job, cell) for cell in job.cells] if job.stage == "evaluate" else []


def _evaluation(job: Job, cell: str) -> _Request:
    # a job that serves a judge has a command and an environment for each cell
    own = job.options.get("cells", {}).get(cell, {})
    environ, command = own.get("environ", job.environ), own.get("command", job.command)
    judge, limit = environ.get("IMAGEEVALKIT_JUDGE", ""), environ.get("IMAGEEVALKIT_LIMIT")
    # bash, script, model, environments: who judges with a model of its own tells its versions there
    environment = (command[3].split() or [""])[0]
    return _Request(
        "imageevalkit.evaluation.forecast",
        python_of(environment, cell, "bash utils/make_env.sh"),
        {
            "cells": [cell],
            "judge": judge,
            "is_judge": find(judge) is not None,
            "limit": int(limit) if limit else None,
        },
        _environ(own.get("secrets", job.secrets), environ),
    )


def _environ(secrets: Collection[str], own: Mapping[str, str]) -> dict[str, str]:
    return {**environ_with(secrets), **own}


def _forecast(request: _Request) -> tuple[list[str], bool]:
    answer = subprocess.run(
        [request.python, "-m", request.module],
        input=json.dumps(request.text),
        capture_output=True,
        text=True,
        env=request.environ,
        cwd=REPO,
        check=False,
    )
    last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    lines = answer.stdout.splitlines() or [f"counts unknown: {last}"]
    return lines, answer.returncode == 0
