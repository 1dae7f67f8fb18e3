"""What a generate job would do, without a model: read by ``--dry_run`` from a job's cells and options on stdin."""

from __future__ import annotations

import json
import sys
from typing import Any

from imageevalkit import fingerprint as fp
from imageevalkit.cell import REPO
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.generation.money import money
from imageevalkit.generation.survey import survey
from imageevalkit.items import items_of
from imageevalkit.jobs import cell_of
from imageevalkit.secrets import one_line


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
    """One line per cell of the request on stdin; a cell that cannot be read is one line too, and status 1."""
    sys.path.insert(0, str(REPO / "infer"))
    request = json.load(sys.stdin)
    status = ExitStatus.COMPLETE
    for key in request["cells"]:
        try:
            print(forecast(key, request))
        except Exception as error:  # a fault in one dataset class must not hide the other cells
            print(f"{key}: image counts unknown: {type(error).__name__}: {one_line(error, 300)}")
            status = ExitStatus.FAILED
    return status


if __name__ == "__main__":
    run_main(main)
