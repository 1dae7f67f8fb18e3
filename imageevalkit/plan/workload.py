"""Counts the images that are to be made before a run starts, to assign GPUs; asks the programs that count."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from imageevalkit.common.errors import say
from imageevalkit.common.redaction import environ_with
from imageevalkit.jobs.estimates import Estimate
from imageevalkit.jobs.plan import (
    GenerateOrder,
    Job,
    Plan,
)
from imageevalkit.plan.environments import DRIVER_PYTHON, with_our_paths
from imageevalkit.store.cell import REPO

_TELL_AFTER = 2.0


@dataclass
class Request:
    """A request to a program that counts the work of some cells.

    ``program`` is a module with its arguments, ``python`` the interpreter, ``text`` the JSON on its stdin,
    ``secrets`` are the variables with its keys. ``told`` has a count and "was counted" for each cell.
    """

    program: tuple[str, ...]
    python: str
    text: dict[str, Any]
    secrets: tuple[str, ...] = ()
    told: list[tuple[Any, bool]] = field(default_factory=list)


def with_gpus_of_work(plan: Plan) -> Plan:
    """Returns ``plan`` with no more GPUs for each generate job than its remaining images need.

    Images are counted in the driver's environment. A job whose images cannot be counted is unchanged.
    """
    # With --overwrite, the rewritten prompts decide which images are replaced: unknown before the rewriting.
    asked = [
        job
        for job in plan.jobs
        if isinstance(job.order, GenerateOrder) and job.gpus and not (job.after and job.order.overwrite)
    ]
    calls = _calls_left(plan, asked) if asked else {}
    return replace(plan, jobs=[_fitted(job, calls.get(job.name)) for job in plan.jobs])


def _fitted(job: Job, calls: int | None) -> Job:
    if calls is None:
        return job
    if not calls:
        # A job without images to generate loads no model. It must not wait for a GPU that others use.
        return replace(job, gpus=0, gpus_at_most=0)
    return replace(job, gpus_at_most=min(job.gpus_at_most, job.gpus * calls))


def _calls_left(plan: Plan, jobs: Sequence[Job]) -> Mapping[str, int | None]:
    """Returns how often each job has to call its model, by name; counting stops at the number of replicas."""
    program = ("imageevalkit.generate.estimate", "--calls")
    requests = [
        Request(
            program, DRIVER_PYTHON, text_of(job) | {"enough": job.gpus_at_most // job.gpus, "job": job.name}
        )
        for job in jobs
    ]
    late = threading.Timer(
        _TELL_AFTER, say, ["looking through the images there are, to see which jobs need GPUs"]
    )
    late.start()
    try:
        ask(plan, [requests])
    finally:
        late.cancel()
    return {
        job.name: sum(calls for calls, _ in request.told)
        for job, request in zip(jobs, requests, strict=True)
        if all(was_counted for _, was_counted in request.told)
    }


def text_of(job: Job) -> dict[str, Any]:
    """Returns the question about the work of ``job``."""
    return {"cells": job.cells, "order": job.order, "shard": job.shard}


def ask(plan: Plan, of_benchmarks: Sequence[Sequence[Request]]) -> None:
    """Answers the requests ``of_benchmarks``, which all go to one program, with one process."""
    asked = list(itertools.chain(*of_benchmarks))
    first, said = asked[0], ""
    text = {"settings": plan.settings, "requests": [request.text for request in asked]}
    try:
        answer = subprocess.run(
            [first.python, "-m", *first.program],
            input=json.dumps(text, default=vars),
            capture_output=True,
            text=True,
            errors="replace",
            env=with_our_paths(environ_with(first.secrets), first.python),
            cwd=REPO,
            check=False,
        )
        said = answer.stderr
        for request, told in zip(asked, json.loads(answer.stdout), strict=True):
            request.told = told
    except (ValueError, OSError) as error:
        if len(of_benchmarks) > 1:  # one benchmark's code ended the process: count the others separately
            for requests in of_benchmarks:
                ask(plan, [requests])
            return
        last = (said.strip().splitlines() or [f"no answer ({error})"])[-1]
        for request in asked:
            request.told = [(Estimate(f"unknown: {last}"), False) for _ in request.text["cells"]]
