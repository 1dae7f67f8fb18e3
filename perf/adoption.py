"""Images made elsewhere that are cut out of grids, against a plain loop over the same files.

Adoption includes records and durable writes. The plain loop opens, crops, tests for black, and saves each picture with
Pillow, one file after the other.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace

from PIL import Image, ImageChops

from imageevalkit.common.grids import Grid
from imageevalkit.extras.adopt.copies import adopt_cell
from imageevalkit.extras.adopt.sources import Place
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import items_of
from perf.harness import Meter, Row, Table, at_most, run_program

_GRID, _SIDE = Grid(2, 2), 1024
_FIRST, _AGAIN = at_most(0.67), at_most(0.033)


def make_grids(folder: Path, count: int) -> list[Path]:
    """Returns lossless WebP grids of 4 pictures of 1024 px with grain; every fourth grid has 3 pictures."""
    folder.mkdir()
    rng, paths = random.Random(0), []
    grain = Image.effect_noise((_SIDE, _SIDE), 8).convert("RGB")
    for n in range(count):
        noise = [Image.frombytes("RGB", (128, 128), rng.randbytes(128 * 128 * 3)) for _ in range(_GRID.cells)]
        soft = [small.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC) for small in noise]
        cells: list[Image.Image | None] = [ImageChops.add(one, grain, 1, -128) for one in soft]
        if n % 4 == 0:
            cells[-1] = None
        paths.append(folder / f"{n:03}.webp")
        _GRID.combine(cells).save(paths[-1], lossless=True, quality=0, method=0)
    return paths


def plain_split(paths: list[Path], folder: Path) -> None:
    """Cuts one file after the other."""
    folder.mkdir(exist_ok=True)
    for path in paths:
        with Image.open(path) as opened:
            whole = opened.convert("RGB")
        width, height = whole.width // _GRID.cols, whole.height // _GRID.rows
        for k in range(_GRID.cells):
            row, col = divmod(k, _GRID.cols)
            cell = whole.crop((col * width, row * height, (col + 1) * width, (row + 1) * height))
            if any(cell.tobytes()):
                cell.save(folder / f"{path.stem}_{k}.png")


def adopt(paths: list[Path], model: str) -> None:
    """Adopts all pictures as the images of ``model``."""
    cell = Cell(model, "grids")
    data = [
        {"prompt": path.stem, "seed": k, "image_save_path": f"<MODEL_NAME>/grids/images/{path.stem}_{k}.png"}
        for path in paths
        for k in range(_GRID.cells)
    ]
    items = items_of(SimpleNamespace(dataset_task="t2i", data=data), cell)
    found = {item.id: Place(paths[n // _GRID.cells], _GRID, n % _GRID.cells) for n, item in enumerate(items)}
    adopt_cell(cell, items, paths[0].parent, found, ProgressWriter(), log=lambda text: None)


def rows(folder: Path, paths: list[Path]) -> list[Row]:
    """Adoption over the plain loop, and the same again without changed files."""
    model = f"model-{len(list(folder.glob('output/*')))}"
    with Meter() as plain:
        plain_split(paths, folder / "plain")
    with Meter() as first:
        adopt(paths, model)
    with Meter() as again:
        adopt(paths, model)
    label, seconds = f"adoption of {len(paths)} grids of {_GRID} / a plain loop", plain.usage.wall
    return [
        Row.of(label, first.usage, seconds, _FIRST),
        Row.of("  again, nothing changed", again.usage, seconds, _AGAIN),
    ]


def main(table: Table, folder: Path, is_small: bool) -> None:
    os.environ["IMAGEEVALKIT_OUTPUT"] = str(folder / "output")
    table.measure(rows, folder, make_grids(folder / "grids", 2 if is_small else 40))


if __name__ == "__main__":
    run_program(__doc__, main)
