"""The items of a benchmark, from the dicts of a dataset class (the contract of seed 002)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from imageevalkit.cell import Cell, output_root
from imageevalkit.errors import CellFailure
from imageevalkit.text_output import to_bytes

MODEL_NAME_MARK = "<MODEL_NAME>"
# The official kit adds the item's seed to a driver seed that its shell driver never changes.
BASE_SEED = 42


@dataclass(frozen=True)
class Item:
    """One image to make.

    ``id`` is the image's path below the cell without suffix (``images/text_prompts/0000_1``); ``path`` is
    where it goes; ``seed`` is the effective seed (``BASE_SEED`` + the dataset's), the same for every worker,
    shard and order; ``data`` is the dataset's own dict (``prompt`` or ``input_list`` and grouping keys).
    """

    id: str
    path: Path
    seed: int
    prompt: str | None
    input_list: Sequence[Any] | None
    data: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The name of the model whose image it is."""
        cell = self.path.parents[len(PurePosixPath(self.id).parts) - 1]
        return cell.parent.relative_to(output_root()).as_posix()

    @cached_property
    def prompt_sha256(self) -> str:
        """Hash of everything the model is shown: text, and the input images' files (else their pixels)."""
        digest = hashlib.sha256()
        parts: Sequence[Any] = [self.prompt] if self.input_list is None else self.input_list
        for part in parts:
            if isinstance(part, str):
                digest.update(b"text:" + to_bytes(part))
            elif file := getattr(part, "filename", ""):
                # a dataset of opened files stays unread: its images are decoded when their turn comes
                digest.update(b"file:" + Path(file).read_bytes())
            else:
                digest.update(f"image:{part.mode}:{part.size}:".encode() + part.tobytes())
        return digest.hexdigest()


def items_of(dataset: Any, cell: Cell, limit: int | None = None) -> list[Item]:
    """The first ``limit`` items (all when None) of ``dataset`` for ``cell``.

    Raises:
        CellFailure: an entry breaks the contract, or two entries share a path; the message names it.
    """
    root, folder = output_root(), cell.folder
    items = [_item(entry, n, cell, root, folder) for n, entry in enumerate(dataset.data[:limit])]
    _check_unique(items, cell)
    return items


def _item(entry: Mapping[str, Any], n: int, cell: Cell, root: Path, folder: Path) -> Item:
    where = f"benchmark {cell.benchmark}, entry {n}"
    missing = [key for key in ("seed", "image_save_path") if key not in entry]
    if ("prompt" in entry) == ("input_list" in entry):
        missing.append("prompt (t2i) or input_list (edit)")
    if missing:
        raise CellFailure(f"{where}: lacks {', '.join(missing)}")
    relative = PurePosixPath(str(entry["image_save_path"]).replace(MODEL_NAME_MARK, cell.model))
    path = root / relative
    if ".." in relative.parts or folder not in path.parents:
        raise CellFailure(
            f"{where}: image_save_path '{entry['image_save_path']}' must lie in "
            f"{MODEL_NAME_MARK}/{cell.benchmark}/"
        )
    return Item(
        id=path.relative_to(folder).with_suffix("").as_posix(),
        path=path,
        seed=BASE_SEED + int(entry["seed"]),
        prompt=entry.get("prompt"),
        input_list=entry.get("input_list"),
        data=entry,
    )


def _check_unique(items: Iterable[Item], cell: Cell) -> None:
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise CellFailure(f"benchmark {cell.benchmark}: two entries are saved as {item.path.name}")
        seen.add(item.id)
