"""What a generate job would do, without a model: read by ``--dry_run`` from a job's cells and options on stdin."""

from __future__ import annotations

from typing import Any

from imageevalkit import fingerprint as fp
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.forecasting import tell_forecasts
from imageevalkit.generation.money import money
from imageevalkit.generation.survey import survey
from imageevalkit.items import items_of
from imageevalkit.jobs import cell_of


def forecast(key: str, options: dict[str, Any]) -> str:
    """One line for the cell ``key``; only reads."""
    from custom_datasets.load_dataset import load_dataset

    cell = cell_of(key)
    dataset = load_dataset(cell.benchmark)
    items = items_of(dataset, cell, options["limit"])
    setting = options["settings"][cell.model][dataset.dataset_task]
    found = survey(cell, items, fp.settings_of(dataset.dataset_task, setting), repair=False)
    parts = f"{len(found.make)} images to make, {len(found.reuse)} to reuse, {len(found.repair)} to repair"
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
    return f"{key}: {parts}"


def main() -> ExitStatus:
    """One line for each cell of the request on stdin."""
    return tell_forecasts(forecast)


if __name__ == "__main__":
    run_main(main)
