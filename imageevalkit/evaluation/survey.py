"""Which items of a cell have an image that may be scored, and what became of the others."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit import images
from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import Item
from imageevalkit.cell.records import OK, REFUSED, is_corrupt, last_records
from imageevalkit.cores import available_cores
from imageevalkit.errors import CellFailure, say

GENERATED, REFUSED_ITEM, FAILED, BLANK, CORRUPT = "generated", "refused", "failed", "blank", "corrupt"


class ImageState(NamedTuple):
    """``status`` is one of coverage's five words; ``reason`` says why it is not ``generated``.

    ``plain`` and ``flat`` are as in :class:`imageevalkit.benchmark.question.Picture`.

    ``made_here`` is False for an image made elsewhere: there is no record of how. ``attempted`` is False where nobody
    has tried to make an image here, and there was none elsewhere.
    """

    status: str
    path: Path
    sha256: str = ""
    plain: bool = True
    flat: bool = False
    reason: str = ""
    made_here: bool = True
    attempted: bool = True


def survey_images(cell: Cell, items: Sequence[Item]) -> dict[str, ImageState]:
    """The state of every item, by id; every image is compared with its record, or decoded.

    Raises:
        CellFailure: the images were made with different settings, so that no score would describe a model.
    """
    records = last_records(cell, say)
    _check_one_model(cell, items, records)
    states = images.map_threads(
        lambda item: _state(item, records.get(item.id)), items, min(8, available_cores())
    )
    return {item.id: state for item, state in zip(items, states, strict=True)}


def scorable(states: Mapping[str, ImageState], blank: bool) -> dict[str, ImageState]:
    """Those of ``states`` with an image to judge; ``blank``: placeholders of images that were not made count too."""
    wanted = {GENERATED, BLANK} if blank else {GENERATED}
    return {item: state for item, state in states.items() if state.status in wanted}


def _check_one_model(cell: Cell, items: Sequence[Item], records: Mapping[str, Mapping[str, Any]]) -> None:
    prints = Counter(
        records[item.id].get("fingerprint", "")
        for item in items
        if records.get(item.id, {}).get("status") == OK
    )
    if len(prints) > 1:
        known = fp.known(cell.fingerprints, say)
        (first, n), (second, m) = prints.most_common(2)
        change = fp.explain(known.get(second, {}), known.get(first, {}))
        raise CellFailure(
            f"{cell.key}: images were made with {len(prints)} different settings ({change}: {m} and {n} images); "
            "run the generation again with --overwrite"
        )


def _state(item: Item, record: Mapping[str, Any] | None) -> ImageState:
    if record and record["status"] != OK:
        reason = f"{record['error']['class']}: {record['error']['text']}" if record.get("error") else ""
        if record["status"] == REFUSED:
            return ImageState(REFUSED_ITEM, item.path, reason=reason)
        if record.get("placeholder") and item.path.is_file():
            return ImageState(BLANK, item.path, images.sha256_file(item.path), reason=reason)
        if is_corrupt(record):
            return ImageState(CORRUPT, item.path, reason=record["error"]["text"])
        return ImageState(FAILED, item.path, reason=reason, attempted=record.get("source") != "")
    try:
        data = item.path.read_bytes()
    except FileNotFoundError:
        if record is None:
            return ImageState(FAILED, item.path, reason="never generated", attempted=False)
        return ImageState(CORRUPT, item.path, reason="the image is gone since it was generated")
    except OSError as error:
        return ImageState(CORRUPT, item.path, reason=f"the image cannot be read: {error.strerror}")
    sha256 = hashlib.sha256(data).hexdigest()
    if record and sha256 != record.get("image_sha256"):
        return ImageState(
            CORRUPT, item.path, reason="the file was changed or truncated since it was generated"
        )
    flat = record.get("flat") if record else None
    try:
        if not isinstance(flat, bool):  # else these very bytes were proven when they were saved
            flat = images.facts(data).flat
        plain = images.is_plain(data)
    except images.CorruptImage as error:
        return ImageState(CORRUPT, item.path, reason=f"the image does not decode ({error})")
    made_here = record is not None and not record.get("source")
    return ImageState(GENERATED, item.path, sha256, plain, flat, made_here=made_here)
