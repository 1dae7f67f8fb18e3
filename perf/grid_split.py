"""What cutting grids costs when they are adopted: ``python perf/grid_split.py [GRIDS]``.

Ours is the whole of adopting, records and durable writes included. The plain loop reads as the official splitter does,
one file after the other: open, crop, test for black, save each cell. Its test is ``any`` over the cell's bytes instead
of the official loop over the pixels in Python; it saves PNG with Pillow's defaults, as a plain script would, and once
more with the very encoder settings that ours uses.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image, ImageChops

from imageevalkit.adoption.copies import FAST_PNG, adopt_cell
from imageevalkit.adoption.places import Place
from imageevalkit.cell import Cell
from imageevalkit.cell.items import items_of
from imageevalkit.grids import Grid
from imageevalkit.machine import available_cores
from imageevalkit.progress import ProgressWriter

GRID = Grid(2, 2)
SIDE = 1024


class Prompts:
    """A dataset of ``n`` prompts with as many images each as a grid has cells."""

    dataset_task = "t2i"

    def __init__(self, n: int) -> None:
        self.data = [
            {"prompt": str(p), "seed": k, "image_save_path": f"<MODEL_NAME>/grids/images/{p:03d}_{k}.png"}
            for p in range(n)
            for k in range(GRID.cells)
        ]


def make_grids(folder: Path, count: int) -> list[Path]:
    """``count`` lossless WebP grids of 4 pictures of 1024 × 1024 px with grain; every fourth grid lacks one."""
    rng = random.Random(0)
    paths = []
    for n in range(count):
        cells: list[Image.Image | None] = [_picture(rng) for _ in range(GRID.cells)]
        if n % 4 == 0:
            cells[-1] = None
        paths.append(folder / f"{n:03d}.webp")
        GRID.combine(cells).save(paths[-1], lossless=True, quality=0, method=0)
    return paths


def _picture(rng: random.Random) -> Image.Image:
    small = Image.frombytes("RGB", (128, 128), rng.randbytes(128 * 128 * 3))
    grain = Image.effect_noise((SIDE, SIDE), 8).convert("RGB")
    return ImageChops.add(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC), grain, 1, -128)


def plain_split(paths: list[Path], folder: Path, **png: Any) -> None:
    """One file after the other: crop, test, save."""
    folder.mkdir(exist_ok=True)
    for path in paths:
        with Image.open(path) as opened:
            whole = opened.convert("RGB")
        width, height = whole.width // GRID.cols, whole.height // GRID.rows
        for k in range(GRID.cells):
            row, col = divmod(k, GRID.cols)
            cell = whole.crop((col * width, row * height, (col + 1) * width, (row + 1) * height))
            if any(cell.tobytes()):
                cell.save(folder / f"{path.stem}_{k}.png", **png)


def adopt(paths: list[Path], model: str) -> None:
    """Adopt all cells as the images of ``model``."""
    cell = Cell(model, "grids")
    items = items_of(Prompts(len(paths)), cell)
    found: dict[str, Place] = {
        item.id: Place(paths[n // GRID.cells], GRID, n % GRID.cells) for n, item in enumerate(items)
    }
    adopt_cell(cell, items, paths[0].parent, found, ProgressWriter(), log=lambda text: None)


def seconds(run: Callable[[], object]) -> float:
    """The wall time of ``run``."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["IMAGEEVALKIT_OUTPUT"] = str(folder / "output")
        paths = make_grids(folder, count)
        rounds: dict[str, list[float]] = {}
        for n in range(2):  # the better of two, taking turns: the first may wait for the disk
            for label, run in (
                ("plain", lambda: plain_split(paths, folder / "plain")),
                ("plain, our encoder settings", lambda: plain_split(paths, folder / "fast", **FAST_PNG)),
                ("adopt", lambda n=n: adopt(paths, f"m{n}")),
                ("adopt again, nothing changed", lambda n=n: adopt(paths, f"m{n}")),
            ):
                rounds.setdefault(label, []).append(seconds(run))
        times = {label: min(both) for label, both in rounds.items()}
        print(f"{count} grids of {GRID}, {SIDE}×{SIDE} px a cell, {available_cores()} cores")
        for label, taken in times.items():
            ratio = times["plain"] / taken
            print(f"{label}: {taken:.2f} s, {count * GRID.cells / taken:.0f} cells/s, {ratio:.1f} × plain")
        sizes = {name: _bytes(folder / name) for name in ("plain", "output/m0")}
        print(
            f"adopted PNGs take {sizes['output/m0'] / sizes['plain']:.2f} of the bytes of Pillow's defaults"
        )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.png"))


if __name__ == "__main__":
    main()
