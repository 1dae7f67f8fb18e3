"""Counts the work of jobs for ``--dry_run``: a process for each kind of order and environment.

It reads ``{"settings": by benchmark, "requests": [{"cells": […], "order": …, …}]}`` as JSON from stdin.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imageevalkit.common.errors import CellFailure, ExitStatus, run_main, said_of, show
from imageevalkit.common.guest_code import guest_code, stdout_kept
from imageevalkit.common.redaction import environ_with, one_line
from imageevalkit.extension_points import connected
from imageevalkit.jobs.estimates import Datasets, Estimate, Forecast
from imageevalkit.jobs.plan import Plan, cell_of
from imageevalkit.plan.config import with_our_paths
from imageevalkit.store.cell import REPO


@dataclass
class Request:
    """A request to count the work of some cells of a job with an order of the ``kind``.

    ``python`` is the interpreter that counts, ``text`` the JSON on its stdin, ``secrets`` are the variables with
    its keys. ``answers`` has an estimate and "was counted" for each cell.
    """

    kind: str
    python: str
    text: dict[str, Any]
    secrets: tuple[str, ...] = ()
    answers: list[tuple[Any, bool]] = field(default_factory=list)


def ask(plan: Plan, of_benchmarks: Sequence[Sequence[Request]]) -> None:
    """Answers the requests ``of_benchmarks``, which are all of one kind and environment, with one process."""
    asked = list(itertools.chain(*of_benchmarks))
    first, printed = asked[0], ""
    text = {"settings": plan.settings, "requests": [request.text for request in asked]}
    try:
        answer = subprocess.run(
            [first.python, "-m", __name__, first.kind],
            input=json.dumps(text, default=vars),
            capture_output=True,
            text=True,
            errors="replace",
            env=with_our_paths(environ_with(first.secrets), first.python),
            cwd=REPO,
            check=False,
        )
        printed = answer.stderr
        for request, answers in zip(asked, json.loads(answer.stdout), strict=True):
            request.answers = answers
    except (ValueError, OSError) as error:
        if len(of_benchmarks) > 1:  # one benchmark's code ended the process: count the others separately
            for requests in of_benchmarks:
                ask(plan, [requests])
            return
        last = (printed.strip().splitlines() or [f"no answer ({error})"])[-1]
        for request in asked:
            request.answers = [(Estimate(f"unknown: {last}"), False) for _ in request.text["cells"]]


def main() -> ExitStatus:
    """Prints, for each request, a list of ``[estimate, succeeded]``, one for each cell.

    An estimate is the list of the fields of :class:`Estimate`.
    """
    gc.disable()  # takes a quarter of the time, and 100,000 questions hold no garbage
    [kind], asked = sys.argv[1:], json.load(sys.stdin)
    datasets = Datasets(asked["settings"])
    # cached: cells with the same request share one benchmark object
    forecast_for = functools.cache(lambda request: _forecast_of(kind)(json.loads(request), datasets))

    def estimate(forecast: Forecast, key: str) -> tuple[Estimate, bool]:
        try:
            with guest_code():
                return forecast(cell_of(key)), True
        except Exception as error:  # an error in one dataset class or benchmark must not hide the other cells
            reason = one_line(error, 300) if isinstance(error, CellFailure) else said_of(error)
            return Estimate(f"unknown: {reason}"), False

    answers = []
    with stdout_kept():
        for request in asked["requests"]:
            cells = request.pop("cells")
            forecast = forecast_for(json.dumps(request))
            answers.append([estimate(forecast, key) for key in cells])
    show(json.dumps(answers))
    return ExitStatus.COMPLETE


def _forecast_of(kind: str) -> Callable[[Mapping[str, Any], Datasets], Forecast]:
    # imported here: the environment of an evaluation has not all packages of the driver's
    if kind == "generate":
        from imageevalkit.extras.dry_run.generation import forecast_of as of_images

        return of_images
    if kind == "evaluate":
        from imageevalkit.extras.dry_run.questions import forecast_of as of_questions

        return of_questions
    [of_extra] = connected("forecast", [kind]).values()
    found: Callable[[Mapping[str, Any], Datasets], Forecast] = of_extra
    return found


if __name__ == "__main__":
    run_main(main)
