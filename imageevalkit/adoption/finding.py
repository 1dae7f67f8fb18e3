"""Which file of a folder made elsewhere is the image of which item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from imageevalkit.adoption.found import Found, Piece
from imageevalkit.errors import CellFailure
from imageevalkit.images import IMAGE_SUFFIXES
from imageevalkit.items import Item


def find_images(
    source: Path, items: Sequence[Item], dataset: Any, among: Path | None = None
) -> dict[str, Found]:
    """The images of ``items`` in ``source``, by item id; items without one are left out.

    ``among`` holds the images of several models: then each has a folder of its own somewhere on the way to its files.

    A dataset class with a method ``find_images(source, items)`` knows its own layouts (a JSON file of paths, or
    several images in one file) and returns None for one it does not. Else the official layout counts: the item's
    path below ``images/``, with any suffix of an image, in ``source`` or in ``source/images``, whichever holds more
    of them.

    Raises:
        CellFailure: ``source`` is there but cannot be read as what it seems to be; or the images may be another
            model's.
    """
    found = _find(source, items, dataset)
    if among is not None:
        _check_whose(found, items[0].model, among)
    return found


def _find(source: Path, items: Sequence[Item], dataset: Any) -> dict[str, Found]:
    if finder := getattr(dataset, "find_images", None):
        found: Mapping[str, Found] | None = finder(source, items)
        if found is not None:
            return dict(found)
    return max((_in_layout(root, items) for root in (source, source / "images")), key=len)


def _check_whose(found: Mapping[str, Found], model: str, among: Path) -> None:
    for one in found.values():
        path = one.path if isinstance(one, Piece) else one
        if not isinstance(path, Path):
            continue
        below = path.relative_to(among) if path.is_relative_to(among) else path
        if f"/{model}/" not in f"/{below.as_posix()}":
            raise CellFailure(
                f"{path} is in no folder of its model: with several models in --model_names, each has a folder below "
                f"{among} ({model}/)"
            )


def _in_layout(root: Path, items: Sequence[Item]) -> dict[str, Found]:
    there = _by_stem(root)
    return {item.id: there[stem] for item in items if (stem := _stem(item)) in there}


def _stem(item: Item) -> str:
    return item.id.removeprefix("images/")


def _by_stem(root: Path) -> dict[str, Path]:
    """Image files below ``root`` by relative path without suffix; of several, the last by name."""
    return {
        PurePosixPath(path.relative_to(root)).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
    }
