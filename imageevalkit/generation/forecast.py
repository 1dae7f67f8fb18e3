"""What a generate job would do, without a model: read by ``--dry_run`` from jobs' cells and options on stdin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.forecasting import Datasets, Forecast, tell_forecasts
from imageevalkit.generation.money import money
from imageevalkit.generation.survey import survey


def forecast_of(options: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """What a job with ``options`` would do for a cell, in words; only reads."""

    def forecast(cell: Cell) -> str:
        task = datasets[cell.benchmark].dataset_task
        setting = options["settings"][cell.model][task]
        items = datasets.items(cell, options["limit"])
        found = survey(cell, items, fp.settings_of(task, setting), repair=False)
        parts = (
            f"{len(found.make)} images to make, {len(found.reuse)} to reuse, {len(found.repair)} to repair"
        )
        if found.refused:
            parts += f", {len(found.refused)} refused before"
            parts += " and sent again" if options["retry_refused"] else ""
        if found.stale:
            again = "made again" if options["overwrite"] else "kept, the cell would stop: needs --overwrite"
            parts += f"; {found.explain_stale()} ({again})"
        images = len(found.make) + len(found.repair) + len(found.stale) * options["overwrite"]
        images += len(found.refused) * options["retry_refused"]
        if cost := money(setting, images):
            parts += f", {cost}"
        return parts

    return forecast


def main() -> ExitStatus:
    """A line for each cell of the requests on stdin."""
    return tell_forecasts(forecast_of)


if __name__ == "__main__":
    run_main(main)
