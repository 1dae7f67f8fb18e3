"""Which file of a folder made elsewhere is the image of which item."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from imageevalkit.adoption.found import Found, Missing, Piece, several
from imageevalkit.cell.items import Item
from imageevalkit.errors import CellFailure
from imageevalkit.images import IMAGE_FORMATS, IMAGE_SUFFIXES
from imageevalkit.json_values import parse
from imageevalkit.secrets import one_line


def find_images(
    source: Path, items: Sequence[Item], dataset: Any, among: Path | None = None
) -> dict[str, Found]:
    """The images of ``items`` in ``source``, by item id; items without one are left out.

    ``among`` holds the images of several models: then each has a folder of its own somewhere on the way to its files.

    A dataset class with a method ``find_images(source, items)`` knows its own layouts (several images in one file)
    and returns None for one it does not. Else a file is a JSON of paths by prompt, and of a folder the official
    layout counts: the item's path below ``images/``, with any suffix of an image, in ``source`` or in
    ``source/images``, whichever holds more of them.

    Raises:
        CellFailure: ``source`` is there but cannot be read as what it seems to be; or the images may be another
            model's.
    """
    found = _find(source, items, dataset)
    found |= _instead(source, [item for item in items if item.id not in found], found)
    if among is not None:
        _check_whose(found, items[0].model, among)
    return found


def _find(source: Path, items: Sequence[Item], dataset: Any) -> dict[str, Found]:
    finder = getattr(dataset, "find_images", None)
    found: Mapping[str, Found] | None = finder(source, items) if finder else None
    if source.is_file() and not found:
        return _listed(source, items, Counter(entry.get("prompt") for entry in dataset.data))
    if found is not None:
        return dict(found)
    return max((_in_layout(root, items) for root in (source, source / "images")), key=len)


def read_filepaths(path: Path) -> dict[str, Path]:
    """The image of each prompt, from a JSON file ``{prompt: path}`` (as GenEval 2's official script reads it).

    A relative path is relative to the folder of the file; if nothing is there, to the working directory, as the
    official script takes it. Whether an image is there at all is not looked at.

    Raises:
        CellFailure: the file cannot be read, or is no JSON object of texts.
    """
    try:
        raw = parse(path.read_bytes())
    except OSError as error:
        raise CellFailure(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CellFailure(f"{path} is no JSON ({one_line(error)})") from None
    if not isinstance(raw, dict) or not raw or not all(isinstance(p, str) and p for p in raw.values()):
        raise CellFailure(
            f'{path} is no JSON object of image paths by prompt: {{"a red dog": "images/0.png", …}}'
        )
    return {prompt: _resolve(image, path.parent) for prompt, image in raw.items()}


def _resolve(image: str, folder: Path) -> Path:
    near = folder / image
    return near if near.is_file() else Path.cwd() / image


def _listed(source: Path, items: Sequence[Item], sharing: Mapping[str | None, int]) -> dict[str, Found]:
    """The images that the JSON file ``source`` names; ``sharing`` counts the items that have a prompt."""
    path_of, found = read_filepaths(source), dict[str, Found]()
    for item in items:
        if item.prompt is None or item.prompt not in path_of:
            continue
        path = path_of[item.prompt]
        if sharing[item.prompt] > 1:
            found[item.id] = Missing(
                f"{source} names one image for a prompt that {sharing[item.prompt]} images are made of: give a "
                "folder in the official layout"
            )
        else:
            found[item.id] = path if path.is_file() else Missing(f"{path}, named in {source}, is not there")
    return found


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
    there = dict[str, list[Path]]()
    for path in _files(root):
        if _is_taken(path):
            there.setdefault(_stem(path, root), []).append(path)
    files = {item.id: there[_name(item)] for item in items if _name(item) in there}
    return {item: paths[0] if len(paths) == 1 else several(paths) for item, paths in files.items()}


def _instead(source: Path, items: Sequence[Item], found: Mapping[str, Found]) -> dict[str, Found]:
    """What is in ``source`` in place of the images of ``items``, which are not among those ``found``.

    That is: files of their names with the suffix of another format, or image files of nearly their names.
    """
    if not items:
        return {}
    used = {one.path if isinstance(one, Piece) else one for one in found.values()}
    others, alike = dict[str, Path](), dict[str, Path]()
    for path in _files(source):
        stem = _stem(path, source).removeprefix("images/")
        if not _is_taken(path):
            others.setdefault(stem, path)
        elif path not in used:
            alike.setdefault(_loosely(stem), path)
    told = dict[str, Found]()
    for item in items:
        name = _name(item)
        if name in others:
            told[item.id] = Missing(f"there is {others[name]}, but only {IMAGE_FORMATS} files are taken")
        elif near := alike.get(_loosely(name)):
            told[item.id] = Missing(f"there is {near}, nearly {name}: rename it if it is the image")
    return told


def _loosely(stem: str) -> str:
    """``stem`` without what is easily mistaken: zeros before a number, upper case, kinds of separators."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"[\s_-]+", "_", stem.casefold()))


def _name(item: Item) -> str:
    return item.id.removeprefix("images/")


def _files(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if path.is_file()]


def _is_taken(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def _stem(path: Path, root: Path) -> str:
    return PurePosixPath(path.relative_to(root)).with_suffix("").as_posix()
