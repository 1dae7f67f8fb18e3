"""``--dry_run``: the plan in words, with what each cell would make, reuse or repair, and ask its judge."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from eval_models.judge.registry import find
from imageevalkit.cell import REPO
from imageevalkit.errors import ExitStatus
from imageevalkit.jobs import Job, Plan
from imageevalkit.launch.environments import DRIVER_ENV
from imageevalkit.launch.serving_jobs import describe_server


def describe(plan: Plan) -> tuple[str, ExitStatus]:
    """One line per job and per cell, and FAILED when a cell cannot start or cannot be counted.

    Datasets are read in the driver's environment.
    """
    order = "side by side" if plan.parallel else "one after another"
    lines = [f"plan: {len(plan.cells)} cells, {len(plan.jobs)} jobs, {order}"]
    status = ExitStatus.FAILED if plan.blocked else ExitStatus.COMPLETE
    for job in plan.jobs:
        lines.append(f"{job.name}: {job.command[0]}, {job.gpus} GPUs, {job.cores} cores")
        lines += describe_server(job)
        request = _request(job)
        if request:
            counts, counted = _forecast(*request)
            lines += [f"  {line}" for line in counts]
            status = status if counted else ExitStatus.FAILED
    lines += [f"blocked {cell}: {reason}" for cell, reason in plan.blocked.items()]
    return "\n".join(lines), status


def _request(job: Job) -> tuple[str, dict[str, Any]] | None:
    """The module that counts what ``job`` would do, and what it reads; None where there is nothing to count."""
    if job.stage == "generate":
        return "imageevalkit.generation.forecast", {"cells": job.cells, **job.options}
    if job.stage == "evaluate":
        judge = job.environ.get("IMAGEEVALKIT_JUDGE", "")
        limit = job.environ.get("IMAGEEVALKIT_LIMIT")
        return "imageevalkit.evaluation.forecast", {
            "cells": job.cells,
            "judge": judge,
            "is_judge": find(judge) is not None,
            "limit": int(limit) if limit else None,
            "environ": job.environ,
        }
    return None


def _forecast(module: str, request: dict[str, Any]) -> tuple[list[str], bool]:
    answer = subprocess.run(
        [str(DRIVER_ENV / "bin" / "python"), "-m", module],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=REPO,
        check=False,
    )
    last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    lines = answer.stdout.splitlines() or [f"counts unknown: {last}"]
    return lines, answer.returncode == 0
