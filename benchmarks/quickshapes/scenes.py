"""Draws scenes: images that fulfil a request of quickshapes. Training data, and references for tests of the judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.quickshapes.prompts import COLOURS, Request

SIZE = 96
"""Width and height of a scene in pixels."""

PAINTS = {
    "red": (218, 30, 40),
    "orange": (250, 140, 20),
    "yellow": (252, 212, 40),
    "green": (40, 160, 70),
    "blue": (35, 85, 205),
    "purple": (130, 50, 165),
    "pink": (250, 130, 185),
    "brown": (136, 82, 44),
}
BACKGROUNDS = (
    (255, 255, 255),
    (247, 242, 230),
    (228, 230, 235),
    (215, 232, 245),
    (222, 240, 224),
    (234, 228, 246),
)

Colour = tuple[int, int, int]
# The finest detail is drawn this many times larger, then averaged.
_FINER = 4
# The largest rotation in degrees. A heart that stands on its side would be another shape.
_TURN = {"circle": 0.0, "ring": 0.0, "square": 12.0, "triangle": 12.0, "star": 15.0, "heart": 12.0}
# Free pixels between two objects, and between an object and the edge.
_GAP, _MARGIN = 6.0, 4.0
_HEIGHTS = {2: (26, 36), 3: (24, 30), 4: (20, 23)}


@dataclass(frozen=True)
class Thing:
    """A drawn object: its centre and radius in pixels, its rotation in degrees."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float
    turn: float = 0.0


def arranged(request: Request, random: Random) -> list[Thing]:
    """Returns objects that fulfil the request, at random places where none touches another."""
    kinds = [one for one in request.things for _ in range(one.count)]
    low, high = {1: (17.0, 30.0), 2: (13.0, 20.0), 3: (11.0, 16.0), 4: (10.0, 14.0)}[len(kinds)]
    while True:
        # the objects of a count are alike
        common = random.uniform(low, high) if request.category == "counting" else 0.0
        things: list[Thing] = []
        colours = {one: one.colour or random.choice(COLOURS) for one in request.things}
        for kind in kinds:
            radius = common or random.uniform(low, high)
            turn = random.uniform(-_TURN[kind.shape], _TURN[kind.shape])
            for _ in range(30):
                x, y = (random.uniform(_MARGIN + radius, SIZE - _MARGIN - radius) for _ in range(2))
                if all(math.hypot(x - o.x, y - o.y) > radius + o.radius + _GAP for o in things):
                    things.append(Thing(kind.shape, colours[kind], x, y, radius, turn))
                    break
        if len(things) == len(kinds) and (not request.relation or _clear(request.relation, *things)):
            return things


def _clear(relation: str, first: Thing, second: Thing) -> bool:
    """Whether nobody would dispute that ``first`` lies so, seen from ``second``."""
    dx, dy = first.x - second.x, first.y - second.y
    along, across = (dx, dy) if relation in ("left of", "right of") else (dy, dx)
    sign = -1 if relation in ("left of", "above") else 1
    return sign * along > max(2.0 * abs(across), first.radius + second.radius)


def draw(request: Request, random: Random, backgrounds: Sequence[Colour] = BACKGROUNDS) -> Image.Image:
    """Returns an image that fulfils the request, on one of the backgrounds."""
    if request.word:
        return _draw_word(request.word, PAINTS[request.colour], random.choice(backgrounds), random)
    return draw_things(arranged(request, random), random.choice(backgrounds))


def draw_things(things: Sequence[Thing], background: Colour) -> Image.Image:
    """Returns an image of the objects."""
    image = Image.new("RGB", (SIZE * _FINER, SIZE * _FINER), background)
    pen = ImageDraw.Draw(image)
    for thing in things:
        colour = PAINTS[thing.colour]
        if thing.shape in ("circle", "ring"):
            box = [_FINER * (c + s * 0.92 * thing.radius) for s in (-1, 1) for c in (thing.x, thing.y)]
            if thing.shape == "circle":
                pen.ellipse(box, fill=colour)
            else:
                pen.ellipse(box, outline=colour, width=round(_FINER * 0.36 * thing.radius))
        else:
            angle = math.radians(thing.turn)
            rotation = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
            points = _outline(thing.shape) @ rotation * thing.radius + (thing.x, thing.y)
            pen.polygon([(float(x), float(y)) for x, y in points * _FINER], fill=colour)
    return image.resize((SIZE, SIZE), Image.Resampling.BOX)


@cache
def _outline(shape: str) -> np.ndarray:
    """Returns the corners of a shape within the unit circle, y downwards."""
    if shape == "heart":
        t = np.linspace(0, 2 * math.pi, 80, endpoint=False)
        x = 16 * np.sin(t) ** 3
        y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
        # the centre of mass lies in the middle
        return np.stack([x, y + 0.8], 1) / 18
    corners = {"square": 4, "triangle": 3, "star": 10}[shape]
    radii = [1.0, 0.45] * 5 if shape == "star" else [1.0] * corners
    start = -math.pi / 4 if shape == "square" else -math.pi / 2
    angles = start + 2 * math.pi * np.arange(corners) / corners
    return np.stack([np.cos(angles), np.sin(angles)], 1) * np.array(radii)[:, None]


def _draw_word(word: str, colour: Colour, background: Colour, random: Random) -> Image.Image:
    image = Image.new("RGB", (SIZE * _FINER, SIZE * _FINER), background)
    pen = ImageDraw.Draw(image)
    height = random.uniform(*_HEIGHTS[len(word)])
    while True:
        font, stroke = _font(round(height * _FINER / 0.7)), round(height * _FINER * 0.03)
        left, top, right, bottom = pen.textbbox((0, 0), word, font=font, stroke_width=stroke)
        if right - left <= (SIZE - 2 * _MARGIN) * _FINER:
            break
        height *= 0.95
    free_x, free_y = SIZE * _FINER - (right - left), SIZE * _FINER - (bottom - top)
    x, y = (
        free / 2 + random.uniform(-0.25, 0.25) * (free - 2 * _MARGIN * _FINER) for free in (free_x, free_y)
    )
    pen.text((x - left, y - top), word, fill=colour, font=font, stroke_width=stroke)
    return image.resize((SIZE, SIZE), Image.Resampling.BOX)


@cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)
