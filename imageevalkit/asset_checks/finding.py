"""What a look at an asset found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_NAMED = 10


class Finding(NamedTuple):
    """``problems``: a line for each thing missing or wrong. ``notes``: what a reader should know besides.

    ``is_known``: files were compared with what they must be; else only looked for.
    """

    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    is_known: bool = True


def of_files(name: str, missing: Sequence[str], wrong: Sequence[str]) -> list[str]:
    """One line about the ``missing`` files of ``name`` (paths) and the ``wrong`` ones (sentences), or none."""
    parts = []
    if missing:
        count = "1 file is" if len(missing) == 1 else f"{len(missing)} files are"
        parts.append(f"{count} missing ({_some(missing)})")
    if wrong:
        parts.append(_some(wrong))
    return [f"{name}: {'; '.join(parts)}"] if parts else []


def _some(words: Sequence[str]) -> str:
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {more} more" if more > 0 else "")
