"""The option ``--publish``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, absolute, folder

OPTIONS = {
    "publish": Option(
        "DIR",
        "write the results for others: Every Eval Ever, Hugging Face; uploads nothing",
        folder,
        prefetch="",
        absolute=absolute,
        command="publish",
        group="results",
    )
}
