"""A stand-in for OmniContext's dataset: all instructions and images are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.omnicontext.benchmark import ROWS, TYPES
from imageevalkit.assets import FileFacts, Record

IMAGES = 7
"""The number of different references."""


def rows() -> list[dict[str, Any]]:
    """The 400 rows; ``input_images`` are paths of :func:`write`."""
    return [
        {
            "key": f"{n:03d}",
            "task_type": type,
            "instruction": f"Put the thing of image 1 on table {n}.",
            "instruction_language": "en",
            "input_images": [
                f"images/{(n + k) % IMAGES}.png" for k in range(1 if "single" in type else 2 + n % 2)
            ],
        }
        for type in TYPES
        for n in range(50)
    ]


def write(data: Path) -> None:
    """Writes rows, images and the record of prefetch to the folder ``data``."""
    (data / "images").mkdir(parents=True)
    names = [f"images/{n}.png" for n in range(IMAGES)]
    for n, name in enumerate(names):
        image = Image.new("RGB", (64, 33 + 8 * n), (30 * n, 90, 200))
        image.putpixel((0, 0), (9, 9, 9))
        image.save(data / name)
    (data / ROWS.path).write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    facts = {name: FileFacts.of(data / name) for name in (ROWS.path, *names)}
    Record({"repo": ROWS.repo, "commit": "0" * 40}, facts).write(ROWS.record(data))
