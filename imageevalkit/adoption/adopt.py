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


def settings_of(source: Path) -> dict[str, Any]:
    """What stands in the place of a model's settings: images of two places are never one score."""
    return {"images": "made elsewhere", "source": str(source.absolute())}


def adopt_cell(
    cell: Cell,
    items: Sequence[Item],
    source: Path,
    found: Mapping[str, Path],
    progress: ProgressWriter,
    overwrite: bool = False,
    log: Callable[[str], None] = print,
) -> Outcome:
    """Make the images of ``cell`` those of ``found`` (files below ``source`` by item id).

    What is the same as before is left alone; an item without a file is recorded as failed, never as blank. Images
    of another source are replaced only with ``overwrite``.

    Raises:
        CellFailure: nothing was found, or the cell holds images that nobody said to replace, or the disk is full.
    """
    if not found:
        raise CellFailure(nothing_found(cell, items, source))
    records = last_records(cell)
    may_replace(cell, items, source, overwrite)
    key = fp.remember(cell.fingerprints, settings_of(source), {})
    writer = OutcomeWriter(cell, key)
    copied, missing = 0, [item for item in items if item.id not in found]
    try:
        for n, item in enumerate(items, 1):
            path = found.get(item.id)
            if path is None:
                _record_missing(writer, item, records.get(item.id), source)
            else:
                copied += _copy(writer, item, path, records.get(item.id), key)
            progress.report(
                Progress(cell.key, STAGE, n, len(items), n - copied, len(missing)), n == len(items)
            )
    finally:
        writer.close()
    log(f"{cell.key}: {copied} images copied from {source}, {len(found) - copied} were here")
    if missing:
        log("missing: " + ", ".join(item.id for item in missing))
        named = ", ".join(item.path.name for item in missing[:3]) + (", …" if len(missing) > 3 else "")
        return Outcome(INCOMPLETE, f"{len(missing)} of {len(items)} images are not in {source}: {named}")
    return Outcome(COMPLETE, f"{len(items)} images of {source}")


def nothing_found(cell: Cell, items: Sequence[Item], source: Path) -> str:
    """What to say where ``source`` holds no image of the benchmark."""
    if source.is_file():
        return f"no prompt of {cell.benchmark} is in {source}"
    names = ", ".join(str(item.path.relative_to(cell.folder / "images")) for item in items[:3])
    return (
        f"no image of {cell.benchmark} is in {source}: files are named as in the official layout; the "
        f"{len(items)} items of this run begin with {names}"
    )


def may_replace(cell: Cell, items: Sequence[Item], source: Path, overwrite: bool) -> None:
    """Whether the images of ``cell`` may become those of ``source``.

    Raises:
        CellFailure: it holds images that nobody said to replace.
    """
    known, records, settings = fp.known(cell.fingerprints), last_records(cell), settings_of(source)
    for record in records.values():
        before = known.get(record.get("fingerprint", ""), {})
        if record["status"] != OK or before == settings:
            continue
        if "source" not in before:
            raise CellFailure(
                f"{cell.key} holds images that were generated here; give the images of --images a model name of "
                "their own"
            )
        if not overwrite:
            raise CellFailure(
                f"{cell.key} holds the images of {before['source']}; --overwrite replaces them, another model name "
                "keeps both"
            )
    unrecorded = sum(item.id not in records and item.path.exists() for item in items)
    if unrecorded and not overwrite:
        raise CellFailure(
            f"{cell.key} holds {unrecorded} images that were put there by hand; --overwrite replaces them, another "
            "model name keeps both"
        )


def _copy(writer: OutcomeWriter, item: Item, path: Path, record: Mapping[str, Any] | None, key: str) -> bool:
    """Copy ``path`` unless the same bytes are here; whether it was copied."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CellFailure(f"{path} cannot be read: {error.strerror}") from None
    sha256 = hashlib.sha256(data).hexdigest()
    mine = record and record["status"] == OK and record.get("fingerprint") == key
    if mine and record and record.get("image_sha256") == sha256 and image_is_intact(record, item.path):
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
