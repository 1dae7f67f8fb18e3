"""Forecasts a generate job without its model. The launcher sends cells and options on stdin.

``--dry_run`` shows the forecast. Before a run takes GPUs, ``--calls`` counts the calls of local models.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from imageevalkit.api.prices import price_and_estimate, quoted
from imageevalkit.api.sender import Sender, kind_of_sender
from imageevalkit.common.errors import ExitStatus, run_main
from imageevalkit.common.text import counted, dollars
from imageevalkit.jobs.estimates import (
    SECONDS_OF_AN_IMAGE,
    Count,
    Datasets,
    Estimate,
    Forecast,
    tell_forecasts,
)
from imageevalkit.jobs.plan import GenerateOrder
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.records import OK
from imageevalkit.store.shards import Shard
from imageevalkit.store.states import Survey, steps_to_make


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """Returns a function that forecasts a job with this order for one cell; only reads."""
    order = GenerateOrder(**request["order"])

    sender = kind_of_sender(order.sender)
    steps = steps_to_make(order.overwrite, order.retry_refused)

    def forecast(cell: Cell) -> Estimate:
        setting, whole, found = _survey(cell, request, datasets)
        counts = found.counts
        parts = f"{counted(counts['make'], 'image')} to generate, {counts['reuse']} to reuse"
        parts += f", {counts['repair']} to repair"
        if refused := counts["refused"]:
            again = " and sent again" if order.retry_refused else ""
            parts += f", {refused} refused before{again}"
        if stale := whole.explain_stale():
            again = "made again" if order.overwrite else "kept, generation would stop: needs --overwrite"
            parts += f"; {stale} ({again})"
        images = sum(counts[step] for step in steps)
        usd, cost = money(setting, images, sender)
        if cost:
            parts += f", {cost}"
        is_api = bool(setting.get("api"))
        each = _seconds_of_an_image(whole) or (SECONDS_OF_AN_IMAGE if is_api else None)
        return Estimate(
            f"{parts}, by {fp.maker_of(setting)}",
            images,
            requests=images if is_api else 0,
            usd=usd or 0.0,
            unpriced=images if usd is None else 0,
            seconds=images * (each or 0.0),
            untimed=cell.model if images and each is None else "",
            at_once=order.workers if is_api else 1,
            per_minute=order.requests_per_minute if is_api else None,
            wait=sender.time if sender and is_api else "",
        )

    return forecast


def _seconds_of_an_image(found: Survey) -> float | None:
    """Returns the mean seconds per image that this toolkit has generated for the cell; None without any."""
    records = (state.record for state in found.states.values() if state.made_here)
    seconds = [record.seconds for record in records if record and record.status == OK and record.seconds]
    return sum(seconds) / len(seconds) if seconds else None


def calls_of(request: Mapping[str, Any], datasets: Datasets) -> Count:
    """Returns a function that counts the model calls left for a cell, up to ``enough`` for all cells.

    A call generates ``batch_size`` images. An image is read only if it is newer than its record: there may be
    terabytes, and the job itself reads them all. Changes no file. The function raises if files of the
    benchmark are missing.
    """
    order, left = GenerateOrder(**request["order"]), request["enough"]

    def forecast(cell: Cell) -> int:
        nonlocal left
        if left <= 0:
            return 0
        setting, whole, found = _survey(cell, request, datasets, quick=True)
        if whole.of("stale") and not order.overwrite:
            return 0  # the job would not generate this cell
        images = len(found.to_make(order.overwrite, order.retry_refused))
        calls = math.ceil(images / setting["model_kwargs"].get("batch_size", 1))
        left -= calls
        return calls

    return forecast


def _survey(
    cell: Cell, request: Mapping[str, Any], datasets: Datasets, quick: bool = False
) -> tuple[Mapping[str, Any], Survey, Survey]:
    """Returns the model's resolved setting for ``cell``, the survey of the cell, and of the job's shard."""
    order, task = GenerateOrder(**request["order"]), datasets[cell.benchmark].dataset_task
    setting = order.settings[cell.model][task]
    shard = Shard.of(request["shard"])
    asked = order.asked.get(cell.benchmark)
    whole = datasets.survey(cell, order.limit, fp.settings_of(task, setting), shard, asked, quick)
    return setting, whole, whole.of_shard(shard) if shard else whole


def money(
    setting: Mapping[str, Any], count: int, sender: type[Sender] | None = None
) -> tuple[float | None, str]:
    """Returns the price of ``count`` images in USD, through ``sender`` if there is one, and the same in words.

    The price is None if unknown. The words are empty if nothing costs money. Raises UserError if ``price`` is
    malformed.
    """
    if not setting.get("api") or not count:
        return 0.0, ""
    kwargs = setting.get("model_kwargs", {})
    price, estimate = price_and_estimate(setting["model_path"], kwargs)
    if price and not quoted(price, kwargs):
        return None, "price unknown: the endpoint is on this machine"
    if price is None:
        return None, "price unknown"
    if estimate is None:
        return None, "price of one image unknown"
    if sender:
        usd = count * estimate * sender.price_share
        return usd, f"about {dollars(usd)} {sender.way}, at {sender.discount} {price.basis}"
    return count * estimate, f"about {dollars(count * estimate)} at {price.basis}"


def main() -> ExitStatus:
    """Answer the launcher's request."""
    return tell_forecasts(calls_of if sys.argv[1:] == ["--calls"] else forecast_of)


if __name__ == "__main__":
    run_main(main)
