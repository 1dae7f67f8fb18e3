"""The option ``--watch``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, absolute, folder

OPTIONS = {
    "watch": Option(
        "DIR",
        "evaluate each checkpoint of the model that appears in DIR, until stopped",
        folder,
        absolute=absolute,
        group="what to evaluate",
    )
}
