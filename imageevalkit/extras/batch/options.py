"""The option ``--batch``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, parse_boolean

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
