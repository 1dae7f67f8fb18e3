"""``generation.jsonl``: the last word on every item, saved so that neither ``kill -9`` nor a power cut loses one."""

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

from imageevalkit import images
from imageevalkit.atomic import commit_part, part_path, sync_folder, write_part
from imageevalkit.cell import Cell, output_root
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import Item, Rewriting
from imageevalkit.cell.jsonl import (
    JsonlWriter,
    Shape,
    Tell,
    Time,
    copy_of,
    mend,
    read_kept,
    take_in,
    tell_nobody,
)
from imageevalkit.cell.pictures import Input, InputCopies, keep_thumbnail
from imageevalkit.cell.results import bases, forget
from imageevalkit.cell.shards import FOLDER, Shard, own_file, parts_of
from imageevalkit.errors import CellFailure, say
from imageevalkit.images import EncodedImage

OK: Final = "ok"
GENERATED: Final = "generated"
REFUSED: Final = "refused"
FAILED: Final = "failed"
BLANK: Final = "blank"
CORRUPT: Final = "corrupt"
_CLOCKS_DIFFER = 2.0  # seconds, of a file server and a node
Status = Literal["generated", "refused", "failed", "blank", "corrupt"]
"""What became of an item, in the words of :class:`imageevalkit.cell.results.Coverage`."""

Failure = TypedDict("Failure", {"class": str, "text": str})
"""Why there is no image: the class of the error, and one line."""


# not frozen: 27 fields would take three times as long to set, for each of 50,000 records
@dataclass(slots=True)
class Record:
    """One attempt at an item: a line of ``generation.jsonl``, of which the last one counts.

    ``path`` is below the cell; ``prompt`` are all texts that the model was shown, ``seed`` is None where nobody knows
    it. ``seconds`` is wall time. ``fingerprint`` is that of the settings (:mod:`imageevalkit.cell.fingerprint`),
    ``time`` when it was written (ISO 8601). ``placeholder``: a white image was left. Sizes are (width, height) in
    pixels, None for the model's default or for no image. ``price`` is in USD, None where it is not known;
    ``maybe_billed`` counts requests without a reply that are in it.

    ``inputs`` are the images that the model was shown, in their order; None: none, or it is of a version that kept no
    copies. ``rewriting``: what stands behind a ``prompt`` that is not the benchmark's own.

    Of images made elsewhere ``source`` is the file, empty where there was none, ``cell`` the index (from 0) in a file
    that holds several; ``uneven``: their grid did not divide its size. ``source_sha256`` is that of a file whose bytes
    are not the image's.
    """

    item: str
    status: Literal["ok", "refused", "failed"]
    path: str = ""
    prompt: str = ""
    prompt_sha256: str = ""
    seed: int | None = None
    seconds: float = 0.0
    attempts: int = 0
    fingerprint: str = ""
    time: Time = Time("")  # noqa: RUF009 - a string
    placeholder: bool = False
    seed_honoured: bool | None = None
    requested_size: tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    flat: bool | None = None
    image_sha256: str | None = None
    error: Failure | None = None
    tokens: Mapping[str, Any] | None = None
    price: float | None = None
    maybe_billed: int = 0
    extra: Mapping[str, Any] | None = None
    inputs: list[Input] | None = None
    rewriting: Rewriting | None = None
    source: str | None = None
    source_sha256: str | None = None
    cell: int | None = None
    uneven: bool | None = None

    @classmethod
    def of(cls, item: Item, status: Literal["ok", "refused", "failed"]) -> Record:
        """What is known of an attempt at ``item`` before anything is known of its outcome."""
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
        """The JSON object that stands for it."""
        parts = {name: getattr(self, name) for name in _FIELDS}
        return {name: part for name, part in parts.items() if part is not None or name not in _OPTIONAL}

    @property
    def outcome(self) -> Status:
        """What became of the item, by this record alone: what is on disk now may be something else."""
        if self.status == OK:
            return GENERATED
        if self.status == REFUSED:  # a placeholder beside it does not make the item blank
            return REFUSED
        if self.placeholder:
            return BLANK
        # a file made elsewhere that is no whole image was not taken
        kind = self.error["class"] if self.error else ""
        return CORRUPT if self.source and kind == images.CorruptImage.__name__ else FAILED

    @property
    def reason(self) -> str:
        """Why there is no image; empty where nothing tells."""
        return self.error["text"] if self.error else ""


OF_IMAGES = (Cell("", "").generation.name, copy_of(Cell("", "").generation).name, FOLDER)
"""What there is of a cell of whose images anything is on record: one of these, by name."""
RECORD = Shape.of(Record)
_FIELDS = [each.name for each in fields(Record)]
_OPTIONAL = {"extra", "inputs", "rewriting", "source", "source_sha256", "cell", "uneven"}


class LastRecords(dict[str, Record]):
    """By item id; ``usd`` is what all requests of the cell have cost, as far as it is known."""

    usd = 0.0


def last_records(cell: Cell, tell: Tell = tell_nobody) -> LastRecords:
    """The last record of each item id in ``generation.jsonl``, and in those of shards that have not been gathered.

    Raises CellFailure: a file cannot be read.
    """
    # first: what is gathered in between is then in both
    parts = [[*read_kept(path, RECORD)] for path in parts_of(cell.generation)]  # others may be writing
    found, usd = LastRecords(), 0.0
    for record in read_kept(cell.generation, RECORD, tell):
        found[record.item] = record
        usd += record.price or 0.0
    for record in (record for part in parts for record in part):
        before = found.get(record.item)
        # an item may have been another shard's, when there were fewer of them
        if before is None or before.time < record.time:
            found[record.item] = record
            usd += record.price or 0.0
    found.usd = usd
    return found


