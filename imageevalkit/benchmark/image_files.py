"""Finds the files of images that were made elsewhere, in the layouts of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from imageevalkit.common.grids import Grid
from imageevalkit.common.images import IMAGE_SUFFIXES
from imageevalkit.store.items import Item


@dataclass(frozen=True)
class Place:
    """The place of an image: a file, or part ``index`` (from 0, row by row) of a file with a ``grid``.

    Without an image, ``path`` is None and ``reason`` says why."""

    path: Path | None = None
    grid: Grid | None = None
    index: int | None = None
    reason: str = ""


def only_one(files: Sequence[Path], grid: Grid | None = None, index: int | None = None) -> Place:
    """Returns the place of an item if it has exactly one file. With several files, none is chosen."""
    if len(files) == 1:
        return Place(files[0], grid, index)
    names = ", ".join(path.name for path in files[:3]) + (", …" if len(files) > 3 else "")
    return Place(reason=f"{len(files)} files in {files[0].parent} may be it ({names}): leave one")


def find_named(source: Path, items: Sequence[Item], layouts: Sequence[str]) -> dict[str, Place] | None:
    """Returns the places of the images of ``items``, by item id, or None if there are none.

    A layout is the path of an image without suffix, below ``source`` or ``source/images``. Its fields are the
    ``data`` of the item ("{style}/{number}"), "{item.id}", "{item.model}" and "{item.path.stem}". Of all
    ``layouts`` the one with the most images counts.
    """

    def named(layout: str) -> Callable[[Item], str]:
        return lambda item: layout.format_map({**item.data, "item": item})

    return best(files_below(source)[0], items, [named(layout) for layout in layouts]) or None


def files_below(source: Path) -> tuple[dict[str, list[Path]], dict[str, Path]]:
    """Returns the images by path without suffix, and one of the other files for each such path."""
    images, others = dict[str, list[Path]](), dict[str, Path]()
    inner = source / "images"
    # rglob follows no links below its start, so a link "images" needs a start of its own
    roots = [source, inner] if inner.is_symlink() else [source]
    for path in sorted(path for root in roots for path in root.rglob("*") if path.is_file()):
        stem = PurePosixPath(path.relative_to(source)).with_suffix("").as_posix()
        if path.suffix.lower() in IMAGE_SUFFIXES:
            images.setdefault(stem, []).append(path)
        else:
            others.setdefault(stem.removeprefix("images/"), path)
    return images, others


def best(
    images: Mapping[str, Sequence[Path]], items: Sequence[Item], names: Sequence[Callable[[Item], str]]
) -> dict[str, Place]:
    layouts = (
        {item.id: only_one(files) for item in items if (files := images.get(below + name(item)))}
        for name in names
        for below in ("", "images/")
    )
    return max(layouts, key=len)
