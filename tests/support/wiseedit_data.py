"""A stand-in for WiseEdit's dataset in a cache of the hub: all instructions and images are made up."""

from __future__ import annotations

import csv
from pathlib import Path

from PIL import Image

from benchmarks.wiseedit.benchmark import HUB, SUBSETS

CASES = 1220
COMMIT = "c" * 40
IMAGES = 6
"""The number of different images."""


def write(cache: Path) -> None:
    """Writes the dataset to the folder ``cache``, which is then HF_HUB_CACHE."""
    repository = cache / f"datasets--{HUB.hub.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    data = repository / "snapshots" / COMMIT
    (data / "imgs").mkdir(parents=True)
    for n in range(IMAGES):
        image = Image.new("RGB", (48 + 8 * n, 48), (40 * n, 90, 200))
        image.putpixel((0, 0), (9, 9, 9))
        image.save(data / f"imgs/{n}.png")
    for number, (subset, task) in enumerate(SUBSETS.items()):
        group = "WiseEdit-Complex" if task == "complex" else f"WiseEdit/{task.title()}"
        path = data / group / subset / f"{subset}.csv"
        path.parent.mkdir(parents=True)
        count = CASES // len(SUBSETS) + (number < CASES % len(SUBSETS))
        inputs = int(subset[-1])
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            rows = csv.writer(file)
            names = [f"input_{n}" for n in range(1, inputs + 1)]
            rows.writerow(["idx", "prompt", "promptcn", *names, "hint", "ref"])
            for n in range(1, count + 1):
                images = [f"imgs/{(n + k) % IMAGES}.png" for k in range(inputs)]
                hint, reference = (f"It shows {n}.", "imgs/0.png|imgs/1.png") if n % 2 else ("", "")
                rows.writerow([n, f"Change thing {n}.", f"修改第{n}个。", *images, hint, reference])
