"""The text readers by the name a user gives. Importing this needs the standard library only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from eval_models.judge.registry import JUDGE_SETTINGS
from imageevalkit.errors import UserError, suggest

if TYPE_CHECKING:
    from eval_models.ocr.interface import TextReader

READERS: dict[str, tuple[str, str]] = {"ppocr": ("eval_models.ocr.ppocr", "PPOCR")}
"""Module and class of each reader: names are checked before any environment exists."""


def check_reader(name: str) -> str:
    """``name``, if there is a reader called so.

    Raises:
        UserError: there is no such reader.
    """
    if name not in READERS:
        known = [*READERS, *JUDGE_SETTINGS]
        raise UserError(
            f"unknown text reader '{name}'{suggest(name, known)}; known: {', '.join(known)}, "
            "and any model as backend:model"
        )
    return name


def make_reader(name: str) -> TextReader:
    """The reader called ``name``; cheap, the model loads with the first image. Raises UserError like the above."""
    module, class_name = READERS[check_reader(name)]
    reader: TextReader = getattr(importlib.import_module(module), class_name)()
    return reader
