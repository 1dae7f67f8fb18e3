"""Small pictures of which no two cells are alike, grids of them, and a tiny stand-in for OneIG's dataset."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from benchmarks.oneig.grids import find_grids
from imageevalkit.benchmark.image_files import Place
from imageevalkit.common.grids import Grid
from imageevalkit.generate.model import Refused
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, items_of

CELL = Cell("m", "oneig")
PROMPTS = (("anime", "000"), ("anime", "001"), ("human", "000"))


def noise(seed: int, size: tuple[int, int] = (12, 8)) -> Image.Image:
    """Random pixels."""
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(size[0] * size[1] * 3))


def same(one: Image.Image, other: Image.Image) -> bool:
    """Whether two images are alike, pixel by pixel."""
    return (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes())


class TinyOneIG:
    """Three prompts of two classes, with the keys of OneIG's items."""

    dataset_name = "oneig"
    dataset_task = "t2i"

    def __init__(self, images_per_prompt: int = 4, grid: Grid | None = None) -> None:
        self.images_per_prompt, self.grid = images_per_prompt, grid
        self.data = [
            {
                "prompt": f"{class_item} {id}",
                "seed": n,
                "image_save_path": f"<MODEL_NAME>/oneig/images/{class_item}/{id}_{n}.png",
                "class_item": class_item,
                "id": id,
                "repetition": n,
            }
            for n in range(1, images_per_prompt + 1)  # the repetitions of a prompt do not follow each other
            for class_item, id in PROMPTS
        ]

    def find_images(self, source: Path, wanted: Sequence[Item]) -> Mapping[str, Place] | None:
        return find_grids(source, wanted, self.grid, self.images_per_prompt)

    def items(self, limit: int | None = None) -> list[Item]:
        return items_of(self, CELL, limit)


def write_official(source: Path, grid: Grid, suffix: str = ".png") -> None:
    """One grid file for each prompt in the official layout; cell ``n`` of prompt ``p`` is ``noise(100 * p + n)``."""
    for p, (class_item, id) in enumerate(PROMPTS):
        path = source / class_item / CELL.model / f"{id}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = grid.combine([noise(100 * p + n) for n in range(grid.cells)])
        whole.save(path, lossless=True) if suffix == ".webp" else whole.save(path)


class NoiseModel:
    """Makes ``noise`` of the seed and the prompt; refuses what ``refused`` names as (prompt, seed)."""

    model_name = "noise"

    def __init__(self, refused: Sequence[tuple[str, int]] = ()) -> None:
        self._refused = refused

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        if (prompt, seed) in self._refused:
            raise Refused("unsafe")
        return noise(seed * 100 + len(prompt) + int(prompt[-1]))
