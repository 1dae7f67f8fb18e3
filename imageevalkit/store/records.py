"""``generation.jsonl``: the outcome of every item, saved so that ``kill -9`` or a power cut loses none."""

from __future__ import annotations

import contextlib
import hashlib
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from imageevalkit.common import images
from imageevalkit.common.atomic import commit_part, part_path, sync_folder, write_part
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.images import EncodedImage
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.items import Item, Rewriting
from imageevalkit.store.jsonl import (
    Int,
    JsonlWriter,
    Number,
    Reader,
    Tell,
    Time,
    read_jsonl,
    take_in,
    tell_nobody,
)
from imageevalkit.store.pictures import Input, InputCopies, keep_thumbnail
from imageevalkit.store.results import bases, forget
from imageevalkit.store.shards import FOLDER, Shard, own_file, parts_of

OK: Final = "ok"
GENERATED: Final = "generated"
REFUSED: Final = "refused"
FAILED: Final = "failed"
BLANK: Final = "blank"
CORRUPT: Final = "corrupt"
_CLOCKS_DIFFER = 2.0  # seconds by which clocks of a file server and a node may differ
Status = Literal["generated", "refused", "failed", "blank", "corrupt"]
"""The outcome of an item, in the words of :class:`imageevalkit.store.results.Coverage`."""

Failure = TypedDict("Failure", {"class": str, "text": str})
"""The reason for a missing image: the class of the error, and its text on one line."""


# not frozen: setting 27 fields would take three times as long, for each of 50,000 records
@dataclass(slots=True)
class Record:
    """One attempt at an item: a line of ``generation.jsonl``. The last record of an item counts.

    ``path`` is relative to the cell. ``prompt`` joins all texts that the model received; ``seed`` is None if
    unknown. ``seconds`` is wall time. ``fingerprint`` identifies the settings
    (:mod:`imageevalkit.store.fingerprint`); ``time`` is the time of writing (ISO 8601). ``placeholder``: a
    white image was saved instead. Sizes are (width, height) in pixels, None for the model's default or
    without an image. ``price`` is in USD, None if unknown; it includes ``maybe_billed`` requests without a
    reply.

    ``inputs`` are the model's input images in order; None if there are none, or if an older version kept no
    copies. ``rewriting`` describes a ``prompt`` that is not the benchmark's own.

    For images generated elsewhere, ``source`` is the file (empty if there was none), and ``cell`` the index
    (from 0) in a file with several images. ``uneven``: their grid did not divide the file's size.
    ``source_sha256`` is the file's hash if its bytes are not the image's.
    """

    item: str
    status: Literal["ok", "refused", "failed"]
    path: str = ""
    prompt: str = ""
    prompt_sha256: str = ""
    seed: Int | None = None
    seconds: Number = 0.0
    attempts: Int = 0
    fingerprint: str = ""
    time: Time = ""
    placeholder: bool = False
    seed_honoured: bool | None = None
    requested_size: tuple[Int, Int] | None = None
    size: tuple[Int, Int] | None = None
    flat: bool | None = None
    image_sha256: str | None = None
    error: Failure | None = None
    tokens: Mapping[str, Any] | None = None
    price: Number | None = None
    maybe_billed: Int = 0
    extra: Mapping[str, Any] | None = None
    inputs: list[Input] | None = None
    rewriting: Rewriting | None = None
    source: str | None = None
    source_sha256: str | None = None
    cell: Int | None = None
    uneven: bool | None = None

    @classmethod
    def of(cls, item: Item, status: Literal["ok", "refused", "failed"]) -> Record:
        """Returns the record of an attempt at ``item`` before its outcome is known."""
        return cls(
            item.id,
            status,
            f"{item.id}{item.path.suffix}",
            prompt=" ".join(item.texts),
            prompt_sha256=item.prompt_sha256,
            seed=item.seed,
            rewriting=item.rewriting,
        )

    def as_object(self) -> dict[str, Any]:
        """Returns the record as a JSON object."""
        parts = {name: getattr(self, name) for name in _FIELDS}
        return {name: part for name, part in parts.items() if part is not None or name not in _OPTIONAL}

    @property
    def outcome(self) -> Status:
        """The outcome of the item according to this record alone: the file on disk may differ."""
        if self.status == OK:
            return GENERATED
        if self.status == REFUSED:  # a refused item stays refused even if a placeholder exists
            return REFUSED
        if self.placeholder:
            return BLANK
        # a file from elsewhere that is not a valid image was not imported
        kind = self.error["class"] if self.error else ""
        return CORRUPT if self.source and kind == images.CorruptImage.__name__ else FAILED

    @property
    def reason(self) -> str:
        """The reason for a missing image; empty if unknown."""
        return self.error["text"] if self.error else ""


