"""Text for output: any string can be written to a file, and no string controls a terminal.

External strings (from a server, a judge, a file name) may hold characters that UTF-8 cannot encode. Examples
are half an emoji in JSON, and a byte of a file name that is not text. They may also hold terminal escapes.
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_STEERING = re.compile(
    # a title, a device's string; it ends where the next begins, or thousands of beginnings would take minutes
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\n\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # reverses the direction of text
)


def to_bytes(text: str) -> bytes:
    r"""Returns ``text`` as UTF-8. A character that UTF-8 cannot encode becomes its backslash escape.

    In JSON this is the original escape (``"\ud83d"``), so a reader gets the original string.
    """
    return text.encode("utf-8", "backslashreplace")


def csv_text(rows: Iterable[Iterable[Any]], line_end: str = "\n") -> str:
    """Returns ``rows`` as CSV in the style of pandas: None becomes an empty field."""
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=line_end).writerows(rows)
    return file.getvalue()


def counted(number: int, noun: str) -> str:
    """Returns ``number`` with ``noun``, in the plural with an s if needed: ``1 cell``, ``2 cells``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def some(words: Sequence[str], separator: str = "; ", more: str = "", most: int = 5) -> str:
    """Returns the first ``most`` words, joined; then the number of the others, and ``more``."""
    left = len(words) - most
    named = separator.join(words[:most])
    return f"{named}{separator}and {left} more{more}" if left > 0 else named


def decimals(value: float, digits: int) -> str:
    """Returns ``value`` with ``digits`` decimals, or in powers of ten from 10¹² on."""
    return f"{value:.{digits}f}" if abs(value) < 1e12 else f"{value:.4g}"


def printable(text: str) -> str:
    """Returns ``text`` without escape sequences and control characters; line breaks and tabs stay."""
    return to_bytes(_STEERING.sub("", text)).decode()


def plain(text: str) -> str:
    """Returns :func:`printable` text on one line."""
    return " ".join(printable(text).split())


def let_streams_take_any_text() -> None:
    """Make stdout and stderr escape characters that their encoding cannot represent, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def dollars(usd: float) -> str:
    """Returns ``usd`` with two decimals or, below 0.1, two significant digits: ``$1,234.50``, ``$0.004``."""
    if 0 < usd < 0.0001:
        return "<$0.0001"
    if usd == 0 or usd >= 0.1:
        return f"${usd:,.2f}"
    decimals = 1 - math.floor(math.log10(usd))
    whole, _, fraction = f"{usd:.{decimals}f}".rstrip("0").partition(".")
    return f"${whole}.{fraction.ljust(2, '0')}"
