"""The option ``--batch``."""

from __future__ import annotations

from imageevalkit.plan.config import parse_boolean
from imageevalkit.plan.option import Option

OPTIONS = {
    "batch": Option(
        "",
        "send images and questions to APIs as batches: half the price, within 24 hours",
        parse_boolean,
        default=False,
        config="BATCH",
        group="requests and money",
    )
}
