"""No more GPUs for a generate job than it has work for, and none where there is nothing left to make."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

from imageevalkit.cell import REPO
from imageevalkit.errors import say
from imageevalkit.jobs import Job, Plan
from imageevalkit.launch.environments import DRIVER_ENV
from imageevalkit.launch.process import with_our_paths
from imageevalkit.secrets import environ_with

_TELL_AFTER = 2.0


def with_gpus_of_work(plan: Plan) -> Plan:
    """``plan``, its generate jobs with GPUs for the images that they have left to make.

    Images are counted in the driver's environment. A job whose images cannot be counted stays as it is.
    """
    asked = [job for job in plan.jobs if job.stage == "generate" and job.gpus]
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
