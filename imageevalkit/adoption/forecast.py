"""What the job of ``--images`` would take: read by ``--dry_run`` from its cells and options on stdin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imageevalkit.adoption.adopt import may_replace, nothing_found
from imageevalkit.adoption.finding import find_images
from imageevalkit.errors import CellFailure, ExitStatus, run_main
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
    found = find_images(source, items, dataset)
    if not found:
        raise CellFailure(nothing_found(cell, items, source))
    may_replace(cell, items, source, options["overwrite"])
    return f"{key}: {len(found)} of {len(items)} images are in {source}"


def main() -> ExitStatus:
    """One line for each cell of the request on stdin."""
    return tell_forecasts(forecast)


if __name__ == "__main__":
    run_main(main)
