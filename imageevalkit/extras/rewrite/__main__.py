"""The rewrite job: rewrites the prompts of a run before generation, in the driver's environment.

Only this job contacts the rewriter's endpoint, so generate jobs need no access to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from imageevalkit.api.prices import quoted
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, run_main, say, worst
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import counted
from imageevalkit.extras.rewrite.order import RewriteOrder
from imageevalkit.extras.rewrite.rewriting import STAGE, RewriteRun, make_rewriter, read_replies, texts_of
from imageevalkit.jobs.estimates import SECONDS_OF_A_REPLY, Datasets, Estimate, Forecast
from imageevalkit.jobs.plan import (
    STATUS_OF_STATE,
    cell_of,
    given_job,
    outcome_of,
    write_outcome,
)
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.judges.api import cost_of_asking, money_in_words
from imageevalkit.store.cell import Cell


def main() -> ExitStatus:
    """Rewrites the prompts of every cell of the job. Returns the worst exit status of the cells."""
    plan, job, order = given_job(RewriteOrder)
    rewriter = make_rewriter(order.rewriter, order.kwargs)
    run = RewriteRun(rewriter, order, ProgressWriter(plan.progress_path(job)), plan.settings)
    outcomes = {key: outcome_of(partial(run.plan, cell_of(key)), say) for key in job.cells}
    try:
        run.ask()
    except (CellFailure, UserError, OSError) as error:
        run.problem = run.problem or one_line(error)
    for one in run.planned:
        outcomes[one.cell.key] = outcome_of(partial(run.outcome, one), say)
    for key, outcome in outcomes.items():
        say(f"=== {key} {outcome.state}: {outcome.message}")
        write_outcome(Path(plan.run_folder), cell_of(key), STAGE, outcome)
    return worst(STATUS_OF_STATE[outcome.state] for outcome in outcomes.values())


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """Returns a function that estimates the requests of a rewrite job for a cell.

    It only reads files, and raises the errors that the job would raise."""
    order = RewriteOrder(**request["order"])
    rewriter = make_rewriter(order.rewriter, order.kwargs)
    known = set(read_replies(rewriter, order.retry_refused))

    def forecast(cell: Cell) -> Estimate:
        task, items = datasets[cell.benchmark].dataset_task, datasets.items(cell, order.limit)
        questions = texts_of(cell, rewriter, task, items, order).questions
        waiting = [question for name, question in questions.items() if name not in known]
        # the estimate of the first cell includes requests that several cells share
        known.update(questions)
        line = (
            f"{len(waiting)} of {counted(len(questions), 'rewrite request')} to send to {rewriter.model_id}"
        )
        if not waiting:
            return Estimate(line)
        price = quoted(rewriter.settings.price_of(rewriter.model_id), vars(rewriter.settings))
        usd = cost_of_asking(waiting, price)
        return Estimate(
            f"{line}, {money_in_words(waiting, price)}",
            requests=len(waiting),
            usd=usd or 0.0,
            unpriced=len(waiting) if usd is None else 0,
            seconds=len(waiting) * SECONDS_OF_A_REPLY,
            at_once=order.workers,
            per_minute=order.requests_per_minute,
        )

    return forecast


if __name__ == "__main__":
    run_main(main)
