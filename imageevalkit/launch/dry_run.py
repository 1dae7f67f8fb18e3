"""``--dry_run``: the plan in words, with the images each cell would make, reuse or repair."""

from __future__ import annotations

import json
import subprocess
import sys

from imageevalkit.cell import REPO
from imageevalkit.jobs import Job, Plan
from imageevalkit.launch.environments import DRIVER_ENV


def describe(plan: Plan) -> str:
    """One line per job and per cell. Datasets are read in the driver's environment, as jobs would."""
    order = "side by side" if plan.parallel else "one after another"
    lines = [f"plan: {len(plan.cells)} cells, {len(plan.jobs)} jobs, {order}"]
    for job in plan.jobs:
        lines.append(f"{job.name}: {job.command[0]}, {job.gpus} GPUs, {job.cores} cores")
        if job.stage == "generate":
            lines += _cells(job)
    lines += [f"blocked {cell}: {reason}" for cell, reason in plan.blocked.items()]
    return "\n".join(lines)


def _cells(job: Job) -> list[str]:
    request = json.dumps({"cells": job.cells, **job.options})
    answer = subprocess.run(
        [str(DRIVER_ENV / "bin" / "python"), "-m", "imageevalkit.generation.forecast"],
        input=request,
        capture_output=True,
        text=True,
        cwd=REPO,
        check=False,
    )
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(answer.stderr, file=sys.stderr)
        return [f"  image counts unknown: {last}"]
    return [f"  {line}" for line in answer.stdout.splitlines()]
