"""What a finder says of an item: which file is its image, which cell of which file, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imageevalkit.grids import Grid


@dataclass(frozen=True)
class Piece:
    """One cell of a file that holds several images; ``index`` is from 0, row by row."""

    path: Path
    grid: Grid
    index: int


@dataclass(frozen=True)
class Missing:
    """There are files, but none of them can be taken, for this ``reason``."""

    reason: str


Found = Path | Piece | Missing


def several(files: Sequence[Path]) -> Missing:
    """What is said of an item that each of ``files`` may be the image of."""
    names = ", ".join(path.name for path in files[:3]) + (", …" if len(files) > 3 else "")
    return Missing(f"{len(files)} files in {files[0].parent} may be it ({names}): leave one")
