"""Estimates the images and cost of generate jobs for ``--dry_run``, without their models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageevalkit.api.prices import price_and_estimate, quoted
from imageevalkit.api.sender import Sender, kind_of_sender
from imageevalkit.common.text import counted, dollars
from imageevalkit.jobs.estimates import SECONDS_OF_AN_IMAGE, Datasets, Estimate, Forecast
from imageevalkit.jobs.plan import GenerateOrder
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.records import OK
from imageevalkit.store.shards import Shard
from imageevalkit.store.states import Survey, steps_to_make


def forecast_of(request: Mapping[str, Any], datasets: Datasets) -> Forecast:
    """Returns a function that forecasts a job with this order for one cell; only reads."""
    order, shard = GenerateOrder(**request["order"]), Shard.of(request["shard"])
    sender = kind_of_sender(order.sender)
    steps = steps_to_make(order.overwrite, order.retry_refused)

    def forecast(cell: Cell) -> Estimate:
        setting, whole = datasets.survey(cell, order, shard)
        found = whole.of_shard(shard) if shard else whole
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
