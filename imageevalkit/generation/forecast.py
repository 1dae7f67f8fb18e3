"""What a generate job would do, without a model: asked by the launcher, with jobs' cells and options on stdin.

``--dry_run`` tells it in words; before a run takes GPUs, ``--calls`` counts what there is to make on them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.shards import Shard
from imageevalkit.cell.states import Survey, steps_to_make
from imageevalkit.errors import ExitStatus, run_main
from imageevalkit.forecast import Datasets, Forecast, tell_forecasts
from imageevalkit.jobs import GenerateOrder
from imageevalkit.requests.money import BATCH_PRICE, price_and_estimate
from imageevalkit.text import dollars


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """What a job with this order would do for a cell, in words; only reads."""
    order = GenerateOrder(**request["order"])

    steps = steps_to_make(order.overwrite, order.retry_refused)

    def forecast(cell: Cell) -> str:
        setting, whole, found = _survey(cell, request, datasets)
        counts = found.counts
        parts = f"{counts['make']} images to make, {counts['reuse']} to reuse, {counts['repair']} to repair"
        if refused := counts["refused"]:
            again = " and sent again" if order.retry_refused else ""
            parts += f", {refused} refused before{again}"
        if stale := whole.explain_stale():
            again = "made again" if order.overwrite else "kept, the cell would stop: needs --overwrite"
            parts += f"; {stale} ({again})"
        if cost := money(setting, sum(counts[step] for step in steps), order.batch):
            parts += f", {cost}"
        return f"{parts}, by {fp.maker_of(setting)}"

    return forecast


def calls_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """How many calls of its model a job with this order has to make for a cell, counted until it is ``enough`` in all.

    A call makes ``batch_size`` images. An image is read only if it is younger than its record: there may be terabytes,
    and the job itself reads them all. Changes nothing. Raises whatever a benchmark whose files are missing does.
    """
    order, left = GenerateOrder(**request["order"]), request["enough"]

    def forecast(cell: Cell) -> int:
        nonlocal left
        if left <= 0:
            return 0
        setting, whole, found = _survey(cell, request, datasets, quick=True)
        if whole.of("stale") and not order.overwrite:
            return 0  # the cell stops
        images = len(found.to_make(order.overwrite, order.retry_refused))
        calls = math.ceil(images / setting["model_kwargs"].get("batch_size", 1))
        left -= calls
        return calls

    return forecast


def _survey(
    cell: Cell, request: Mapping[str, Any], datasets: Datasets, quick: bool = False
) -> tuple[Mapping[str, Any], Survey, Survey]:
    """The resolved setting of the model of ``cell``, what is there of its images, and of the job's shard of them."""
    order, task = GenerateOrder(**request["order"]), datasets[cell.benchmark].dataset_task
    setting = order.settings[cell.model][task]
    shard = Shard.of(request["shard"])
    asked = order.asked.get(cell.benchmark)
    whole = datasets.survey(cell, order.limit, fp.settings_of(task, setting), shard, asked, quick)
    return setting, whole, whole.of_shard(shard) if shard else whole


def money(setting: Mapping[str, Any], count: int, batch: bool = False) -> str:
    """What ``count`` images would cost, half as much in a ``batch``; empty where nothing is paid for.

    Raises UserError: ``price`` is malformed.
    """
    if not setting.get("api") or not count:
        return ""
    price, estimate = price_and_estimate(setting["model_path"], setting.get("model_kwargs", {}))
    if price is None:
        return "price unknown"
    if estimate is None:
        return "price of one image unknown"
    if batch:
        return f"about {dollars(count * estimate * BATCH_PRICE)} in batches, at half of {price.basis}"
    return f"about {dollars(count * estimate)} at {price.basis}"


def main() -> ExitStatus:
    """What the launcher asks."""
    return tell_forecasts(calls_of if sys.argv[1:] == ["--calls"] else forecast_of)


if __name__ == "__main__":
    run_main(main)
