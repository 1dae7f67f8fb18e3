"""``generation.jsonl``: reading the last word on every item, and saving outcomes so that neither ``kill -9`` nor a
power cut loses one."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from imageevalkit import images
from imageevalkit.api.money import Bill
from imageevalkit.atomic import commit_part, part_path, sync_folder, write_part
from imageevalkit.cell import Cell, output_root
from imageevalkit.cell.items import Item
from imageevalkit.cell.kept_twice import KeptTwiceWriter, read_kept
from imageevalkit.cell.result_files import Basis, bases, forget
from imageevalkit.errors import CellFailure, say
from imageevalkit.generation.contract import Generated, GenerationError, name_of
from imageevalkit.json_values import Shape, is_number, is_text, is_time, one_of, or_null
from imageevalkit.jsonl import Tell, tell_nobody
from imageevalkit.secrets import one_line

OK, REFUSED, FAILED = "ok", "refused", "failed"


RECORD = Shape(
    must={"item": is_text, "status": one_of(OK, REFUSED, FAILED)},
    may={
        "fingerprint": is_text,
        "image_sha256": or_null(is_text),
        "error": or_null(lambda error: not Shape({"class": is_text, "text": is_text}).problem(error)),
        "seconds": is_number,
        "price": or_null(is_number),
        "time": is_time,
    },
)


def last_records(cell: Cell, tell: Tell = tell_nobody) -> dict[str, dict[str, Any]]:
    """The last record of each item id in ``generation.jsonl``; lines that are none are told.

    Raises:
        CellFailure: the file cannot be read.
    """
    return {record["item"]: record for record in read_kept(cell.generation, RECORD, tell)}


def spent_since(cell: Cell, start: float) -> float:
    """USD that the requests of ``cell`` have cost since ``start`` (seconds since 1970), as far as it is known."""
    try:
        if cell.generation.stat().st_mtime < start:
            return 0.0
    except FileNotFoundError:
        return 0.0
    begin = _time(start)
    return sum(
        r.get("price") or 0.0 for r in read_kept(cell.generation, RECORD) if r.get("time", "") >= begin
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def is_corrupt(record: Mapping[str, Any]) -> bool:
    """Whether ``record`` tells of a file made elsewhere that is no whole image; it was not taken."""
    error = record.get("error") or {}
    return bool(record.get("source")) and error.get("class") == images.CorruptImage.__name__


def image_is_intact(record: Mapping[str, Any], path: Path, repair: bool = True) -> bool:
    """Whether the image of an ``ok`` record is on disk, byte for byte as it was saved.

    The record is written before the image gets its final name: a process killed between the two leaves the
    whole image under its temporary name, which is given the final name here (if ``repair``).
    """
    if path.is_file() and images.sha256_file(path) == record.get("image_sha256"):
        return True
    part = part_path(path)
    if part.is_file() and images.sha256_file(part) == record.get("image_sha256"):
        if repair:
            commit_part(path)
        return True
    return False


class OutcomeWriter:
    """Saves the outcome of each item of one cell: image first, then its record, then the image's final name.

    The final name waits for :meth:`commit`, which first makes durable what was recorded so far, in one go for all who
    have saved something meanwhile: after a power cut too, there is no image that no record tells of.
    """

    def __init__(self, cell: Cell, fingerprint: str) -> None:
        self._cell = cell
        self._fingerprint = fingerprint
        self._writer = KeptTwiceWriter(cell.generation, RECORD)
        self._saving, self._committing = threading.Lock(), threading.Lock()
        self._saved: list[tuple[Path, bool]] = []
        self._known_folders: set[Path] = set()
        self._failure: Exception | None = None
        self._bases: dict[Path, dict[str, Basis] | None] | None = None
        self._retiring = threading.Lock()

    def save_image(self, item: Item, generated: Generated, image: Encoded, seconds: float) -> None:
        """Save an ``ok`` outcome: ``image`` as :func:`encoded` gives it, ``seconds`` of wall time.

        Raises:
            CellFailure: the disk is full.
        """
        write_part(item.path, image.data)
        sha256 = hashlib.sha256(image.data).hexdigest()
        self._retire_results(item, Basis(sha256, True))
        self._record(
            item,
            OK,
            seconds,
            generated.attempts,
            seed_honoured=generated.seed_honoured,
            requested_size=generated.requested_size,
            size=image.size,
            flat=image.flat,
            image_sha256=sha256,
            **_billed(generated.bill),
            **({"extra": generated.extra} if generated.extra else {}),
        )

    def save_found(
        self, item: Item, data: bytes, facts: images.ImageFacts, origin: Mapping[str, Any]
    ) -> None:
        """Save an image made elsewhere, byte for byte: how, and with which seed, is not known.

        ``origin`` are fields that say where it was: ``source``, the file, and for a cell of it ``source_sha256`` and
        ``cell``, its index from 0.

        Raises:
            CellFailure: the disk is full.
        """
        write_part(item.path, data)
        sha256 = hashlib.sha256(data).hexdigest()
        self._retire_results(item, Basis(sha256, True))
        self._record(
            item,
            OK,
            0.0,
            0,
            seed=None,
            size=facts.size,
            flat=facts.flat,
            image_sha256=sha256,
            **origin,
        )

    def save_failure(
        self,
        item: Item,
        error: Exception,
        status: str,
        seconds: float,
        blank: tuple[int, int] | None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a ``refused`` or ``failed`` outcome; ``blank`` is the size of a white placeholder to leave, or None.

        ``origin`` as in :meth:`save_found`, of a place made elsewhere where an image should have been; of a file that
        is no image, ``source_sha256`` too.

        Raises:
            CellFailure: the disk is full.
        """
        placeholder = images.encode(Image.new("RGB", blank, "white"), item.path) if blank else None
        if placeholder is not None:
            write_part(item.path, placeholder)
        sha256 = hashlib.sha256(placeholder).hexdigest() if placeholder is not None else None
        self._retire_results(item, Basis(sha256, (origin or {}).get("source") != ""))
        attempts = error.attempts if isinstance(error, GenerationError) else 1
        self._record(
            item,
            status,
            seconds,
            0 if origin else attempts,
            placeholder=bool(blank),
            **_billed(error.bill if isinstance(error, GenerationError) else None),
            error={"class": name_of(error), "text": one_line(error)},
            **(origin or {}),
        )

    def commit(self) -> None:
        """Make durable all that has been saved so far, then give the images their final names.

        An image of other settings, or an older placeholder, does not stand for an item without one any longer.

        Raises:
            CellFailure: the disk is full, or the cell's folder was removed.
        """
        with self._committing:
            if self._failure:
                raise self._failure
            with self._saving:
                saved, self._saved = self._saved, []
            if not saved:
                return
            try:
                self._make_durable({path.parent for path, has_image in saved if has_image})
                for path, has_image in saved:
                    if has_image:
                        commit_part(path)
                    else:
                        path.unlink(missing_ok=True)
            except FileNotFoundError:
                self._failure = _removed(self._cell)
                raise self._failure from None
            except Exception as error:
                self._failure = error
                raise

    def _make_durable(self, folders: set[Path]) -> None:
        """All records so far, and the names of the files in ``folders``."""
        if not self._writer.is_there:
            raise _removed(self._cell)
        self._writer.sync()
        for folder in {*folders, self._cell.folder} - self._known_folders:
            # it, and those above it, may have been made just now
            depth = len(folder.relative_to(output_root()).parts)
            folders = folders.union((folder, *folder.parents[: depth + 1]))
        for folder in folders:
            sync_folder(folder)
        self._known_folders |= folders

    def _retire_results(self, item: Item, now: Basis) -> None:
        """Remove the results that rest on another image of ``item`` than there is ``now``.

        Those that tell nothing of it, as of a run with a smaller limit, and those of the same image stand.
        """
        with self._retiring:  # images are stored by several threads
            if self._bases is None:
                self._bases = bases(self._cell)
            for folder, basis in list(self._bases.items()):
                if basis is None or basis.get(item.id, now) != now:
                    say(f"{self._cell.key}: the result in {folder} goes: {item.id} is not what it was")
                    forget(self._cell, folder)
                    del self._bases[folder]

    def _record(self, item: Item, status: str, seconds: float, attempts: int, **more: Any) -> None:
        prompt = item.prompt if item.prompt is not None else _texts(item)
        self._writer.append(
            {
                "item": item.id,
                "path": item.path.relative_to(self._cell.folder).as_posix(),
                "status": status,
                "prompt": prompt,
                "prompt_sha256": item.prompt_sha256,
                "seed": item.seed,
                "seconds": round(seconds, 4),
                "attempts": attempts,
                "fingerprint": self._fingerprint,
                "time": _time(time.time()),
                **_DEFAULTS,
                **more,
            }
        )
        with self._saving:
            self._saved.append((item.path, status == OK or bool(more.get("placeholder"))))

    def close(self) -> None:
        """:meth:`commit`, for the last time."""
        try:
            self.commit()
        finally:
            self._writer.close()


