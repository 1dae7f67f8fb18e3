"""The option ``--images``."""

from __future__ import annotations

from imageevalkit.plan.config import Option, absolute, folder

OPTIONS = {
    "images": Option(
        "DIR",
        "score existing images, in the official layout, instead of generating them",
        folder,
        prefetch="decisive",
        absolute=absolute,
        group="images",
    )
}
