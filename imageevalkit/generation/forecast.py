"""What a generate job would do, without a model: asked by the launcher, with jobs' cells and options on stdin.

``--dry_run`` tells it in words; before a run takes GPUs, ``--calls`` counts what there is to make on them.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from imageevalkit.api.money import price_and_estimate
from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.states import Survey
from imageevalkit.errors import ExitStatus, run_main, show
from imageevalkit.forecast import Datasets, Forecast, stdout_kept, tell_forecasts
from imageevalkit.guest_code import guest_code
from imageevalkit.jobs import cell_of
from imageevalkit.text import dollars


def forecast_of(options: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """What a job with ``options`` would do for a cell, in words; only reads."""

    def forecast(cell: Cell) -> str:
        setting, found = _survey(cell, options, datasets)
        make, reuse, repair = (len(found.of(step)) for step in ("make", "reuse", "repair"))
        parts = f"{make} images to make, {reuse} to reuse, {repair} to repair"
        if refused := found.of("refused"):
            again = " and sent again" if options["retry_refused"] else ""
            parts += f", {len(refused)} refused before{again}"
        if stale := found.explain_stale():
            again = "made again" if options["overwrite"] else "kept, the cell would stop: needs --overwrite"
            parts += f"; {stale} ({again})"
        if cost := money(setting, len(found.to_make(options["overwrite"], options["retry_refused"]))):
            parts += f", {cost}"
        return parts

    return forecast


def calls_left(cells: list[str], options: Mapping[str, Any], enough: int, datasets: Datasets) -> int:
    """Calls of its model that a generate job of ``cells`` with ``options`` has to make, counted up to ``enough``.

    A call makes ``batch_size`` images. Images are hashed, as the job itself does: a damaged one is one to make. Only
    reads. Raises whatever a benchmark whose files are missing does.
    """
    calls = 0
    for key in cells:
        if calls < enough:
            setting, found = _survey(cell_of(key), options, datasets)
            if found.of("stale") and not options["overwrite"]:
                continue  # the cell stops
            images = len(found.to_make(options["overwrite"], options["retry_refused"]))
            calls += math.ceil(images / setting["model_kwargs"].get("batch_size", 1))
    return calls


def _survey(cell: Cell, options: Mapping[str, Any], datasets: Datasets) -> tuple[Mapping[str, Any], Survey]:
    """The resolved setting of the model of ``cell``, and what is there of its images."""
    task = datasets[cell.benchmark].dataset_task
    setting = options["settings"][cell.model][task]
    return setting, datasets.survey(cell, options["limit"], fp.settings_of(task, setting))


def money(setting: Mapping[str, Any], count: int) -> str:
    """What ``count`` images would cost; empty where nothing is paid for. Raises UserError: ``price`` is malformed."""
    if not setting.get("api") or not count:
        return ""
    price, estimate = price_and_estimate(setting["model_path"], setting.get("model_kwargs", {}))
    if price is None:
        return "price unknown"
    if estimate is None:
        return "price of one image unknown"
    return f"about {dollars(count * estimate)} at {price.basis}"


def _tell_calls() -> ExitStatus:
    """The calls of each job of the request on stdin, as JSON by name; null where they cannot be counted."""
    datasets, counted = Datasets(), dict[str, int | None]()
    with stdout_kept():
        for name, request in json.load(sys.stdin).items():
            counted[name] = None
            with contextlib.suppress(Exception), guest_code():  # whatever is wrong, the job itself tells
                counted[name] = calls_left(**request, datasets=datasets)
    show(json.dumps(counted))
    return ExitStatus.COMPLETE


def main() -> ExitStatus:
    """What the launcher asks."""
    return _tell_calls() if sys.argv[1:] == ["--calls"] else tell_forecasts(forecast_of)


if __name__ == "__main__":
    run_main(main)
