"""The option ``--images``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, absolute, folder

OPTIONS = {
    "images": Option(
        "DIR",
        "score images made elsewhere, in the official layout, in place of making them",
        folder,
        prefetch="decisive",
        absolute=absolute,
        group="images",
    )
}
