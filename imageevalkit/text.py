"""Text on its way out of Python: any string can be written to a file, and none steers a terminal.

Strings from outside (a server's words, a judge's reply, a name on disk) may hold what UTF-8 has no bytes for: half an
emoji, which JSON can spell, or a byte of a file name that is no text. They may hold terminal escapes, too.
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

_STEERING = re.compile(
    # a title, a device's string; one ends where the next begins, or thousands of beginnings would take minutes
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\n\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # what turns the order of letters around
)


def to_bytes(text: str) -> bytes:
    r"""``text`` as UTF-8; what UTF-8 cannot hold becomes its backslash escape.

    In JSON that is the very escape it came as (``"\ud83d"``), so that every reader gets back what was written.
    """
    return text.encode("utf-8", "backslashreplace")


def csv_text(rows: Iterable[Iterable[Any]], line_end: str = "\n") -> str:
    """``rows`` as CSV, as pandas writes them: nothing for what is None."""
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=line_end).writerows(rows)
    return file.getvalue()


def counted(number: int, noun: str) -> str:
    """``number`` with its ``noun``, which becomes plural with an s: ``1 cell``, ``2 cells``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def some(words: Sequence[str], separator: str = "; ", more: str = "", most: int = 5) -> str:
    """Returns the first words, ``most`` of them, joined; then how many there are besides, and ``more``."""
    left = len(words) - most
    named = separator.join(words[:most])
    return f"{named}{separator}and {left} more{more}" if left > 0 else named


def decimals(value: float, digits: int) -> str:
    """``value`` with so many decimals; in powers of ten where that has more figures than a line is for."""
    return f"{value:.{digits}f}" if abs(value) < 1e12 else f"{value:.4g}"


def printable(text: str) -> str:
    """``text`` for a terminal or a log: without escape sequences and control characters, lines and tabs kept."""
    return to_bytes(_STEERING.sub("", text)).decode()


def plain(text: str) -> str:
    """:func:`printable`, on one line."""
    return " ".join(printable(text).split())


def let_streams_take_any_text() -> None:
    """From now on nothing that is printed raises for what the encoding of stdout or stderr cannot hold."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def columns_of(text: str) -> int:
    """Columns of a terminal that ``text`` takes: wide East Asian characters two, combining and unseen ones none."""
    return sum(map(_columns, text))


def _columns(char: str) -> int:
    if char.isascii():
        return int(char.isprintable())
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cc", "Cf", "Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """``text``, cut to ``columns`` with an ellipsis where it is longer."""
    if columns_of(text) <= columns:
        return text
    kept, used = "", 1
    for char in text:
        used += _columns(char)
        if used > columns:
            break
        kept += char
    return kept + "…"


def dollars(usd: float) -> str:
    """``usd`` with two decimals, or as many as two significant digits take: ``$1,234.50``, ``$0.004``."""
    if 0 < usd < 0.0001:
        return "<$0.0001"
    if usd == 0 or usd >= 0.1:
        return f"${usd:,.2f}"
    decimals = 1 - math.floor(math.log10(usd))
    whole, _, fraction = f"{usd:.{decimals}f}".rstrip("0").partition(".")
    return f"${whole}.{fraction.ljust(2, '0')}"


def spreadsheet_text(value: Any) -> Any:
    """``value`` for a CSV file: a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
