"""What the job of ``--images`` would take: read by ``--dry_run`` from its cells and options on stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from imageevalkit.adoption.adopt import may_replace, nothing_found
from imageevalkit.adoption.finding import find_images
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure, ExitStatus, run_main
from imageevalkit.items import items_of
from imageevalkit.jobs import cell_of
from imageevalkit.secrets import one_line


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
    """One line per cell of the request on stdin; status 1 when a cell would fail."""
    sys.path.insert(0, str(REPO / "infer"))
    request = json.load(sys.stdin)
    status = ExitStatus.COMPLETE
    for key in request["cells"]:
        try:
            print(forecast(key, request))
        except Exception as error:  # a fault in one dataset class must not hide the other cells
            kind = "" if isinstance(error, CellFailure) else f"{type(error).__name__}: "
            print(f"{key}: {kind}{one_line(error, 300)}")
            status = ExitStatus.FAILED
    return status


if __name__ == "__main__":
    run_main(main)
