"""Grids: split and combine undo each other, and cut as the official splitter does."""

from __future__ import annotations

import ast
import io
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit.common.errors import UserError
from imageevalkit.common.grids import Grid, is_black
from tests.support.grid_images import noise, same
from tests.support.official_oneig import official_source

GRIDS = [Grid(1, 2), Grid(3, 3), Grid(4, 1)]
_OFFICIAL = "scripts/utils/utils.py"

pytestmark = pytest.mark.parametrize("grid", GRIDS, ids=str)


@pytest.mark.parametrize("size", [(12, 7)])
def test_split_undoes_combine(grid: Grid, size: tuple[int, int]) -> None:
    images = [noise(n, size) for n in range(grid.cells)]
    whole = grid.combine(images)
    assert whole.size == (grid.cols * size[0], grid.rows * size[1])
    assert all(same(*pair) for pair in zip(grid.split(whole), images, strict=True))


@pytest.mark.parametrize("size", [(24, 24), (25, 31)])
def test_combine_undoes_split_but_for_what_does_not_divide(grid: Grid, size: tuple[int, int]) -> None:
    whole = noise(0, size)
    kept = (size[0] - size[0] % grid.cols, size[1] - size[1] % grid.rows)
    assert same(grid.combine(grid.split(whole)), whole.crop((0, 0, *kept)))


@pytest.mark.parametrize("size", [(25, 31)])
def test_the_last_cells_of_a_whole_grid_have_the_rest(grid: Grid, size: tuple[int, int]) -> None:
    even, whole = grid.boxes(size), grid._replace(whole=True).boxes(size)
    assert [box[:2] for box in whole] == [box[:2] for box in even]
    assert sum((right - left) * (bottom - top) for left, top, right, bottom in whole) == size[0] * size[1]
    assert whole[-1][2:] == size


def test_cells_are_counted_row_by_row(grid: Grid) -> None:
    whole = grid.combine([Image.new("RGB", (2, 3), (n + 1, 0, 0)) for n in range(grid.cells)])
    for n in range(grid.cells):
        row, col = divmod(n, grid.cols)
        assert whole.getpixel((2 * col, 3 * row)) == (n + 1, 0, 0)


def test_none_is_a_black_cell_of_the_size_of_the_others(grid: Grid) -> None:
    images = [None if n % 2 else noise(n, (6, 4)) for n in range(grid.cells)]
    cells = grid.split(grid.combine(images))
    assert [cell.size for cell in cells] == [(6, 4)] * grid.cells
    assert [is_black(cell) for cell in cells] == [image is None for image in images]


def test_words_and_numbers(grid: Grid) -> None:
    assert Grid.parse(str(grid)) == Grid.parse(f" {grid.rows} , {grid.cols} ") == grid
    if grid.rows == grid.cols:
        assert Grid.parse(str(grid.rows)) == grid
    for text in ("", "x", "0", f"{grid.rows},", f"{grid},1", f"{grid.rows}x{grid.cols}", f"-{grid}"):
        with pytest.raises(UserError, match="is not rows,cols with both at least 1"):
            Grid.parse(text)


@pytest.mark.parametrize("mode", ["RGBA", "P"])
def test_every_mode_is_cut_as_rgb(grid: Grid, mode: str) -> None:
    whole = noise(1, (24, 24)).convert(mode)
    assert same(grid.combine(grid.split(whole)), whole.convert("RGB").crop((0, 0, *_kept(grid))))
    assert is_black(Image.new("RGB", (24, 24)).convert(mode)), "official: only an RGB image is ever black"
    assert not is_black(whole)


def test_the_official_splitter_cuts_alike(grid: Grid, tmp_path: Path) -> None:
    official = _official_splitter()
    images = [None if n % 3 == 2 else noise(n, (40, 24)) for n in range(grid.cells)]
    for n, whole in enumerate((grid.combine(images), noise(9, (61, 50)), noise(8, (50, 61)))):
        path = tmp_path / f"{n}.png"
        whole.save(path)
        cache = tmp_path / f"cache{n}"
        cache.mkdir()
        theirs = official(str(path), (grid.cols, grid.rows), str(cache))  # its first number divides the width
        ours = [cell for cell in grid.split(whole) if not is_black(cell)]
        assert [Path(file).read_bytes() for file in theirs] == [_jpeg(cell) for cell in ours]


def _kept(grid: Grid) -> tuple[int, int]:
    return 24 - 24 % grid.cols, 24 - 24 % grid.rows


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG")
    return buffer.getvalue()


def _official_splitter() -> Callable[[str, tuple[int, int], str], list[str]]:
    """The official function, its reader of remote files replaced by Python's own."""
    functions: list[ast.stmt] = [
        node for node in ast.parse(official_source(_OFFICIAL)).body if isinstance(node, ast.FunctionDef)
    ]
    names: dict[str, Any] = {"Image": Image, "os": os, "megfile": types.SimpleNamespace(smart_open=open)}
    exec(compile(ast.Module(functions, []), _OFFICIAL, "exec"), names)
    return names["split_mxn_grid"]
