"""The adopt job of ``--images``: copies one model's images for all benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imageevalkit.common.errors import ExitStatus, run_main, say, worst
from imageevalkit.extras.adopt.copies import STAGE, adopt_cell, check_cell
from imageevalkit.extras.adopt.order import AdoptOrder
from imageevalkit.extras.adopt.sources import places_of_job
from imageevalkit.jobs.estimates import Datasets, Estimate, Forecast
from imageevalkit.jobs.plan import (
    STATUS_OF_STATE,
    Outcome,
    cell_of,
    given_job,
    outcome_of,
    write_outcome,
)
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell


def main() -> ExitStatus:
    """Adopts the images of every cell of the job. Returns the worst exit status of the cells."""
    plan, job, order = given_job(AdoptOrder)
    progress, datasets = ProgressWriter(plan.progress_path(job)), Datasets(plan.settings)
    statuses = []
    for key in job.cells:
        outcome = outcome_of(functools.partial(_adopt, cell_of(key), order, datasets, progress), say)
        say(f"=== {key} {outcome.state}: {outcome.message}")
        write_outcome(Path(plan.run_folder), cell_of(key), STAGE, outcome)
        statuses.append(STATUS_OF_STATE[outcome.state])
    return worst(statuses)


def _adopt(cell: Cell, order: AdoptOrder, datasets: Datasets, progress: ProgressWriter) -> Outcome:
    items, source, places = places_of_job(cell, order, datasets)
    return adopt_cell(cell, items, source, places, progress, order.overwrite)


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """Returns a function that counts the images of an adopt job for a cell.

    It only reads files, and raises the errors that the job would raise."""

    order = AdoptOrder(**request["order"])

    def forecast(cell: Cell) -> Estimate:
        items, source, places = places_of_job(cell, order, datasets)
        check_cell(cell, items, source, places, order.overwrite)
        count = sum(place.path is not None for place in places.values())
        grids = {place.path for place in places.values() if place.grid}
        split = f", in {len(grids)} grids (their black cells, if any, are not images)" if grids else ""
        return Estimate(f"{count} of {len(items)} images are in {source}{split}")

    return forecast


if __name__ == "__main__":
    run_main(main)
