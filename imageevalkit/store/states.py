"""The state of each item of a cell: generation, evaluation and dry runs all use this survey."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from imageevalkit.common import images
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.machine import available_cores
from imageevalkit.store import fingerprint as fp
from imageevalkit.store import jsonl
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import Tell, tell_nobody
from imageevalkit.store.records import (
    BLANK,
    CORRUPT,
    FAILED,
    GENERATED,
    OK,
    RECORD,
    REFUSED,
    Record,
    Status,
    is_as_recorded,
    last_records,
    merge_shards,
    whole_image,
)
from imageevalkit.store.shards import Shard

_AT_ONCE = 64  # images per task of a thread pool: a thread checks them before it takes the next task

Step = Literal["reuse", "refused", "make", "repair", "stale"]
"""The action of generation for an item.

| step | the image |
|---|---|
| ``reuse`` | is intact and of the present settings |
| ``make`` | is missing and has never been generated, or generation failed |
| ``repair`` | was generated, and is now missing, truncated or altered |
| ``refused`` | was refused; generated only with ``--retry_refused`` |
| ``stale`` | is of other settings; generated only with ``--overwrite`` |
"""


@dataclass(frozen=True)
class ImageState:
    """The state of one item. ``reason`` explains a status other than ``generated``.

    ``mismatch`` says how ``record`` differs from the requested settings; empty if it does not, or without
    settings. ``sha256`` is the hash of the file; ``sha256``, ``plain`` and ``flat`` (see
    :class:`imageevalkit.benchmark.question.Picture`) are set if the survey was asked for pixels.
    """

    item: Item
    status: Status
    record: Record | None = None
    reason: str = ""
    mismatch: str = ""
    sha256: str = ""
    plain: bool = True
    flat: bool = False

    @property
    def path(self) -> Path:
        """The path of the image."""
        return self.item.path

    @property
    def made_here(self) -> bool:
        """Whether this toolkit generated the image."""
        return self.record is not None and not self.record.source

    @property
    def attempted(self) -> bool:
        """False if the image was never attempted here and never imported."""
        return self.status != FAILED if self.record is None else self.record.source != ""

    @cached_property
    def step(self) -> Step:
        """The action of generation for the item."""
        if self.status == GENERATED or (self.record is None and self.status != FAILED):
            return "stale" if self.mismatch else "reuse"
        if self.status == REFUSED and not self.mismatch:
            return "refused"
        return "repair" if self.record and self.record.status == OK else "make"


def steps_to_make(overwrite: bool, retry_refused: bool) -> list[Step]:
    """Returns the steps whose items are generated; ``stale`` only with ``overwrite``."""
    chosen: dict[Step, bool] = {"make": True, "repair": True, "stale": overwrite, "refused": retry_refused}
    return [step for step, is_asked in chosen.items() if is_asked]


@dataclass(frozen=True)
class Survey:
    """The states of the items of a cell by id, in the benchmark's order.

    ``usd`` is the known cost of all requests of the cell.
    """

    states: Mapping[str, ImageState]
    usd: float = 0.0

    @cached_property
    def counts(self) -> Counter[Step]:
        """The number of items of each step."""
        return Counter(state.step for state in self.states.values())

    def of(self, *steps: Step) -> list[Item]:
        """Returns the items with one of ``steps``."""
        return [state.item for state in self.states.values() if state.step in steps]

    def to_make(self, overwrite: bool, retry_refused: bool) -> list[Item]:
        """Returns the items left to generate; stale ones only with ``overwrite``."""
        return self.of(*steps_to_make(overwrite, retry_refused))

    def of_shard(self, shard: Shard) -> Survey:
        """Returns the survey of the shard's items only."""
        return Survey({item: state for item, state in self.states.items() if shard.has(item)}, self.usd)

    def explain_stale(self) -> str:
        """Returns ``"guidance_scale 4.0 → 5.0: 553 images are stale"``; reasons joined by semicolons."""
        if not self.counts["stale"]:
            return ""
        counts = Counter(state.mismatch for state in self.states.values() if state.step == "stale")
        return "; ".join(
            f"{reason}: {n} image{'s are' if n > 1 else ' is'} stale" for reason, n in counts.most_common()
        )