OF_IMAGES = (Cell("", "").generation.name, FOLDER)
"""The names of the files of generation records: a cell with any record has at least one of them."""
RECORD = Reader(Record)
_FIELDS = [each.name for each in fields(Record)]
_OPTIONAL = {"extra", "inputs", "rewriting", "source", "source_sha256", "cell", "uneven"}


class LastRecords(dict[str, Record]):
    """The last record by item id. ``usd`` is the known cost of all requests of the cell."""

    usd = 0.0


def last_records(cell: Cell, tell: Tell = tell_nobody) -> LastRecords:
    """Returns the last record of each item id, from ``generation.jsonl`` and from shards not yet merged.

    Raises CellFailure if a file cannot be read.
    """
    # shards first: records that are merged meanwhile are then in both, else in neither
    parts = [[*read_jsonl(path, RECORD)] for path in parts_of(cell.generation)]  # others may be writing
    found, usd = LastRecords(), 0.0
    for record in read_jsonl(cell.generation, RECORD, tell):
        found[record.item] = record
        usd += record.price or 0.0
    for record in (record for part in parts for record in part):
        before = found.get(record.item)
        # with another number of shards, the item may have belonged to another shard
        if before is None or before.time < record.time:
            found[record.item] = record
            usd += record.price or 0.0
    found.usd = usd
    return found


def merge_shards(cell: Cell, tell: Tell = tell_nobody) -> None:
    """Move the records of all shards into the files of the cell. No other process may write these records.

    Raises CellFailure if a file cannot be read or the disk is full.
    """
    # fingerprints first, because records refer to them
    for path, reader in ((cell.fingerprints, fp.KEPT), (cell.generation, RECORD)):
        if parts := parts_of(path):
            take_in(path, parts, reader, tell)
    for folder in [*(cell.folder / FOLDER).glob("*"), cell.folder / FOLDER]:
        with contextlib.suppress(OSError):  # missing, or not empty
            folder.rmdir()


def spent_since(cell: Cell, start: float) -> float:
    """Returns the known cost in USD of the requests of ``cell`` since ``start`` (seconds since 1970)."""
    begin = _time(start)
    return sum(one.price or 0.0 for one in read_jsonl(cell.generation, RECORD) if one.time >= begin)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def whole_image(path: Path, record: Record, mend: bool = False) -> bytes | None:
    """Returns the bytes of the image of an ``ok`` ``record`` as they were saved; None if missing or changed.

    A process killed before the image got its final name ``path`` leaves it under a temporary name. With
    ``mend``, such a file is renamed. Raises OSError if the image cannot be read.
    """
    for place in (lambda: path, lambda: part_path(path)):  # evaluated only if needed
        data = images.bytes_of_file(place())
        if data is not None and hashlib.sha256(data).hexdigest() == record.image_sha256:
            if mend and place() != path:
                commit_part(path)
            return data
    return None


def is_as_recorded(path: Path, record: Record) -> bool:
    """Returns whether the image at ``path`` is not newer than its ``ok`` record. Does not read the image."""
    try:
        found, saved = path.stat(), datetime.fromisoformat(record.time).timestamp()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0 and found.st_mtime <= saved + _CLOCKS_DIFFER


