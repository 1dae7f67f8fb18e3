"""Read one file and make of it the images that it holds; touches nothing, so that threads do it side by side."""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from imageevalkit.cell.items import Item
from imageevalkit.cell.records import OK, image_is_intact, is_corrupt
from imageevalkit.errors import CellFailure
from imageevalkit.grids import Grid, is_black
from imageevalkit.images import CorruptImage, ImageFacts, decode, facts, is_flat

# Of Pillow's compressed settings the fastest for pictures: a third less time than its defaults at the same size.
# (Flat graphics are three times as large, but small all the same.)
FAST_PNG = {"compress_level": 1, "compress_type": zlib.Z_RLE}


class Wanted(NamedTuple):
    """An item whose image is a file, or the cell ``n`` of it (from 0, row by row).

    ``record`` is the last one on the item, if images of the same source and grid: the only one to compare with.
    """

    item: Item
    n: int | None
    record: Mapping[str, Any] | None


class Taken(NamedTuple):
    """What is to be kept of one item; ``origin`` are the fields of its record that say where it was.

    ``failure`` says why there is no image; ``corrupt``: because a file is there that is no whole image. ``uneven``:
    the grid's size does not divide, so that a rest was dropped. ``data`` and ``facts`` are None where there is no
    image, or where nothing ``changed`` since the item's record.
    """

    item: Item
    origin: Mapping[str, Any]
    changed: bool = True
    failure: str = ""
    corrupt: bool = False
    uneven: bool = False
    data: bytes | None = None
    facts: ImageFacts | None = None


def take(path: Path, grid: Grid | None, wanted: Sequence[Wanted]) -> list[Taken]:
    """The images of ``wanted`` in ``path``: its bytes as they are, or its cells as RGB PNG where it is a ``grid``.

    A file that is as it was at the last time is not decoded.

    Raises:
        CellFailure: the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CellFailure(f"{path} cannot be read: {error.strerror}") from None
    sha256 = hashlib.sha256(data).hexdigest()
    if grid is None:
        return [_whole(one, data, sha256, path) for one in wanted]
    return _cells(wanted, data, sha256, path, grid)


def _whole(one: Wanted, data: bytes, sha256: str, path: Path) -> Taken:
    origin = {"source": str(path.absolute())}
    record = one.record
    if record and record.get("image_sha256") == sha256 and _stands(record, one.item):
        return Taken(one.item, origin, changed=False)
    damaged = origin | {"source_sha256": sha256}
    if record and record["status"] != OK and all(record.get(key) == damaged[key] for key in damaged):
        return _failed_before(one.item, damaged, record)
    try:
        known = facts(data)
    except CorruptImage as error:
        return Taken(one.item, damaged, failure=f"{path} does not decode ({error})", corrupt=True)
    return Taken(one.item, origin, data=data, facts=known)


def _cells(wanted: Sequence[Wanted], data: bytes, sha256: str, path: Path, grid: Grid) -> list[Taken]:
    taken, fresh = [], []
    for item, n, record in wanted:
        origin: dict[str, Any] = {"source": str(path.absolute()), "source_sha256": sha256, "cell": n}
        if record is None or any(record.get(key) != origin[key] for key in ("source_sha256", "cell")):
            fresh.append((item, origin))
        elif record["status"] != OK:
            taken.append(_failed_before(item, origin, record))
        elif _stands(record, item):
            taken.append(Taken(item, origin, changed=False, uneven=bool(record.get("uneven"))))
        else:
            fresh.append((item, origin))
    if not fresh:
        return taken
    try:
        whole = decode(data)
        cells = grid.split(whole)
    except CorruptImage as error:
        failure = f"{path} does not decode ({error})"
        return taken + [Taken(*one, failure=failure, corrupt=True) for one in fresh]
    except ValueError as error:
        return taken + [Taken(*one, failure=f"{path}: {error}") for one in fresh]
    uneven = {"uneven": True} if whole.width % grid.cols or whole.height % grid.rows else {}
    return taken + [_cell(item, origin | uneven, cells[origin["cell"]]) for item, origin in fresh]


def _cell(item: Item, origin: Mapping[str, Any], cell: Image.Image) -> Taken:
    if is_black(cell):
        place = f"cell {origin['cell'] + 1} of {origin['source']}"
        return Taken(
            item, origin, failure=f"{place} is black: the official padding for an image that was not made"
        )
    buffer = io.BytesIO()
    cell.save(buffer, "PNG", **FAST_PNG)
    known = ImageFacts(cell.size, "PNG", cell.mode, is_flat(cell))
    return Taken(item, origin, uneven="uneven" in origin, data=buffer.getvalue(), facts=known)


def _failed_before(item: Item, origin: Mapping[str, Any], record: Mapping[str, Any]) -> Taken:
    return Taken(item, origin, changed=False, failure=record["error"]["text"], corrupt=is_corrupt(record))


def _stands(record: Mapping[str, Any], item: Item) -> bool:
    # earlier versions took what is no image too, and said nothing of its colours
    whole = record["status"] == OK and record.get("flat") is not None
    return whole and image_is_intact(record, item.path)
