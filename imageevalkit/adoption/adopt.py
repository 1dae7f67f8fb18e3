"""Adopt one cell: copy the images byte for byte, record where they came from, notice what changed since."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit import fingerprint as fp
from imageevalkit.cell import Cell
from imageevalkit.errors import CellFailure
from imageevalkit.generation.contract import ItemFailed
from imageevalkit.generation.records import (
    FAILED,
    OK,
    OutcomeWriter,
    image_is_intact,
    last_records,
)
from imageevalkit.images import CorruptImage, facts
from imageevalkit.items import Item
from imageevalkit.jobs import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.progress import Progress, ProgressWriter

STAGE = "adopt"
_SETTINGS: dict[str, Any] = {"images": "made elsewhere"}


def adopt_cell(
    cell: Cell,
    items: Sequence[Item],
    source: Path,
    found: Mapping[str, Path],
    progress: ProgressWriter,
    log: Callable[[str], None] = print,
) -> Outcome:
    """Make the images of ``cell`` those of ``found`` (files below ``source`` by item id).

    What is the same as before is left alone; an item without a file is recorded as failed, never as blank.

    Raises:
        CellFailure: nothing was found, or the cell holds images that the toolkit made, or the disk is full.
    """
    if not found:
        raise CellFailure(
            f"no image of {cell.benchmark} in {source}: files are named as in the official layout, "
            f"for example {items[0].path.relative_to(cell.folder / 'images') if items else '0.png'}"
        )
    records = last_records(cell)
    _check_not_generated(cell, records)
    writer = OutcomeWriter(cell, fp.remember(cell.fingerprints, _SETTINGS, {}))
    copied = missing = 0
    try:
        for n, item in enumerate(items, 1):
            path = found.get(item.id)
            if path is None:
                missing += 1
                _record_missing(writer, item, records.get(item.id), source)
            else:
                copied += _copy(writer, item, path, records.get(item.id))
            progress.report(
                Progress(cell.key, STAGE, n, len(items), n - copied - missing, missing), n == len(items)
            )
    finally:
        writer.close()
    log(
        f"{cell.key}: {copied} images copied from {source}, {len(found) - copied} were here, {missing} missing"
    )
    if missing:
        return Outcome(INCOMPLETE, f"{missing} of {len(items)} images are not in {source}")
    return Outcome(COMPLETE, f"{len(items)} images of {source}")


def _check_not_generated(cell: Cell, records: Mapping[str, Mapping[str, Any]]) -> None:
    known = fp.known(cell.fingerprints)
    for record in records.values():
        if record["status"] == OK and known.get(record.get("fingerprint", "")) != _SETTINGS:
            raise CellFailure(
                f"{cell.key} holds images that were generated here; give the images of --images a model name of "
                "their own"
            )


def _copy(writer: OutcomeWriter, item: Item, path: Path, record: Mapping[str, Any] | None) -> bool:
    """Copy ``path`` unless the same bytes are here; whether it was copied."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CellFailure(f"{path} cannot be read: {error.strerror}") from None
    sha256 = hashlib.sha256(data).hexdigest()
    same = record and record["status"] == OK and record.get("image_sha256") == sha256
    if same and record and image_is_intact(record, item.path):
        return False
    try:
        found = facts(data)
    except CorruptImage:
        found = None  # the evaluation counts it as corrupt
    writer.save_found(item, data, found, str(path.absolute()))
    return True


def _record_missing(
    writer: OutcomeWriter, item: Item, record: Mapping[str, Any] | None, source: Path
) -> None:
    text = f"there is no image of it in {source.absolute()}"
    if not record or record["status"] == OK or (record.get("error") or {}).get("text") != text:
        writer.save_failure(item, ItemFailed(text, attempts=0), FAILED, 0.0, None)
