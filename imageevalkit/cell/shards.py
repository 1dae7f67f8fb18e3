"""Items of one cell that several machines make at once, a shard of them each.

No two machines append to one file: not every network disk keeps such writes apart. A shard has records of its own below
:data:`FOLDER`, which all who read the cell see, and which the first to have the cell to itself takes into the cell's.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from imageevalkit.cell.jsonl import copy_of

FOLDER = ".shards"


class Shard(NamedTuple):
    """The ``number``-th (from 1) of ``total`` shards: the items whose id has a hash that falls to it."""

    number: int
    total: int

    @classmethod
    def of(cls, words: str) -> Shard | None:
        """What :meth:`__str__` wrote; None: ``words`` are empty, of who has all items."""
        found = re.fullmatch(r"(\d+)of(\d+)", words)
        return cls(int(found[1]), int(found[2])) if found else None

    def __str__(self) -> str:
        return f"{self.number}of{self.total}"

    def has(self, item: str) -> bool:
        """Whether the item with that id is one of its own, whatever other items there are."""
        digest = hashlib.sha256(item.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.total == self.number - 1


def own_file(path: Path, shard: Shard | None) -> Path:
    """Where ``shard`` has what others keep in ``path``, a file of a cell."""
    return path if shard is None else path.parent / FOLDER / str(shard) / path.name


def parts_of(path: Path) -> list[Path]:
    """What shards keep in the place of ``path``, a file of a cell, and has not been taken into it."""
    folders = (folder for folder in (path.parent / FOLDER).glob("*") if Shard.of(folder.name))
    # only the copy may be left of one
    return sorted(
        part for folder in folders if (part := folder / path.name).exists() or copy_of(part).exists()
    )
