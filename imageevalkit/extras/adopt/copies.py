"""Copies the images of one cell that were made elsewhere, and records the source of each image."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit.benchmark.image_files import Place
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.grids import Grid, is_black
from imageevalkit.common.images import (
    CorruptImage,
    EncodedImage,
    decode,
    facts,
    map_threads,
    opened,
    sha256_file,
    stored_as,
)
from imageevalkit.common.machine import available_cores
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import some
from imageevalkit.extras.adopt.sources import Places
from imageevalkit.jobs.plan import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.jobs.progress import Progress, ProgressWriter
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.records import (
    CORRUPT,
    FAILED,
    GENERATED,
    OK,
    Record,
    RecordWriter,
    last_records,
    whole_image,
)
from imageevalkit.store.states import ImageState, survey, to_come

STAGE = "adopt"
# The fastest compressed setting of Pillow for pictures: a third less time than the defaults, at the same
# size. (Flat graphics become three times as large, but stay small.)
FAST_PNG = {"compress_level": 1, "compress_type": zlib.Z_RLE}
_MOST_THREADS = 8
_COMMIT_EVERY = 64  # images; a power cut loses only about this many


def adopt_cell(
    cell: Cell,
    items: Sequence[Item],
    source: Path,
    places: Places,
    progress: ProgressWriter,
    overwrite: bool = False,
    log: Callable[[str], None] = say,
) -> Outcome:
    """Copies the images at ``places`` (below ``source``) to ``cell``. Skips images that are already there.

    Files are copied byte for byte, parts of a grid as PNG. An item is recorded as failed without an image,
    with black padding as its part of a grid, or with an incomplete image file. Raises CellFailure as
    :func:`check_cell`, or if the disk is full.
    """
    key = fp.remember(cell.fingerprints, check_cell(cell, items, source, places, overwrite), {})
    # records of older versions have no "flat" and may be about files that are no images: these are read again
    known = [one for one in last_records(cell, log).values() if one.status != OK or one.flat is not None]
    before = {record.item: record for record in known if record.fingerprint == key}
    copied, uneven, lost = 0, 0, dict[str, Record]()
    with (
        contextlib.closing(RecordWriter(cell, key)) as writer,
        contextlib.closing(_taken(items, source, places, before, writer)) as taken,
    ):
        for n, record in enumerate(taken, 1):
            if record.status == OK:
                copied += record is not before.get(record.item)
                uneven += bool(record.uneven)
            else:
                lost[record.item] = record
            if n % _COMMIT_EVERY == 0:
                writer.commit()
            progress.report(Progress(cell.key, STAGE, n, len(items), n - copied, len(lost)), n == len(items))
    log(f"{cell.key}: {copied} images copied from {source}, {len(items) - len(lost) - copied} were here")
    problems = []
    for word, what in (("missing", "not available"), ("corrupt", "corrupt and not copied")):
        records = [lost[item.id] for item in items if item.id in lost]
        records = [one for one in records if (one.outcome == CORRUPT) == (word == "corrupt")]
        for record in records:
            log(f"{word}: {record.item}: {record.reason}")
        if records:
            names = ", ".join(one.path.removeprefix("images/") for one in records[:3])
            more = ", …" if len(records) > 3 else ""
            first = f"(the first: {records[0].reason})"
            problems.append(f"{len(records)} of {len(items)} images are {what}: {names}{more} {first}")
    doubt = f"; {uneven} are of grids that do not divide evenly: is the grid right?" if uneven else ""
    summary = "; ".join(problems) or f"{len(items)} images of {source}"
    return Outcome(INCOMPLETE if problems else COMPLETE, f"{summary}{doubt}")


def check_cell(
    cell: Cell, items: Sequence[Item], source: Path, places: Places, overwrite: bool
) -> dict[str, Any]:
    """Returns the settings of ``cell`` with the images at ``places``.

    Raises CellFailure if there is no image, or if the cell has other images that may not be replaced."""
    if not any(place.path for place in places.values()):
        raise CellFailure(_why_nothing(cell, items, source, places))
    # Takes the place of a model's settings: images from two sources, or cut in two ways, never share a score.
    settings = {"images": "made elsewhere", "source": str(source.absolute())}
    if grids := sorted({str(place.grid) for place in places.values() if place.grid}):
        settings["grid"] = "; ".join(grids)
    known, records = fp.known(cell.fingerprints), last_records(cell)
    unrecorded = sum(item.id not in records and item.path.exists() for item in items)
    there = f"{unrecorded} images that were put there by hand" if unrecorded else ""
    for record in records.values():
        before = known.get(record.fingerprint, {})
        if record.status == OK and before != settings:
            if "source" not in before:
                raise CellFailure(
                    f"{cell.key} holds images that were generated here; give the images of --images a model name of "
                    "their own"
                )
            cut = f" cut as grid={before['grid']}" if "grid" in before else ""
            there = f"the images of {before['source']}{cut}"
    if there and not overwrite:
        raise CellFailure(
            f"{cell.key} holds {there}; --overwrite replaces them, another model name keeps both"
        )
    return settings


def _why_nothing(cell: Cell, items: Sequence[Item], source: Path, places: Places) -> str:
    if places:
        return next(iter(places.values())).reason
    if source.is_file():
        return f"no prompt of {cell.benchmark} is in {source}"
    names = [str(item.path.relative_to(cell.folder / "images").with_suffix("")) for item in items]
    return (
        f"no image of {cell.benchmark} is in {source}: rename the files; the items of this run are "
        f"{some(names, ', ', most=3)}"
    )


_Copy = tuple[Item, Record, EncodedImage | None]
"""An item, its record (the old record if nothing is new), and its image if it must be saved."""


def _taken(
    items: Sequence[Item],
    source: Path,
    places: Places,
    before: Mapping[str, Record],
    writer: RecordWriter,
) -> Generator[Record, None, None]:
    """Yields the record of each item, in the order of the files. ``writer`` saves new images and records.

    A file with a grid is read once for all its items."""
    nothing, files = list[_Copy](), defaultdict[tuple[Path, Grid | None], list[Item]](list)
    for item in items:
        place = places.get(item.id) or Place(reason=f"there is no image of it in {source.absolute()}")
        if place.path:
            files[place.path, place.grid].append(item)
            continue
        # the empty source marks a missing image, which a survey distinguishes from a failed one
        record = _lost(replace(Record.of(item, OK), source=""), "ItemFailed", place.reason)
        old = before.get(item.id)
        is_known = old and (old.status, old.reason, old.source) == (FAILED, record.reason, "")
        nothing.append((item, old if old and is_known else record, None))

    def save(copies: Sequence[_Copy]) -> list[Record]:
        for item, record, image in copies:
            if record is not before.get(item.id):
                writer.save(item, record, image)
        return [record for _, record, _ in copies]

    # threads, because reading, decoding, saving and thumbnails of several files can run in parallel
    threads = min(_MOST_THREADS, available_cores())
    saved = map_threads(lambda file: save(_read(*file[0], file[1], places, before)), files.items(), threads)
    yield from save(nothing)
    for records in saved:
        yield from records


def _read(
    path: Path, grid: Grid | None, items: Sequence[Item], places: Places, before: Mapping[str, Record]
) -> list[_Copy]:
    """Returns the images of ``items`` from the file ``path``: its bytes, or the grid's parts as RGB PNG.

    Items whose image is already copied get their old record, without decoding."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CellFailure(f"{path} cannot be read: {error.strerror}") from None
    sha256 = hashlib.sha256(data).hexdigest()
    copies, fresh = list[_Copy](), list[tuple[Item, Record]]()
    for item in items:
        old, n = before.get(item.id), places[item.id].index
        is_there = old and (old.status != OK or whole_image(item.path, old, mend=True))
        if old and is_there and is_of(old, path, n, sha256) and not _is_cut_anew(old, grid):
            copies.append((item, old, None))
        else:
            record = replace(Record.of(item, OK), source=str(path.absolute()), source_sha256=sha256, cell=n)
            fresh.append((item, record))
    try:
        if fresh and not grid:
            image = facts(data)
            # the seed of an image made elsewhere is unknown
            copies += [
                (item, replace(record, seed=None, source_sha256=None), image) for item, record in fresh
            ]
        elif fresh and grid:
            whole = decode(data)
            cells = grid.split(whole)
            is_uneven = not grid.whole and (whole.width % grid.cols or whole.height % grid.rows)
            fresh = [(item, replace(record, uneven=bool(is_uneven) or None)) for item, record in fresh]
            copies += [(item, *_cell(record, cells[record.cell or 0], grid)) for item, record in fresh]
    except ValueError as error:
        copies += [(item, _lost(record, "ItemFailed", f"{path}: {error}"), None) for item, record in fresh]
    except CorruptImage as error:
        text = f"{path} does not decode ({error})"
        copies += [(item, _lost(record, CorruptImage.__name__, text), None) for item, record in fresh]
    return copies


