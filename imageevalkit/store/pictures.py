"""Small copies of images in a cell: thumbnails for the report, and copies of the model's input images.

With them, the report decodes no images and needs no data of the benchmark.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import Any, TypedDict

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import FORMATS, CorruptImage, decode, reduced, thumbnail_of
from imageevalkit.common.machine import when_one_is_free
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, file_bytes

FOLDER = ".inputs"
# pixels: half of a large screen, about 140 KB for a photo; the report shows edited images side by side
_SIDE = 1024
_QUALITY = 80
THUMBNAILS = ".thumbnails"


def read_thumbnail(cell: Cell, sha256: str) -> bytes | None:
    """Returns the thumbnail (WebP) in ``cell`` of the image with this hash; None if missing or damaged."""
    with contextlib.suppress(OSError):
        data = thumbnail_path(cell, sha256).read_bytes()
        # thumbnails are written without fsync: after a power cut a file may be truncated
        if data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") == len(data) - 8:
            return data
    return None


def keep_thumbnail(cell: Cell, sha256: str, thumbnail: bytes, modified: int) -> None:
    """Save ``thumbnail`` of the image with this hash in ``cell``.

    The thumbnail gets the modification time of the image's file, ``modified`` (``st_mtime_ns``). A failure
    (disk full, no write permission) is ignored, because it only costs time later.
    """
    if thumbnail:
        kept = thumbnail_path(cell, sha256)
        with contextlib.suppress(OSError, CellFailure):
            if not read_thumbnail(cell, sha256):
                write_atomic(kept, thumbnail, durably=False)
            os.utime(kept, ns=(modified, modified))


def thumbnail_path(cell: Cell, sha256: str) -> Path:
    """Returns the path in ``cell`` for the thumbnail of the image with this hash."""
    return cell.folder / THUMBNAILS / f"{sha256}.webp"


class Input(TypedDict):
    """An input image in a record: the hash of the original (:attr:`Item.inputs`), and its copy.

    ``path`` of the copy is relative to the cell, ``copy_sha256`` is the copy's hash. Both are empty if there
    is no copy.
    """

    sha256: str
    path: str
    copy_sha256: str


class InputCopies:
    """The copies of input images in one cell, one for each distinct image."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._inputs = dict[str, Input]()
        # one thread copies an image that several items share; threads with other images do not wait
        self._locks = dict[str, threading.Lock]()

    def of(self, item: Item) -> list[Input]:
        """Returns the input images of ``item`` in order. Copies new ones (CPU time). Thread-safe.

        Raises CellFailure if the disk is full.
        """
        return [self._input(sha256, image) for sha256, image in item.inputs]

    def _input(self, sha256: str, image: Any) -> Input:
        with self._locks.setdefault(sha256, threading.Lock()):  # setdefault is atomic
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
    """Returns the copy of ``image`` at ``path``, made if it is missing.

    Returns None if the image's file is missing or damaged, or if ``path`` is not writable.
    """
    # A second attempt: another shard may be making the same copy under the same temporary name
    return _kept_once(path, image) or _kept_once(path, image)


def _kept_once(path: Path, image: Any) -> bytes | None:
    with contextlib.suppress(OSError, CorruptImage):
        if path.is_file() and (kept := when_one_is_free(lambda: _whole(path))):
            return kept
        data = when_one_is_free(lambda: file_bytes(image))
        if data is None:
            copy = reduced(image, _SIDE, _QUALITY)
        else:
            # any format that the dataset opened; from the file, as models may be decoding ``image``
            copy = reduced(data, _SIDE, _QUALITY, [*FORMATS, *filter(None, [image.format])])
        write_atomic(path, copy)
        return copy
    return None


def _whole(path: Path) -> bytes | None:
    """Returns the bytes of the image at ``path``; None if it is damaged."""
    data = path.read_bytes()
    with contextlib.suppress(CorruptImage):
        decode(data)
        return data
    return None
