"""The prompts of quickshapes: what they ask for, and whether the objects in an image are that.

A :class:`Request` says what a prompt asks for, :func:`prompt_of` puts it into words, :func:`problem_of` compares it
with the objects of an image. ``scenes.py`` draws images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
SHAPES = ("circle", "square", "triangle", "star", "heart", "ring")
RELATIONS = ("left of", "right of", "above", "below")
NUMBERS = {2: "two", 3: "three", 4: "four"}
CATEGORIES = ("one object", "two objects", "counting", "colours", "position", "words")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Wanted:
    """``count`` objects of a shape; ``colour`` is empty if any colour will do."""

    shape: str
    colour: str = ""
    count: int = 1


@dataclass(frozen=True)
class Request:
    """The content of a prompt.

    ``relation`` is where the first object lies, seen from the second. ``word`` replaces the objects; its
    colour is ``colour``.
    """

    category: str
    things: tuple[Wanted, ...] = ()
    relation: str = ""
    word: str = ""
    colour: str = ""

    def key(self) -> tuple[Any, ...]:
        """Returns the meaning of the request: two requests with the same key ask for the same image.

        "a red star left of a blue ring" and "a blue ring right of a red star" have the same key.
        """
        things, relation = self.things, self.relation
        if relation in ("right of", "below"):
            things, relation = things[::-1], {"right of": "left of", "below": "above"}[relation]
        parts = [(one.shape, one.colour, one.count) for one in things]
        return (tuple(parts if relation else sorted(parts)), relation, self.word, self.colour)


class Found(NamedTuple):
    """An object in an image. ``shape`` and ``colour`` are "unknown" if no known one fits; the centre is in
    shares of the image's sides."""

    shape: str
    colour: str
    x: float
    y: float
    fit: float


def request_of(record: Mapping[str, Any]) -> Request:
    """Returns the request that a line of ``prompts.jsonl`` holds."""
    things = tuple(Wanted(**thing) for thing in record.get("things", ()))
    texts = {name: record.get(name, "") for name in ("relation", "word", "colour")}
    return Request(record["category"], things, **texts)


def random_request(random: Random, category: str) -> Request:
    """Returns a random request of a category."""

    def wanted(colour: bool, count: int = 1) -> Wanted:
        return Wanted(random.choice(SHAPES), random.choice(COLOURS) if colour else "", count)

    if category == "words":
        word = "".join(random.choices(LETTERS, k=random.choice((2, 3, 3, 4))))
        return Request(category, word=word, colour=random.choice(COLOURS))
    if category == "one object":
        return Request(category, (wanted(True),))
    if category == "counting":
        return Request(category, (wanted(random.random() < 0.7, random.choice(tuple(NUMBERS))),))
    relation = random.choice(RELATIONS) if category == "position" else ""
    coloured = [True, random.random() < 0.5] if category == "two objects" else [True, True]
    random.shuffle(coloured)
    first = wanted(coloured[0])
    second = wanted(coloured[1])
    # two objects of one shape differ by their colours, else the prompt would ask for a count
    while first.shape == second.shape and (category == "two objects" or first.colour == second.colour):
        second = wanted(coloured[1])
    return Request(category, (first, second), relation)


def prompt_of(request: Request, random: Random | None = None) -> str:
    """Returns the request in words: the benchmark's phrase, or with ``random`` one of several."""
    if request.word:
        phrases = ["the word {w} in {c}", "the {c} word {w}", "{c} letters {w}", "{w} in {c} letters"]
        return (random.choice(phrases) if random else phrases[0]).format(w=request.word, c=request.colour)
    names = [_name(one, random) for one in request.things]
    if request.relation:
        relation = request.relation
        longer = {"left of": "to the left of", "right of": "to the right of"}
        if random and random.random() < 0.3:
            relation = longer.get(relation, relation)
        return f"{names[0]} {relation} {names[1]}"
    return (random.choice((" and ", " and ", " with ")) if random else " and ").join(names)


def _name(wanted: Wanted, random: Random | None) -> str:
    adjective = f"{wanted.colour} " if wanted.colour else ""
    if wanted.count > 1:
        return f"{NUMBERS[wanted.count]} {adjective}{wanted.shape}s"
    article = "one" if random and random.random() < 0.2 else "a"
    if article == "a" and (adjective or wanted.shape)[0] in "aeiou":
        article = "an"
    return f"{article} {adjective}{wanted.shape}"


def problem_of(request: Request, found: Sequence[Found]) -> str:
    """Returns what is wrong with an image that has these objects and no others, empty if nothing is.

    Of a word only the colour is compared: OCR reads the letters.
    """
    if request.word:
        others = {one.colour for one in found} - {request.colour}
        return f"letters are {', '.join(sorted(others))}" if others else "" if found else "no letters"
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


def _fits(wanted: Wanted, found: Found) -> bool:
    return wanted.shape == found.shape and wanted.colour in ("", found.colour)


def _lies(relation: str, first: Found, second: Found) -> bool:
    """Whether ``first`` lies so, seen from ``second``: the direction is the larger one of the two distances."""
    dx, dy = first.x - second.x, first.y - second.y
    along, across = (dx, dy) if relation in ("left of", "right of") else (dy, dx)
    return (along < 0) == (relation in ("left of", "above")) and abs(along) > abs(across)
