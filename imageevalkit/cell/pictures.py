"""Small copies that a cell keeps of pictures: thumbnails for the report, and the images that a model was shown.

So a report waits for no decoding, and needs no data of the benchmark, which may go.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import Any, TypedDict

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item, file_bytes
from imageevalkit.errors import CellFailure
from imageevalkit.images import FORMATS, CorruptImage, decode, reduced, thumbnail_of
from imageevalkit.machine import when_one_is_free

FOLDER = ".inputs"
# Half of a large screen, about 140 KB of a photo: what a whole edited image is compared with side by side.
_SIDE = 1024
_QUALITY = 80
THUMBNAILS = ".thumbnails"


def read_thumbnail(cell: Cell, sha256: str) -> bytes | None:
    """The thumbnail (WebP) that ``cell`` has of the image with this hash; None: none that is whole."""
    with contextlib.suppress(OSError):
        data = thumbnail_path(cell, sha256).read_bytes()
        # written without waiting for the disk: after a power cut some of it may be missing
        if data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") == len(data) - 8:
            return data
    return None


def keep_thumbnail(cell: Cell, sha256: str, thumbnail: bytes, modified: int) -> None:
    """``cell`` has this ``thumbnail`` of the image with this hash from now on.

    It gets the time at which the image's file was ``modified`` (``st_mtime_ns``). That it cannot be kept (the disk is
    full, the folder not ours) costs only time later.
    """
    if thumbnail:
        kept = thumbnail_path(cell, sha256)
        with contextlib.suppress(OSError, CellFailure):
            if not read_thumbnail(cell, sha256):
                write_atomic(kept, thumbnail, durably=False)
            os.utime(kept, ns=(modified, modified))


def thumbnail_path(cell: Cell, sha256: str) -> Path:
    """Where ``cell`` keeps the thumbnail of the image with this hash, if it does."""
    return cell.folder / THUMBNAILS / f"{sha256}.webp"


class Input(TypedDict):
    """An input image as a record names it: the hash of what it was (:attr:`Item.inputs`), and its copy.

    ``path`` of the copy is below the cell, ``copy_sha256`` the hash of that file; both are empty where none could be
    made.
    """

    sha256: str
    path: str
    copy_sha256: str


class InputCopies:
    """The copies in one cell, of each distinct image one."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._inputs = dict[str, Input]()
        # of many edits of one image one makes the copy, and those of other images do not wait for it
        self._locks = dict[str, threading.Lock]()

    def of(self, item: Item) -> list[Input]:
        """The input images of ``item`` in their order, each with a copy. In any thread; what is new takes CPU time.

        Raises CellFailure: the disk is full.
        """
        return [self._input(sha256, image) for sha256, image in item.inputs]

    def _input(self, sha256: str, image: Any) -> Input:
        with self._locks.setdefault(sha256, threading.Lock()):  # one call: no thread comes in between
            if sha256 not in self._inputs:
                name = f"{FOLDER}/{sha256}.webp"
                path = self._cell.folder / name
                data = _kept(path, image)
                copy = hashlib.sha256(data).hexdigest() if data else ""
                if data:
                    keep_thumbnail(self._cell, copy, thumbnail_of(data), path.stat().st_mtime_ns)
                self._inputs[sha256] = Input(sha256=sha256, path=name if copy else "", copy_sha256=copy)
            return self._inputs[sha256]


def _kept(path: Path, image: Any) -> bytes | None:
    """The copy of ``image`` at ``path``, made if it is not there.

    None: it cannot be had. Its file has gone, or holds what is no whole image; the place is not ours to write to.
    """
    # once more: another shard of the cell may be making the same copy, under the same temporary name
    return _kept_once(path, image) or _kept_once(path, image)


def _kept_once(path: Path, image: Any) -> bytes | None:
    with contextlib.suppress(OSError, CorruptImage):
        if path.is_file() and (kept := when_one_is_free(lambda: _whole(path))):
            return kept
        data = when_one_is_free(lambda: file_bytes(image))
        if data is None:
            copy = reduced(image, _SIDE, _QUALITY)
        else:
            # whatever format the dataset could open: from its file, as models may be decoding the image just now
            copy = reduced(data, _SIDE, _QUALITY, [*FORMATS, *filter(None, [image.format])])
        write_atomic(path, copy)
        return copy
    return None


def _whole(path: Path) -> bytes | None:
    """The image at ``path``; None: it is damaged."""
    data = path.read_bytes()
    with contextlib.suppress(CorruptImage):
        decode(data)
        return data
    return None