def survey(
    cell: Cell,
    items: Sequence[Item],
    settings: Mapping[str, Any] | None = None,
    *,
    mend: bool = False,
    pixels: bool = False,
    tolerant: bool = False,
    quick: bool = False,
    shard: Shard | None = None,
    tell: Tell = tell_nobody,
) -> Survey:
    """Compares the images of ``items`` on disk with their records and returns the state of each item.

    Args:
        settings: the requested settings; None accepts any.
        mend: finish interrupted renames and merge the records of shards; if False, no file is changed.
        pixels: also compute the properties of the image for a judge; an image without a record is decoded.
        tolerant: an image that cannot be read is corrupt instead of an error.
        quick: do not read an image that is not newer than its record.
        shard: check only the shard's items; the states of other items come from the records.
        tell: receives a line for each invalid record.

    Raises:
        CellFailure: a file of the cell cannot be read. With ``tolerant``, and for an image without a record
            if ``pixels`` is set, an unreadable image is corrupt instead.
    """
    if not cell.folder.exists():
        return Survey({item.id: ImageState(item, FAILED, reason="never generated") for item in items})
    if mend and shard is None:
        merge_shards(cell, tell)
    records = last_records(cell, tell)
    known = fp.known(cell.fingerprints, tell) if settings is not None else {}
    key = fp.fingerprint(settings or {})

    def mismatch(item: Item, record: Record | None) -> str:
        if settings is None:
            return ""
        if record is None:
            return "no record describes the generation of the image"
        if record.fingerprint != key:
            old = known.get(record.fingerprint)
            return fp.explain(old, settings) if old else "model settings unknown"
        if record.seed != item.seed:
            return f"seed {record.seed} → {item.seed}"
        if record.prompt_sha256 == item.prompt_sha256:
            return ""
        return "the rewritten prompt changed" if item.rewriting else "the benchmark's prompt changed"

    def state(item: Item) -> ImageState:
        record = records.get(item.id)
        why = mismatch(item, record)
        if shard and not shard.has(item.id):
            return ImageState(
                item, record.outcome if record else FAILED, record, mismatch=why if record else ""
            )
        try:
            if quick and record and record.status == OK and is_as_recorded(item.path, record):
                return ImageState(item, GENERATED, record, mismatch=why)
            return _state(item, record, why, mend, pixels)
        except images.CorruptImage as error:
            reason = f"the image does not decode ({error})"
        except OSError as error:
            # else generation would treat the image as lost and pay for another
            if not tolerant and (record or not pixels):
                raise CellFailure(f"{item.path} cannot be read: {error.strerror}") from None
            reason = f"the image cannot be read: {error.strerror}"
        return ImageState(item, CORRUPT, record, reason, why)

    # hashing releases the interpreter lock, so threads read and hash in parallel
    parts = [items[n : n + _AT_ONCE] for n in range(0, len(items), _AT_ONCE)]
    found = images.map_threads(lambda part: [*map(state, part)], parts, min(8, available_cores()))
    return Survey({one.item.id: one for part in found for one in part}, records.usd)


