"""What the job that rewrites prompts would ask: read by ``--dry_run`` from jobs' cells and options on stdin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageevalkit.cell import Cell
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.forecast import Datasets, Forecast, tell_forecasts
from imageevalkit.judges.api import money_in_words
from imageevalkit.rewriting.engine import RewriteOptions, make_rewriter, read_replies, texts_of
from imageevalkit.text import counted


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """What a job with these options would ask about a cell, in words; only reads, and raises what the job would."""
    rewriter, options = (
        make_rewriter(request["rewriter"], request["kwargs"]),
        RewriteOptions(**request["options"]),
    )
    known = set(read_replies(rewriter, options.retry_refused))

    def forecast(cell: Cell) -> str:
        task, items = datasets[cell.benchmark].dataset_task, datasets.items(cell, options.limit)
        questions = texts_of(cell, rewriter, task, items, options).questions
        waiting = [question for name, question in questions.items() if name not in known]
        # of what cells share the first one tells
        known.update(questions)
        said = (
            f"{len(waiting)} of {counted(len(questions), 'rewrite request')} to send to {rewriter.model_id}"
        )
        if not waiting:
            return said
        return f"{said}, {money_in_words(waiting, rewriter.settings.price_of(rewriter.model_id))}"

    return forecast


def main() -> ExitStatus:
    """A line for each cell of the requests on stdin."""
    return tell_forecasts(forecast_of)


if __name__ == "__main__":
    run_main(main)
