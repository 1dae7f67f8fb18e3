"""Image grids: several images of one prompt in one file, to split and to combine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from imageevalkit.common.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

NO_IMAGE_SIZE = (1024, 1024)
"""The size of black cells if no image of the prompt exists (OneIG-Benchmark 41b49831, text2image.py)."""


class Grid(NamedTuple):
    """``rows`` × ``cols`` cells, counted row by row.

    By default all cells have the same size and a black cell is padding, as in OneIG-Bench. ``whole``: the
    last row and column include the remaining pixels, and a black cell is an image, as in DPG-Bench.

    An official ``image_grid m,n`` of OneIG-Bench is our ``n,m`` (spec quirk G1). The official splitter
    divides the *width* by its first number, but the official helper lays ``(r, c)`` out as r rows.
    """

    rows: int
    cols: int
    whole: bool = False

    @classmethod
    def parse(cls, text: str) -> Grid:
        """Returns the grid for ``"1,4"`` (one row of four) or ``"2"`` (``"2,2"``). Raises UserError."""
        parts = [part.strip() for part in text.split(",")]
        numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
        if not len(numbers) == len(parts) <= 2 or 0 in numbers:
            raise UserError(f"grid '{text}' is not rows,cols with both at least 1, as in 2,2 or 1,4")
        return cls(numbers[0], numbers[-1])

    @classmethod
    def nearest_square(cls, cells: int) -> Grid:
        """Returns the most square grid of ``cells`` cells, rows ≤ columns: 4 → 2,2; 6 → 2,3; 3 → 1,3."""
        rows = next(n for n in range(int(cells**0.5), 0, -1) if cells % n == 0)
        return cls(rows, cells // rows)

    def __str__(self) -> str:
        return f"{self.rows},{self.cols}"

    @property
    def cells(self) -> int:
        return self.rows * self.cols

    def boxes(self, size: tuple[int, int]) -> list[tuple[int, int, int, int]]:
        """Returns the cells of an image of ``size`` (width, height) as Pillow boxes.

        Unless the grid is ``whole``, the remaining pixels at the right and bottom belong to no cell. Raises
        ValueError if the image is smaller than the grid.
        """
        width, height = size[0] // self.cols, size[1] // self.rows
        if not width or not height:
            raise ValueError(
                f"{size[0]}×{size[1]} px cannot be cut into {self.rows} rows and {self.cols} columns"
            )
        xs = [col * width for col in range(self.cols + 1)]
        ys = [row * height for row in range(self.rows + 1)]
        if self.whole:
            xs[-1], ys[-1] = size
        return [(left, top, right, bottom) for top, bottom in pairwise(ys) for left, right in pairwise(xs)]

    def split(self, image: Image.Image) -> list[Image.Image]:
        """Returns the cells of ``image`` as RGB, also black ones. Raises ValueError if it is too small."""
        rgb = _rgb(image)
        return [rgb.crop(box) for box in self.boxes(image.size)]

    def combine(self, images: Sequence[Image.Image | None]) -> Image.Image:
        """Returns the grid of ``images`` as RGB; None becomes a black cell, of 1024×1024 px if all are None.

        Raises ValueError if the number of images is wrong, or if an image has another size than the first.
        """
        from PIL import Image

        if len(images) != self.cells:
            raise ValueError(f"{len(images)} images are not the {self.cells} cells of grid {self}")
        width, height = next((image.size for image in images if image), NO_IMAGE_SIZE)
        whole = Image.new("RGB", (self.cols * width, self.rows * height))
        for n, (image, box) in enumerate(zip(images, self.boxes(whole.size), strict=True), 1):
            if image is None:
                continue
            if image.size != (width, height):
                raise ValueError(
                    f"image {n} has {image.width}×{image.height} px, the first one {width}×{height} px"
                )
            whole.paste(_rgb(image), box)
        return whole


def is_black(image: Image.Image) -> bool:
    """Returns whether every RGB pixel is exactly (0, 0, 0): the official padding of a grid."""
    return _rgb(image).getbbox() is None  # a C pass without a copy


def _rgb(image: Image.Image) -> Image.Image:
    # the driver imports this module without Pillow
    from imageevalkit.common.images import as_rgb

    return as_rgb(image)
