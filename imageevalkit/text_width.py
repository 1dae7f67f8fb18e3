"""How wide text is where every character takes whole columns: on a terminal, in an aligned table."""

from __future__ import annotations

import unicodedata


def columns_of(text: str) -> int:
    """Columns that ``text`` takes; Chinese characters take two."""
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