class RecordWriter:
    """Saves each outcome of a cell or ``shard``: image, then record, then the final name of the image.

    The images get their final names in :meth:`commit`, which first makes all records so far durable, in one
    step for all threads. Even after a power cut, no image is without a record.
    """

    def __init__(self, cell: Cell, fingerprint: str, shard: Shard | None = None) -> None:
        self._cell, self._fingerprint = cell, fingerprint
        if shard is None:
            merge_shards(cell)
        self._file = own_file(cell.generation, shard)
        self._writer = JsonlWriter(self._file)
        self._inputs = InputCopies(cell)
        self._saving, self._committing = threading.Lock(), threading.Lock()
        self._saved: list[tuple[Path, bool]] = []
        self._known_folders: set[Path] = set()
        self._failure: Exception | None = None
        self._bases = bases(cell)

    def keep_inputs(self, item: Item) -> None:
        """Copy the model's input images of ``item`` while they are available. Thread-safe."""
        self._inputs.of(item)

    def save(self, item: Item, record: Record, image: EncodedImage | None = None) -> None:
        """Save the outcome of ``item``, with its image, or with a placeholder for a missing image.

        Adds the fingerprint, the time, the inputs and the image's properties to ``record``. Deletes results
        that were computed from another image of the item. Thread-safe. Raises CellFailure if the disk is
        full.
        """
        sha256, modified = None, 0
        if image:
            modified = write_part(item.path, image.data)
            sha256 = hashlib.sha256(image.data).hexdigest()
        now = (sha256, record.source != "")
        with self._saving:
            for folder, basis in list(self._bases.items()):
                # a result that does not include the item (a smaller limit) stays
                if basis is None or basis.get(item.id, now) != now:
                    say(f"{self._cell.key}: the result in {folder} is deleted: {item.id} has changed")
                    forget(self._cell, folder)
                    del self._bases[folder]
        made = image if record.status == OK else None
        record = replace(
            record,
            seconds=round(record.seconds, 4),
            fingerprint=self._fingerprint,
            time=_time(time.time()),
            placeholder=bool(image and not made),
            image_sha256=sha256 if made else None,
            size=made and made.size,
            flat=made and made.flat,
            inputs=self._inputs.of(item) or None,
        )
        self._writer.append(record.as_object())
        with self._saving:
            self._saved.append((item.path, image is not None))
        if made and sha256:
            keep_thumbnail(self._cell, sha256, made.thumbnail, modified)

    def commit(self) -> None:
        """Make everything saved so far durable, then give the images their final names.

        If an item has no new image, an old image or placeholder of it is deleted. Raises CellFailure if the
        disk is full or the cell's folder was removed.
        """
        with self._committing:
            if self._failure:
                raise self._failure
            with self._saving:
                saved, self._saved = self._saved, []
            try:
                if saved:
                    self._make_durable({path.parent for path, has_image in saved if has_image})
                for path, has_image in saved:
                    if has_image:
                        commit_part(path)
                    else:
                        path.unlink(missing_ok=True)
            except Exception as error:
                self._failure = error
                if isinstance(error, FileNotFoundError):
                    self._failure = CellFailure(
                        f"{self._cell.folder} was removed, or files in it, while this run wrote there; the same "
                        "command continues with the rest"
                    )
                raise self._failure from None

    def _make_durable(self, folders: set[Path]) -> None:
        """Make all records so far and the names of the files in ``folders`` durable."""
        if not self._writer.is_there:
            raise FileNotFoundError
        self._writer.sync()
        for folder in {*folders, self._file.parent} - self._known_folders:
            # the folder and its parents may be new
            depth = len(folder.relative_to(output_root()).parts)
            folders = folders.union((folder, *folder.parents[: depth + 1]))
        for folder in folders:
            sync_folder(folder)
        self._known_folders |= folders

    def close(self) -> None:
        """Commit for the last time and close the files."""
        try:
            self.commit()
        finally:
            self._writer.close()
