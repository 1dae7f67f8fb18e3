"""The images that a model was shown, kept small in the cell: a report needs no data of the benchmark, which may go."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from typing import Any, TypedDict

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item, file_bytes
from imageevalkit.images import FORMATS, CorruptImage, reduced
from imageevalkit.machine import when_one_is_free

FOLDER = ".inputs"
# Half of a large screen, about 140 KB of a photo: what a whole edited image is compared with side by side.
_SIDE = 1024
_QUALITY = 80


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
        self._copying = threading.Lock()  # of many edits of one image, one makes the copy

    def of(self, item: Item) -> list[Input]:
        """The input images of ``item`` in their order, each with a copy. In any thread; what is new takes CPU time.

        Raises CellFailure: the disk is full; OSError: another error of the disk.
        """
        return [self._input(sha256, image) for sha256, image in item.inputs]

    def _input(self, sha256: str, image: Any) -> Input:
        with self._copying:
            if sha256 not in self._inputs:
                name = f"{FOLDER}/{sha256}.webp"
                path, data = self._cell.folder / name, None
                if path.is_file():
                    data = when_one_is_free(path.read_bytes)
                elif data := _copy(image):
                    write_atomic(path, data)
                copy = hashlib.sha256(data).hexdigest() if data else ""
                self._inputs[sha256] = Input(sha256=sha256, path=name if copy else "", copy_sha256=copy)
            return self._inputs[sha256]


def _copy(image: Any) -> bytes | None:
    """A small WebP of it; None where it cannot be had: its file has gone, or holds what is no whole image."""
    with contextlib.suppress(OSError, CorruptImage):
        data = when_one_is_free(lambda: file_bytes(image))
        if data is None:
            return reduced(image, _SIDE, _QUALITY)
        # whatever format the dataset could open: it is read from its file, as models may be decoding the image now
        return reduced(data, _SIDE, _QUALITY, [*FORMATS, *filter(None, [image.format])])
    return None