def is_of(record: Record, path: Path, n: int | None, sha256: str) -> bool:
    """Whether ``record`` is about part ``n`` (None: all) of the file ``path`` with the hash ``sha256``."""
    original = record.source_sha256 or record.image_sha256
    return (record.source, record.cell, original) == (str(path.absolute()), n, sha256)


def _is_cut_anew(record: Record, grid: Grid | None) -> bool:
    """Whether an older version took this part of a grid for padding, or cut it without all its pixels."""
    return bool(grid and grid.whole and (record.outcome == FAILED or record.uneven))


def images_to_come(cell: Cell, items: Sequence[Item], places: Places) -> dict[str, ImageState]:
    """Returns the states of the images after the job, by item id.

    For new images only the file header is checked, so truncated files and black parts count too."""
    sha256_of = functools.cache(sha256_file)
    states = {}
    for state in survey(cell, items, pixels=True, tolerant=True).states.values():
        item, place, record = state.item, places.get(state.item.id), state.record
        if place is None or place.path is None:
            continue
        is_known = record and is_of(record, place.path, place.index, sha256_of(place.path))
        is_known = is_known and record and not _is_cut_anew(record, place.grid)
        if is_known and state.status == GENERATED:
            states[item.id] = state
        elif not (is_known and record and record.status != OK) and (place.grid or _is_image(place.path)):
            states[item.id] = to_come(item)
    return states


def _is_image(path: Path) -> bool:
    with contextlib.suppress(OSError, CorruptImage), opened(path):
        return True
    return False


def _lost(record: Record, kind: str, text: str) -> Record:
    return replace(record, status=FAILED, error={"class": kind, "text": one_line(text)})


def _cell(record: Record, cell: Image.Image, grid: Grid) -> tuple[Record, EncodedImage | None]:
    if not grid.whole and is_black(cell):
        place = f"cell {(record.cell or 0) + 1} of {record.source}"
        text = f"{place} is black: the official padding for a missing image"
        return _lost(record, "ItemFailed", text), None
    buffer = io.BytesIO()
    cell.save(buffer, "PNG", **FAST_PNG)
    return replace(record, seed=None), stored_as(buffer.getvalue(), cell)