def _removed(cell: Cell) -> CellFailure:
    return CellFailure(
        f"{cell.folder} was removed, or files in it, while this run wrote there; the same command goes on with what "
        "is left"
    )


_DEFAULTS: dict[str, Any] = {
    "placeholder": False,
    "seed_honoured": None,
    "requested_size": None,
    "size": None,
    "flat": None,
    "image_sha256": None,
    "error": None,
    "tokens": None,
    "price": None,
    "maybe_billed": 0,
}


def _billed(bill: Bill | None) -> dict[str, Any]:
    """What the requests of an item cost, as a record tells it: ``price`` in USD, None where it is not known."""
    if bill is None:
        return {}
    return {"tokens": bill.tokens or None, "price": bill.cost, "maybe_billed": bill.maybe_billed}


def _texts(item: Item) -> str:
    return " ".join(part for part in item.input_list or [] if isinstance(part, str))


class Encoded(NamedTuple):
    """``data`` as it goes to disk; ``size`` is (width, height), ``flat``: one single colour."""

    data: bytes
    size: tuple[int, int]
    flat: bool


def encoded(generated: Generated, path: Path) -> Encoded:
    """What to store at ``path``.

    A server's PNG stays as it came. Where a benchmark asks for JPEG everything is encoded here, a server's
    JPEG too: its quality is part of score parity, and must not depend on who made the image.

    Raises:
        images.CorruptImage: the bytes do not decode. Pillow's own errors for a picture it cannot encode.
    """
    if not isinstance(generated.image, bytes):
        return _encoded_anew(generated.image, path)
    picture = images.opened(generated.image) if generated.proven else images.decode(generated.image)
    with images.in_turn(picture):
        if picture.format == images.format_of(path) == "PNG" and picture.mode == "RGB":
            return Encoded(generated.image, picture.size, images.is_flat_file(generated.image))
        return _encoded_anew(picture, path)


def _encoded_anew(picture: Image.Image, path: Path) -> Encoded:
    return Encoded(images.encode(picture, path), picture.size, images.is_flat(picture))
