"""What the job of ``--images`` would take: read by ``--dry_run`` from its cells and options on stdin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imageevalkit.adoption.adopt import check_found, may_replace, settings_of
from imageevalkit.adoption.finding import find_images
from imageevalkit.adoption.found import Missing, Piece
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.forecasting import tell_forecasts
from imageevalkit.items import items_of
from imageevalkit.jobs import cell_of


def forecast(key: str, options: dict[str, Any]) -> str:
    """One line for the cell ``key``; only reads.

    Raises:
        CellFailure: the job would fail, for this reason.
    """
    from custom_datasets.load_dataset import load_dataset

    cell = cell_of(key)
    dataset = load_dataset(cell.benchmark)
    items = items_of(dataset, cell, options["limit"])
    source = Path(options["sources"][cell.benchmark])
    found = find_images(source, items, dataset, Path(options["among"]) if options["among"] else None)
    check_found(cell, items, source, found)
    may_replace(cell, items, settings_of(source, found), options["overwrite"])
    there = [one for one in found.values() if not isinstance(one, Missing)]
    grids = {one.path for one in there if isinstance(one, Piece)}
    split = f", in {len(grids)} grids (their black cells, if any, are not images)" if grids else ""
    return f"{key}: {len(there)} of {len(items)} images are in {source}{split}"


def main() -> ExitStatus:
    """One line for each cell of the request on stdin."""
    return tell_forecasts(forecast)


if __name__ == "__main__":
    run_main(main)
