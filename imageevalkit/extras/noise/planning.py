"""Plans the repeated questions: in the evaluate jobs or, with a budget, in jobs of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imageevalkit.jobs.plan import EvaluateOrder, Job, cell_of
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import Options
from imageevalkit.plan.stage_jobs import Run


def resolve(options: Options, given: Mapping[str, Any], config: Config) -> None:
    """Sets ``options.judge_repeats``."""
    options.judge_repeats = options.extra["noise"]["judge_repeats"]


def repeat_jobs(run: Run, before: Sequence[Job]) -> list[Job]:
    """Returns the jobs that ask judges questions again (``--judge_repeats``) in a run with ``--max_cost``.

    They start after all other jobs, so that repeated questions never use up the budget of questions that
    count. Each evaluates its cells once more, with all answers so far. Its failure does not fail a cell.
    """
    jobs = list[Job]()
    for job in before:
        order = job.order
        if (
            not isinstance(order, EvaluateOrder)
            or order.asks_again
            or not (order.judge_repeats and order.ask)
        ):
            continue
        name = f"repeat:{job.name.removeprefix('evaluate:')}"
        jobs.append(
            replace(
                job,
                name=name,
                command=[name if word == job.name else word for word in job.command],
                environ={key: name if value == job.name else value for key, value in job.environ.items()},
                logs=run.logs([*map(cell_of, job.cells)], "repeat"),
                after=[one.name for one in before],
                always=True,
                follows=False,
                retries=0,
                order=replace(order, asks_again=True),
            )
        )
    return jobs
