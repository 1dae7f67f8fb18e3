"""How text looks on a terminal: colour, width, and short forms of times and paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

from imageevalkit.jobs import COMPLETE, FAILED, INCOMPLETE, STALE
from imageevalkit.launch.summary import BLOCKED, INTERRUPTED, SKIPPED
from imageevalkit.text_width import columns_of

_BAR = 16
_GREEN, _YELLOW, _RED = "32", "33", "31"
_COLOURS = {
    COMPLETE: _GREEN,
    INCOMPLETE: _YELLOW,
    STALE: _YELLOW,
    INTERRUPTED: _YELLOW,
    FAILED: _RED,
    SKIPPED: _RED,
    BLOCKED: _RED,
}
STATE_WIDTH = max(map(len, _COLOURS))


class Paint:
    """Colour and symbols as far as the stream and the user allow."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        self._colour = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"

    def __call__(self, text: str, state: str) -> str:
        colour = _COLOURS.get(state)
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour and text else text

    def bar(self, done: int, total: int) -> str:
        """A bar of fixed width that is full only when ``done`` is ``total``."""
        filled = _BAR * done // total if total else 0
        full, empty = ("█", "░") if self._unicode else ("#", "-")
        return full * filled + empty * (_BAR - filled)


def clock(seconds: float) -> str:
    """``seconds`` as ``0:07``, ``12:34`` or ``1:02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def fit(text: str, columns: int) -> str:
    """``text``, cut to ``columns`` with an ellipsis where it is longer."""
    if columns_of(text) <= columns:
        return text
    kept, used = "", 1
    for char in text:
        used += columns_of(char)
        if used > columns:
            break
        kept += char
    return kept + "…"