def _state(item: Item, record: Record | None, mismatch: str, mend: bool, pixels: bool) -> ImageState:
    """Returns the state of ``item``. Raises CorruptImage if the image does not decode, or OSError."""
    known = partial(ImageState, item, record=record, mismatch=mismatch)
    if record is not None and record.status != OK:
        status, reason = record.outcome, record.reason
        if status != CORRUPT and record.error:
            reason = f"{record.error['class']}: {reason}"
        if status == BLANK and item.path.is_file():
            return known(BLANK, reason=reason, sha256=images.sha256_file(item.path))
        return known(FAILED if status == BLANK else status, reason=reason)
    if record is None and not item.path.exists():
        return known(FAILED, reason="never generated")
    if record is None and not pixels:
        return known(GENERATED)
    data = whole_image(item.path, record, mend) if record else item.path.read_bytes()
    if data is None:
        lost = "the file was changed or truncated" if item.path.exists() else "the image is missing"
        return known(CORRUPT, reason=f"{lost} since it was generated")
    return _generated(item, record, mismatch, data) if pixels else known(GENERATED)


def _generated(item: Item, record: Record | None, mismatch: str, data: bytes) -> ImageState:
    """Returns the state of the generated image ``data``. Raises CorruptImage if it does not decode."""
    sha256 = (record and record.image_sha256) or hashlib.sha256(data).hexdigest()
    flat = record.flat if record else None
    if flat is None:  # otherwise these bytes were checked when they were saved
        flat = images.facts(data).flat
    return ImageState(item, GENERATED, record, "", mismatch, sha256, images.is_plain(data), flat)


class StoredImages:
    """The images that another process is storing in a cell. Changes no file.

    Only images of ``items`` (with the prompts that the model receives) and of the settings ``fingerprint``
    count.
    """

    def __init__(self, cell: Cell, items: Sequence[Item], fingerprint: str) -> None:
        self._items = {item.id: item for item in items}
        self._fingerprint = fingerprint
        self._records = jsonl.JsonlTail(cell.generation, RECORD)
        self._awaited: dict[str, tuple[Record, Any]] = {}

    def new(self, most: int) -> list[ImageState]:
        """Returns the states of at most ``most`` images stored since the last call."""
        for record in self._records.read():
            item = self._items.get(record.item)
            self._awaited.pop(record.item, None)
            made = (record.status, record.fingerprint, record.seed, record.prompt_sha256)
            if item and made == (OK, self._fingerprint, item.seed, item.prompt_sha256):
                self._awaited[record.item] = record, None
        found = []
        for name, (record, seen) in list(self._awaited.items()):
            item = self._items[name]
            # the record is written before the image gets its final name
            with contextlib.suppress(OSError, images.CorruptImage):
                about = item.path.stat()
                if seen != (mark := (about.st_ino, about.st_size, about.st_mtime_ns)):
                    self._awaited[name] = record, mark
                    data = item.path.read_bytes()
                    if hashlib.sha256(data).hexdigest() == record.image_sha256:
                        del self._awaited[name]
                        found.append(_generated(item, record, "", data))
            if len(found) == most:
                break
        return found


def survey_images(cell: Cell, items: Sequence[Item], mend: bool = True) -> Survey:
    """Returns the state of every item for evaluation. Raises CellFailure: images have different settings."""
    found = survey(cell, items, mend=mend, pixels=True, tolerant=True, tell=say)
    records = (state.record for state in found.states.values())
    prints = Counter(record.fingerprint for record in records if record and record.status == OK)
    if len(prints) > 1:
        known = fp.known(cell.fingerprints, say)
        (first, n), (second, m) = prints.most_common(2)
        change = fp.explain(known.get(second, {}), known.get(first, {}))
        raise CellFailure(
            f"{cell.key}: images were generated with {len(prints)} different settings ({change}: {m} and {n} images); "
            "run the generation again with --overwrite"
        )
    return found


def scorable(states: Mapping[str, ImageState], blank: bool) -> dict[str, ImageState]:
    """Returns the ``states`` with an image to judge. ``blank``: placeholders of missing images count too."""
    statuses = (GENERATED, BLANK) if blank else (GENERATED,)
    return {item: state for item, state in states.items() if state.status in statuses}


def to_come(item: Item) -> ImageState:
    """Returns the state of an image that does not exist yet, with a hash unlike any other."""
    return ImageState(item, GENERATED, sha256=f"to come: {item.id}")
