"""The stage in place of generation: take the images of a folder that were made elsewhere (``--images``).

Here is which file of the folder is the image of which item.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.jsonl import read_json
from imageevalkit.errors import CellFailure
from imageevalkit.forecast import Datasets
from imageevalkit.grids import Grid
from imageevalkit.images import IMAGE_FORMATS, IMAGE_SUFFIXES
from imageevalkit.jobs import AdoptOrder
from imageevalkit.registry import ImageFinder


@dataclass(frozen=True)
class Place:
    """Where an image is: a file, or its cell ``index`` (from 0, by row) of a ``grid``; or a ``reason`` why nowhere."""

    path: Path | None = None
    grid: Grid | None = None
    index: int | None = None
    reason: str = ""


Places = Mapping[str, Place]
"""By item id; an item without a place has no image either."""


def only_one(files: Sequence[Path], grid: Grid | None = None, index: int | None = None) -> Place:
    """The place of an item in the one of ``files``; several may each be its image, so that none is taken."""
    if len(files) == 1:
        return Place(files[0], grid, index)
    names = ", ".join(path.name for path in files[:3]) + (", …" if len(files) > 3 else "")
    return Place(reason=f"{len(files)} files in {files[0].parent} may be it ({names}): leave one")


def places_of_job(
    cell: Cell, order: AdoptOrder, datasets: Datasets
) -> tuple[list[Item], Path, dict[str, Place]]:
    """The items of ``cell``, where a job with ``order`` looks for their images, and what it finds there."""
    items, dataset = datasets.items(cell, order.limit), datasets[cell.benchmark]
    source = Path(order.sources[cell.benchmark])
    among = Path(order.among) if order.among else None
    own = dataset.find_images if isinstance(dataset, ImageFinder) else None
    return items, source, find_images(source, items, dataset.data, own, among)


def find_images(
    source: Path,
    items: Sequence[Item],
    entries: Sequence[Mapping[str, Any]],
    find: Callable[[Path, Sequence[Item]], Mapping[str, Any] | None] | None = None,
    among: Path | None = None,
) -> dict[str, Place]:
    """The places of the images of ``items`` in ``source``, by item id; items without one are left out.

    ``find`` knows the benchmark's own layouts. Else a file is a JSON of paths by prompt, and of a folder the official
    layout counts: the item's path below ``images/``, with any suffix of an image, in ``source`` or in
    ``source/images``, whichever holds more of them. ``entries`` are all of the benchmark, whatever the limit. ``among``
    holds the images of several models, each in a folder of its own. Raises CellFailure: ``source`` cannot be read as
    what it seems to be; or the images may be another model's.
    """
    own = find(source, items) if find else None
    images, others = _files_below(source)
    if source.is_file() and not own:
        places = _listed(source, items, Counter(entry.get("prompt") for entry in entries))
    elif own is not None:
        places = {id: place if isinstance(place, Place) else Place(place) for id, place in own.items()}
    else:
        places = _best(images, items, [lambda item: item.id.removeprefix("images/")])
    places |= _instead([item for item in items if item.id not in places], places, images, others)
    model = f"/{items[0].model}/"
    for path in [place.path for place in places.values() if place.path and among]:
        if model not in f"/{path.as_posix().removeprefix(str(among))}":
            raise CellFailure(
                f"{path} is in no folder of its model: with several models in --model_names, each has a folder below "
                f"{among} ({model[1:]})"
            )
    return places


def find_named(source: Path, items: Sequence[Item], layouts: Sequence[str]) -> dict[str, Place] | None:
    """The places of the images of ``items``, by item id, in that of ``layouts`` of which most is in ``source`` or in
    ``source/images``; None: there is nothing.

    A layout is the path of an image without its suffix, with the ``data`` of its item as fields ("{style}/{number}"),
    and "{item.id}", "{item.model}", "{item.path.stem}".
    """

    def named(layout: str) -> Callable[[Item], str]:
        return lambda item: layout.format_map({**item.data, "item": item})

    return _best(_files_below(source)[0], items, [named(layout) for layout in layouts]) or None


def _files_below(source: Path) -> tuple[dict[str, list[Path]], dict[str, Path]]:
    """The images by their path without its suffix, and one of the other files of each such path."""
    images, others = dict[str, list[Path]](), dict[str, Path]()
    inner = source / "images"
    # below where it starts, rglob follows no link
    roots = [source, inner] if inner.is_symlink() else [source]
    for path in sorted(path for root in roots for path in root.rglob("*") if path.is_file()):
        stem = PurePosixPath(path.relative_to(source)).with_suffix("").as_posix()
        if path.suffix.lower() in IMAGE_SUFFIXES:
            images.setdefault(stem, []).append(path)
        else:
            others.setdefault(stem.removeprefix("images/"), path)
    return images, others


def _best(
    images: Mapping[str, Sequence[Path]], items: Sequence[Item], names: Sequence[Callable[[Item], str]]
) -> dict[str, Place]:
    layouts = (
        {item.id: only_one(files) for item in items if (files := images.get(below + name(item)))}
        for name in names
        for below in ("", "images/")
    )
    return max(layouts, key=len)


def read_filepaths(path: Path) -> dict[str, Path]:
    """The image of each prompt, there or not, from a JSON file ``{prompt: path}`` as GenEval 2's official script reads.

    A relative path is relative to the folder of the file; if nothing is there, to the working directory, as the
    official script takes it. Raises CellFailure: the file cannot be read, or is no JSON object of texts.
    """
    raw = read_json(path)
    if not isinstance(raw, dict) or not raw or not all(isinstance(p, str) and p for p in raw.values()):
        raise CellFailure(
            f'{path} is no JSON object of image paths by prompt: {{"a red dog": "images/0.png", …}}'
        )
    near = {prompt: path.parent / image for prompt, image in raw.items()}
    return {prompt: near[prompt] if near[prompt].is_file() else Path.cwd() / raw[prompt] for prompt in raw}


def _listed(source: Path, items: Sequence[Item], sharing: Mapping[str | None, int]) -> dict[str, Place]:
    """The images that the JSON file ``source`` names; ``sharing`` counts the entries that have a prompt."""
    path_of, places = read_filepaths(source), dict[str, Place]()
    for item in items:
        path = path_of.get(item.prompt or "")
        if path is None:
            continue
        if sharing[item.prompt] > 1:
            reason = f"{source} names one image for a prompt that {sharing[item.prompt]} images are made of"
            places[item.id] = Place(reason=f"{reason}: give a folder in the official layout")
        elif path.is_file():
            places[item.id] = Place(path)
        else:
            places[item.id] = Place(reason=f"{path}, named in {source}, is not there")
    return places


def _instead(
    items: Sequence[Item], places: Places, images: Mapping[str, Sequence[Path]], others: Mapping[str, Path]
) -> dict[str, Place]:
    """Why ``items`` have no place: a file has the suffix of another format, or nearly the name."""
    used, alike, instead = {place.path for place in places.values()}, dict[str, Path](), dict[str, Place]()
    for stem, path in ((stem, path) for stem, paths in images.items() for path in paths if items):
        if path not in used:
            alike.setdefault(_loosely(stem.removeprefix("images/")), path)
    for item in items:
        name = item.id.removeprefix("images/")
        if other := others.get(name):
            instead[item.id] = Place(reason=f"there is {other}, but only {IMAGE_FORMATS} files are taken")
        elif near := alike.get(_loosely(name)):
            instead[item.id] = Place(reason=f"there is {near}, nearly {name}: rename it if it is the image")
    return instead


def _loosely(stem: str) -> str:
    """``stem`` without what is easily mistaken: zeros before a number, upper case, kinds of separators."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"[\s_-]+", "_", stem.casefold()))
