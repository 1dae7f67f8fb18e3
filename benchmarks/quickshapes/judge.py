"""Finds the shapes, colours and centres of the objects in an image of quickshapes, without learning.

Connected pixels that differ from the background form an object. Its colour is the paint whose mixtures with the
background contain its pixels. Its shape is that of the template with the largest overlap.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from PIL import Image
from scipy import ndimage

from benchmarks.quickshapes import scenes
from benchmarks.quickshapes.prompts import COLOURS, SHAPES, Found

_SIDE = 96
# A pixel is part of an object if its colour is this far from the background's, as the largest channel difference.
_CONTRAST = 40
# The smallest object, and the smallest speck that counts as an object of unknown shape, in pixels.
_SPECK = 12
# An object has a colour if this share of its pixels is so near to mixtures of it and the background (Euclidean distance
# in RGB), and if its strongest pixels are at most this share away from the full paint.
_PURE, _NEAR, _FULL = 0.75, 40, 0.5
# An object has a shape if its mask and the shape's template overlap this well (intersection over union).
_ALIKE = 0.7
_GRID = 40


def objects_in(image: Image.Image) -> list[Found]:
    """Returns the objects of an image, from left to right."""
    small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    pixels = np.asarray(small, np.float32)
    border: np.ndarray = np.ones((_SIDE, _SIDE), bool)
    border[2:-2, 2:-2] = False
    background = np.median(pixels[border], axis=0)
    # the median of 3 × 3 pixels removes noise, and keeps edges
    smooth = np.stack([ndimage.median_filter(pixels[..., c], 3, mode="nearest") for c in range(3)], -1)
    mask = np.abs(smooth - background).max(-1) > _CONTRAST
    labels, _ = ndimage.label(mask)
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
        if (labels[rows, columns] == number).sum() < _SPECK:
            continue
        # with a free pixel on each side, for the mixed pixels of its outline
        top, left = max(rows.start - 1, 0), max(columns.start - 1, 0)
        where = slice(top, rows.stop + 1), slice(left, columns.stop + 1)
        own = labels[where] == number
        colour, paint = _colour_of(smooth[where][own], background)
        near = ndimage.binary_dilation(own) & ((labels[where] == 0) | own)
        share = (pixels[where] - background) @ (paint - background) / np.square(paint - background).sum()
        cover = np.clip(share, 0, 1) * near
        shape, fit = _shape_of(cover)
        y, x = ndimage.center_of_mass(cover)
        found.append(Found(shape, colour, (left + x + 0.5) / _SIDE, (top + y + 0.5) / _SIDE, fit))
    return sorted(found, key=lambda one: one.x)


def _colour_of(pixels: np.ndarray, background: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns the colour of an object with these pixels, and its paint as RGB.

    A pixel of an outline is a mixture of paint and background, so the mixtures of a colour lie on a line. If the pixels
    lie on the lines of two colours (brown on black lies on orange's), the strongest pixels decide.
    """
    contrast = np.linalg.norm(pixels - background, axis=-1)
    is_clear = contrast >= np.percentile(contrast, 90) / 2
    clear = pixels[is_clear] - background
    paints = np.array([*scenes.PAINTS.values()], np.float32) - background
    share = clear @ paints.T / np.square(paints).sum(1)
    distance = np.linalg.norm(clear[:, None] - np.clip(share, 0, 1)[..., None] * paints, axis=-1)
    unlike = np.abs(np.percentile(share, 90, axis=0) - 1)
    unlike[(distance < _NEAR).mean(0) < _PURE] = np.inf
    best = int(unlike.argmin())
    strong = clear[contrast[is_clear] >= np.median(contrast)]
    return COLOURS[best] if unlike[best] < _FULL else "unknown", np.median(strong, axis=0) + background


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
    for shape in SHAPES:
        for turn in range(0, period[shape], 8):
            thing = scenes.Thing(shape, "red", scenes.SIZE / 2, scenes.SIZE / 2, 30.0, turn)
            drawn = np.asarray(scenes.draw_things([thing], (255, 255, 255)))
            names.append(shape)
            masks.append(_normal((255 - drawn[..., 1].astype(np.float32)) / (255 - scenes.PAINTS["red"][1])))
    return names, np.stack(masks).reshape(len(names), -1)


def _shape_of(cover: np.ndarray) -> tuple[str, float]:
    """Returns the shape whose template overlaps best with an object, and the overlap."""
    names, templates = _templates()
    own = _normal(cover).reshape(-1)
    overlap = (templates & own).sum(1) / (templates | own).sum(1)
    best = int(overlap.argmax())
    return (names[best] if overlap[best] >= _ALIKE else "unknown"), float(overlap[best])
