"""Finds shapes, colours and places in an image of quickshapes, and compares them with a request.

No learning: pixels that differ from the background form objects; the nearest palette colour is an object's colour; the
shape whose template covers an object best is its shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy import ndimage

from benchmarks.quickshapes import scenes

_SIDE = 96
# A pixel is part of an object if its colour is this far from the background's, as the largest channel difference.
_CONTRAST = 40
# The smallest object, and the smallest speck that counts as an object of unknown shape, in pixels.
_SPECK = 12
# An object has a colour if this share of its inner pixels is nearest to that colour.
_PURE = 0.75
# An object has a shape if its mask and the shape's template overlap this well (intersection over union).
_ALIKE = 0.75
_GRID = 40


class Found(NamedTuple):
    """An object in an image. ``shape`` and ``colour`` are "unknown" if no known one fits; the centre is in
    shares of the image's sides."""

    shape: str
    colour: str
    x: float
    y: float
    fit: float


def objects_in(image: Image.Image) -> list[Found]:
    """Returns the objects of an image, from left to right."""
    small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    pixels = np.asarray(small, np.float32)
    border = np.concatenate([pixels[:2].reshape(-1, 3), pixels[-2:].reshape(-1, 3), pixels[:, :2].reshape(-1, 3)])
    background = np.median(border, axis=0)
    # the median of 3 × 3 pixels removes noise, and keeps edges
    smooth = np.stack([ndimage.median_filter(pixels[..., c], 3, mode="nearest") for c in range(3)], -1)
    mask = np.abs(smooth - background).max(-1) > _CONTRAST
    labels, count = ndimage.label(mask)
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
        if (labels[rows, columns] == number).sum() < _SPECK:
            continue
        # with a free pixel on each side, for the mixed pixels of its outline
        top, left = max(rows.start - 1, 0), max(columns.start - 1, 0)
        where = slice(top, rows.stop + 1), slice(left, columns.stop + 1)
        own = labels[where] == number
        colour, paint = _colour_of(smooth[where], own, background)
        near = ndimage.binary_dilation(own) & ((labels[where] == 0) | own)
        share = (pixels[where] - background) @ (paint - background) / np.square(paint - background).sum()
        cover = np.clip(share, 0, 1) * near
        shape, fit = _shape_of(cover)
        y, x = ndimage.center_of_mass(cover)
        found.append(Found(shape, colour, (left + x + 0.5) / _SIDE, (top + y + 0.5) / _SIDE, fit))
    return sorted(found, key=lambda one: one.x)


def _colour_of(pixels: np.ndarray, own: np.ndarray, background: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns the colour of an object, and its paint as RGB.

    Only the half of the pixels with the most contrast counts: the outermost are mixed with the background.
    """
    contrast = np.linalg.norm(pixels[own] - background, axis=-1)
    inner = pixels[own][contrast >= np.median(contrast)]
    palette = np.array([*scenes.COLOURS.values(), *scenes.BACKGROUNDS], np.float32)
    nearest = np.linalg.norm(inner[:, None] - palette, axis=-1).argmin(1)
    best = int(np.bincount(nearest).argmax())
    is_pure = best < len(scenes.COLOURS) and (nearest == best).mean() >= _PURE
    return [*scenes.COLOURS][best] if is_pure else "unknown", np.median(inner, axis=0)


def _normal(cover: np.ndarray) -> np.ndarray:
    """Returns ``cover``, how much of each pixel an object covers, on a grid of ``_GRID`` pixels a side.

    There the object without its holes has its centre in the middle and always the same area.
    """
    filled = np.maximum(cover, ndimage.binary_fill_holes(cover > 0.5))
    centre_y, centre_x = ndimage.center_of_mass(filled)
    radius = math.sqrt(filled.sum() / math.pi)
    step = radius * 4 / _GRID
    at = (np.arange(_GRID) - (_GRID - 1) / 2) * step
    grid = np.stack(np.meshgrid(at + centre_y, at + centre_x, indexing="ij"))
    # a blurred outline counts as the sharp one in its middle
    return ndimage.map_coordinates(cover, grid, order=1, mode="constant") > 0.5


@cache
def _templates() -> tuple[list[str], np.ndarray]:
    """Returns the shapes, each in all rotations that look different, and their masks."""
    # degrees after which a shape looks the same
    period = {"circle": 1, "ring": 1, "square": 90, "triangle": 120, "star": 72, "heart": 360}
    names, masks = [], []
    for shape in scenes.SHAPES:
        for turn in range(0, period[shape], 8):
            thing = scenes.Thing(shape, "red", scenes.SIZE / 2, scenes.SIZE / 2, 30.0, turn)
            drawn = np.asarray(scenes.draw_things([thing], (255, 255, 255)))
            names.append(shape)
            masks.append(_normal((255 - drawn[..., 1].astype(np.float32)) / (255 - scenes.COLOURS["red"][1])))
    return names, np.stack(masks).reshape(len(names), -1)


def _shape_of(cover: np.ndarray) -> tuple[str, float]:
    """Returns the shape whose template overlaps best with an object, and the overlap."""
    names, templates = _templates()
    own = _normal(cover).reshape(-1)
    overlap = (templates & own).sum(1) / (templates | own).sum(1)
    best = int(overlap.argmax())
    return (names[best] if overlap[best] >= _ALIKE else "unknown"), float(overlap[best])


def is_right(request: scenes.Request, found: Sequence[Found]) -> bool:
    """Whether an image with these objects is all that the request asks for, and nothing more."""
    return not problem_of(request, found)


def problem_of(request: scenes.Request, found: Sequence[Found]) -> str:
    """Returns what is wrong with an image with these objects, empty if nothing is."""
    wanted = [one for one in request.things for _ in range(one.count)]
    if len(found) != len(wanted):
        return f"{len(found)} objects, not {len(wanted)}"
    orders = [found, found[::-1]] if len(found) == 2 else [found]
    matching = [order for order in orders if all(map(_fits, wanted, order))]
    if not matching:
        return "objects are " + ", ".join(f"{one.colour} {one.shape}" for one in found)
    if request.relation and not any(_lies(request.relation, *order) for order in matching):
        return f"the first object is not {request.relation} the second"
    return ""


def _fits(wanted: scenes.Wanted, found: Found) -> bool:
    return wanted.shape == found.shape and wanted.colour in ("", found.colour)


def _lies(relation: str, first: Found, second: Found) -> bool:
    """Whether ``first`` lies so, seen from ``second``: the direction is the larger one of the two distances."""
    dx, dy = first.x - second.x, first.y - second.y
    along, across = (dx, dy) if relation in ("left of", "right of") else (dy, dx)
    return (along < 0) == (relation in ("left of", "above")) and abs(along) > abs(across)
