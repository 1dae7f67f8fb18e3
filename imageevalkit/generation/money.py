"""What a cell would cost, for a forecast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageevalkit.api.money import price_and_estimate
from imageevalkit.money import dollars


def money(setting: Mapping[str, Any], count: int) -> str:
    """What ``count`` images of a resolved model ``setting`` would cost; empty where nothing is paid for.

    Raises:
        UserError: the model's ``price`` is malformed.
    """
    if not setting.get("api") or not count:
        return ""
    price, estimate = price_and_estimate(setting["model_path"], setting.get("model_kwargs", {}))
    if price is None:
        return "price unknown"
    if estimate is None:
        return "price of one image unknown"
    return f"about {dollars(count * estimate)} at {price.basis}"
