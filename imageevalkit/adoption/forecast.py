"""What the job of ``--images`` would take: read by ``--dry_run`` from jobs' cells and options on stdin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imageevalkit.adoption.adopt import check_found, may_replace, settings_of
from imageevalkit.adoption.finding import find_images
from imageevalkit.adoption.found import Found, Missing, Piece
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.forecasting import Datasets, Forecast, tell_forecasts


def found_images(
    cell: Cell, options: Mapping[str, Any], datasets: Datasets
) -> tuple[list[Item], Path, dict[str, Found]]:
    """The items of ``cell``, where a job with ``options`` would look for their images, and what it would find there.

    Raises:
        CellFailure: the folder cannot be read, or may hold another model's images; or an entry breaks the contract.
    """
    items, dataset = datasets.own_items(cell, options["limit"]), datasets[cell.benchmark]
    source = Path(options["sources"][cell.benchmark])
    return (
        items,
        source,
        find_images(source, items, dataset, Path(options["among"]) if options["among"] else None),
    )


def forecast_of(options: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """What a job with ``options`` would take for a cell, in words; only reads, and raises what the job would."""

    def forecast(cell: Cell) -> str:
        items, source, found = found_images(cell, options, datasets)
        check_found(cell, items, source, found)
        may_replace(cell, items, settings_of(source, found), options["overwrite"])
        there = [one for one in found.values() if not isinstance(one, Missing)]
        grids = {one.path for one in there if isinstance(one, Piece)}
        split = f", in {len(grids)} grids (their black cells, if any, are not images)" if grids else ""
        return f"{len(there)} of {len(items)} images are in {source}{split}"

    return forecast


def main() -> ExitStatus:
    """A line for each cell of the requests on stdin."""
    return tell_forecasts(forecast_of)


if __name__ == "__main__":
    run_main(main)
