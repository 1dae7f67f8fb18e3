"""Images made elsewhere that are cut out of grids, against a plain loop over the same files.

Ours is the whole of adopting, records and durable writes included. The plain loop reads as the official splitter does,
one file after the other: open, crop, test for black, save each cell. Its test is ``any`` over the cell's bytes instead
of the official loop over the pixels in Python; it saves PNG with Pillow's defaults, as a plain script would.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

from imageevalkit.common.grids import Grid
from imageevalkit.extras.adopt.copies import adopt_cell
from imageevalkit.extras.adopt.sources import Place
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import items_of
from perf.harness import Cost, Row, Table, at_least, run_program

_GRID, _SIDE = Grid(2, 2), 1024
_OF_PLAIN, _OF_PLAIN_AGAIN = at_least(1.5), at_least(30)


class Prompts:
    """A dataset of ``n`` prompts with as many images each as a grid has cells."""

    dataset_task = "t2i"

    def __init__(self, n: int) -> None:
        self.data = [
            {"prompt": str(p), "seed": k, "image_save_path": f"<MODEL_NAME>/grids/images/{p:03d}_{k}.png"}
            for p in range(n)
            for k in range(_GRID.cells)
        ]


def make_grids(folder: Path, count: int) -> list[Path]:
    """``count`` lossless WebP grids of 4 pictures of 1024 × 1024 px with grain; every fourth grid lacks one."""
    folder.mkdir()
    rng = random.Random(0)
    paths = []
    for n in range(count):
        grain = Image.effect_noise((_SIDE, _SIDE), 8).convert("RGB")
        cells: list[Image.Image | None] = []
        for _ in range(_GRID.cells):
            small = Image.frombytes("RGB", (128, 128), rng.randbytes(128 * 128 * 3))
            soft = small.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
            cells.append(ImageChops.add(soft, grain, 1, -128))
        if n % 4 == 0:
            cells[-1] = None
        paths.append(folder / f"{n:03d}.webp")
        _GRID.combine(cells).save(paths[-1], lossless=True, quality=0, method=0)
    return paths


def plain_split(paths: list[Path], folder: Path) -> None:
    """One file after the other: crop, test, save."""
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
    """Adopt all cells as the images of ``model``."""
    cell = Cell(model, "grids")
    items = items_of(Prompts(len(paths)), cell)
    found: dict[str, Place] = {
        item.id: Place(paths[n // _GRID.cells], _GRID, n % _GRID.cells) for n, item in enumerate(items)
    }
    adopt_cell(cell, items, paths[0].parent, found, ProgressWriter(), log=lambda text: None)


def cost(run: Callable[..., object], *given: Any) -> Cost:
    """What ``run`` takes."""
    with Cost() as taken:
        run(*given)
    return taken


def grid_rows(folder: Path, paths: list[Path]) -> list[Row]:
    """How many times as fast as the plain loop grids are adopted; the better of two, in turns."""
    rounds = []
    for turn in range(2):
        model = f"{turn} of {len(list(folder.glob('output/*')))}"
        first, again = cost(adopt, paths, model), cost(adopt, paths, model)
        rounds.append([cost(plain_split, paths, folder / "plain"), first, again])
    plain, *ours = (min(column, key=lambda taken: taken.wall) for column in zip(*rounds, strict=True))
    labels = (f"plain loop / adopting {len(paths)} grids of {_GRID}", "  again, nothing changed")
    others = max(taken.others for taken in (plain, ours[0]))
    return [
        Row(
            label,
            plain.wall / taken.wall,
            bar,
            {"plain s": f"{plain.wall:.2f}", "ours s": f"{taken.wall:.2f}"},
            others=others,
        )
        for label, taken, bar in zip(labels, ours, (_OF_PLAIN, _OF_PLAIN_AGAIN), strict=True)
    ]


def main(options: argparse.Namespace, folder: Path) -> Table:
    os.environ["IMAGEEVALKIT_OUTPUT"] = str(folder / "output")
    table = Table(f"cells of {_SIDE} px", "plain s", "ours s", tries=options.tries)
    table.measure(grid_rows, folder, make_grids(folder / "grids", options.grids))
    return table


if __name__ == "__main__":
    run_program(__doc__, main, grids=(40, "of four pictures"))
