"""How much the generate jobs of a plan have left to make: asked by the launcher before it takes GPUs for them."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from typing import Any

from imageevalkit.cell import fingerprint as fp
from imageevalkit.errors import ExitStatus, run_main, show
from imageevalkit.forecasting import Datasets, stdout_kept
from imageevalkit.generation.survey import survey
from imageevalkit.guest_code import guest_code
from imageevalkit.jobs import cell_of


def calls_left(cells: list[str], options: dict[str, Any], enough: int, datasets: Datasets) -> int:
    """Calls of its model that a generate job of ``cells`` with ``options`` has to make, counted up to ``enough``.

    A call makes ``batch_size`` images. Images are hashed, as the job itself does: a damaged one is one to make. Only
    reads. Raises whatever a benchmark whose files are missing does.
    """
    calls = 0
    for key in cells:
        if calls < enough:
            calls += _calls(key, options, datasets)
    return calls


def _calls(key: str, options: dict[str, Any], datasets: Datasets) -> int:
    cell = cell_of(key)
    task = datasets[cell.benchmark].dataset_task
    setting = options["settings"][cell.model][task]
    items = datasets.items(cell, options["limit"])
    found = survey(cell, items, fp.settings_of(task, setting), repair=False)
    if found.stale and not options["overwrite"]:
        return 0  # the cell stops
    images = len(found.make) + len(found.repair) + len(found.stale)
    images += len(found.refused) * options["retry_refused"]
    return math.ceil(images / setting["model_kwargs"].get("batch_size", 1))


def main() -> ExitStatus:
    """The calls of each job of the request on stdin, as JSON by name; null where they cannot be counted."""
    datasets, counted = Datasets(), dict[str, int | None]()
    with stdout_kept():
        for name, request in json.load(sys.stdin).items():
            counted[name] = None
            with contextlib.suppress(Exception), guest_code():  # whatever is wrong, the job itself tells
                counted[name] = calls_left(**request, datasets=datasets)
    show(json.dumps(counted))
    return ExitStatus.COMPLETE


if __name__ == "__main__":
    run_main(main)
