"""Shards: several machines generate the items of one cell at once, each machine its own shard.

No two machines append to one file, because not every network disk supports that. Each shard writes its own
files below :data:`FOLDER`. All readers of the cell read them too, and the next run that locks the whole cell
merges them.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

FOLDER = ".shards"


class Shard(NamedTuple):
    """The ``number``-th (from 1) of ``total`` shards. The hash of an item's id decides its shard."""

    number: int
    total: int

    @classmethod
    def of(cls, words: str) -> Shard | None:
        """Returns the shard for the text of :meth:`__str__`; None for an empty text (no shards)."""
        found = re.fullmatch(r"(\d+)of(\d+)", words)
        return cls(int(found[1]), int(found[2])) if found else None

    def __str__(self) -> str:
        return f"{self.number}of{self.total}"

    def has(self, item: str) -> bool:
        """Returns whether the item with this id belongs to the shard, independently of other items."""
        digest = hashlib.sha256(item.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.total == self.number - 1


def own_file(path: Path, shard: Shard | None) -> Path:
    """Returns the shard's own version of ``path``, a file of a cell; ``path`` itself without a shard."""
    return path if shard is None else path.parent / FOLDER / str(shard) / path.name


def parts_of(path: Path) -> list[Path]:
    """Returns the shards' versions of ``path``, a file of a cell, that are not merged yet."""
    folders = (folder for folder in (path.parent / FOLDER).glob("*") if Shard.of(folder.name))
    return sorted(part for folder in folders if (part := folder / path.name).exists())
