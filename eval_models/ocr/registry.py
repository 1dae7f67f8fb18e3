"""The text readers by the name a user gives. Importing this needs the standard library only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from imageevalkit.errors import UserError, suggest

if TYPE_CHECKING:
    from eval_models.ocr.interface import TextReader

READERS: dict[str, tuple[str, str]] = {"ppocr": ("eval_models.ocr.ppocr", "PPOCR")}
"""Module and class of each reader: names are checked before any environment exists."""
# LongText-Bench's own judges: 7B gave the published numbers, 32B the numbers of the kit of seed 002.
_PLANNED = ("qwen2.5-vl-7b", "qwen2.5-vl-32b")


def check_reader(name: str) -> str:
    """``name``, if there is a reader called so.

    Raises:
        UserError: there is no such reader, or not yet.
    """
    if name in _PLANNED:
        raise UserError(
            f"text reader '{name}' (LongText-Bench's official judge) is not in this version yet; "
            "use 'ppocr', whose scores are kept apart from official ones by name"
        )
    if name not in READERS:
        known = ", ".join(READERS)
        raise UserError(f"unknown text reader '{name}'{suggest(name, [*READERS, *_PLANNED])}; known: {known}")
    return name


def make_reader(name: str) -> TextReader:
    """The reader called ``name``; cheap, the model loads with the first image. Raises UserError like the above."""
    module, class_name = READERS[check_reader(name)]
    reader: TextReader = getattr(importlib.import_module(module), class_name)()
    return reader