def mend_records(cell: Cell, shard: Shard | None = None, tell: Tell = tell_nobody) -> None:
    """Take back what only their copies have of the records of ``shard``, which nobody else may write; of the whole
    cell, with what shards have left. Raises CellFailure: a file cannot be read, or the disk is full."""
    # what a record names by its fingerprint comes first
    for path, shape in ((cell.fingerprints, fp.KEPT), (cell.generation, RECORD)):
        parts = parts_of(path) if shard is None else []
        if parts:
            take_in(path, parts, shape, tell)
        else:
            mend(own_file(path, shard), shape, tell)
    if shard is None:
        for folder in [*(cell.folder / FOLDER).glob("*"), cell.folder / FOLDER]:
            with contextlib.suppress(OSError):  # none is there, or it holds something else
                folder.rmdir()


def spent_since(cell: Cell, start: float) -> float:
    """USD that the requests of ``cell`` have cost since ``start`` (seconds since 1970), as far as it is known."""
    begin = _time(start)
    return sum(one.price or 0.0 for one in read_kept(cell.generation, RECORD) if one.time >= begin)


def _time(seconds: float) -> Time:
    return Time(datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds"))


def whole_image(path: Path, record: Record, mend: bool = False) -> bytes | None:
    """The bytes of the image of an ``ok`` ``record``, as they were saved; None where they are there no more.

    A process killed before the image got its final name ``path`` leaves it under the temporary one, from which it is
    renamed if ``mend``. Raises OSError: it cannot be read.
    """
    for place in (lambda: path, lambda: part_path(path)):  # of most images the second is not looked for
        data = images.bytes_of_file(place())
        if data is not None and hashlib.sha256(data).hexdigest() == record.image_sha256:
            if mend and place() != path:
                commit_part(path)
            return data
    return None


def is_as_recorded(path: Path, record: Record) -> bool:
    """True if the image at ``path`` has not been written since its ``ok`` record. Does not read the image."""
    try:
        found, saved = path.stat(), datetime.fromisoformat(record.time).timestamp()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0 and found.st_mtime <= saved + _CLOCKS_DIFFER


class RecordWriter:
    """Saves the outcome of each item of one cell, or of a ``shard`` of it: image first, then its record, then the
    image's final name.

    The final name waits for :meth:`commit`, which first makes durable what was recorded so far, in one go for all who
    have saved something meanwhile: after a power cut too, there is no image that no record tells of.
    """

    def __init__(self, cell: Cell, fingerprint: str, shard: Shard | None = None) -> None:
        self._cell, self._fingerprint = cell, fingerprint
        mend_records(cell, shard)
        self._file = own_file(cell.generation, shard)
        self._writer = JsonlWriter(self._file, RECORD)
        self._inputs = InputCopies(cell)
        self._saving, self._committing = threading.Lock(), threading.Lock()
        self._saved: list[tuple[Path, bool]] = []
        self._known_folders: set[Path] = set()
        self._failure: Exception | None = None
        self._bases = bases(cell)

    def keep_inputs(self, item: Item) -> None:
        """Copy the images that the model is shown of ``item`` while they are there. In any thread, as :meth:`save`."""
        self._inputs.of(item)

    def save(self, item: Item, record: Record, image: EncodedImage | None = None) -> None:
        """Save the outcome of ``item``; ``image`` is what was made, or the placeholder of what was not.

        The fingerprint, the time, the inputs and what is known of the image are added to ``record``. Results that rest
        on another image of the item are removed. May run in any thread. Raises CellFailure: the disk is full.
        """
        sha256, modified = None, 0
        if image:
            modified = write_part(item.path, image.data)
            sha256 = hashlib.sha256(image.data).hexdigest()
        now = (sha256, record.source != "")
        with self._saving:
            for folder, basis in list(self._bases.items()):
                # those that tell nothing of it, as of a run with a smaller limit, stand
                if basis is None or basis.get(item.id, now) != now:
                    say(f"{self._cell.key}: the result in {folder} goes: {item.id} is not what it was")
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
        """Make durable all that has been saved so far, then give the images their final names.

        An image of other settings, or an older placeholder, does not stand for an item without one any longer. Raises
        CellFailure: the disk is full, or the cell's folder was removed.
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
                        "command goes on with what is left"
                    )
                raise self._failure from None

    def _make_durable(self, folders: set[Path]) -> None:
        """All records so far, and the names of the files in ``folders``."""
        if not self._writer.is_there:
            raise FileNotFoundError
        self._writer.sync()
        for folder in {*folders, self._file.parent} - self._known_folders:
            # it, and those above it, may have been made just now
            depth = len(folder.relative_to(output_root()).parts)
            folders = folders.union((folder, *folder.parents[: depth + 1]))
        for folder in folders:
            sync_folder(folder)
        self._known_folders |= folders

    def close(self) -> None:
        """:meth:`commit`, for the last time."""
        try:
            self.commit()
        finally:
            self._writer.close()
