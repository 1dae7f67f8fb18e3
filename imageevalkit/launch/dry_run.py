"""``--dry_run``: the plan in words, with the images each cell would make, reuse or repair."""

from __future__ import annotations

import json
import subprocess

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
        if job.stage == "generate":
            counts, counted = _cells(job)
            lines += [f"  {line}" for line in counts]
            status = status if counted else ExitStatus.FAILED
    lines += [f"blocked {cell}: {reason}" for cell, reason in plan.blocked.items()]
    return "\n".join(lines), status


def _cells(job: Job) -> tuple[list[str], bool]:
    answer = subprocess.run(
        [str(DRIVER_ENV / "bin" / "python"), "-m", "imageevalkit.generation.forecast"],
        input=json.dumps({"cells": job.cells, **job.options}),
        capture_output=True,
        text=True,
        cwd=REPO,
        check=False,
    )
    last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    lines = answer.stdout.splitlines() or [f"image counts unknown: {last}"]
    return lines, answer.returncode == 0
