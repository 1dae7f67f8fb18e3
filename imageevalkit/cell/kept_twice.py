"""JSON Lines that are kept twice: what a file loses, in whatever place, is taken back from its copy.

For records of what cannot be had again without paying for it. The copy is a hidden file beside the file; each of its
lines begins with a checksum of its own, so that it is known which of two different lines is the true one.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import short_path
from imageevalkit.cell.jsonl import JsonlWriter, Shape, Tell, parse, read_jsonl, tell_nobody
from imageevalkit.errors import CellFailure
from imageevalkit.machine import when_one_is_free

_Key = tuple[str | bytes, ...]
_CHECKSUM = 9  # characters: 8 hex digits of the CRC-32 and a blank


def copy_of(path: Path) -> Path:
    """Where the copy of ``path`` is."""
    return path.with_name(f".{path.name}.copy")


def read_kept(path: Path, shape: Shape, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """Yield the records of ``path`` that have ``shape``, with those that only its copy still has; touches nothing.

    Other lines are told, as :func:`imageevalkit.cell.jsonl.read_jsonl` tells them.

    Raises:
        CellFailure: the file or its copy is there and cannot be read.
    """
    main, copy = _bytes(path), _bytes(copy_of(path))
    if not copy or _agree(main, copy):
        return read_jsonl(path, shape, tell)
    _tell_of_damage(path, shape, tell)
    return map(parse, _merged(main, copy, shape))


def mend(path: Path, shape: Shape, tell: Tell = tell_nobody) -> None:
    """Give ``path`` the lines that only its copy still has, and the copy what it lacks; quick where they agree.

    A line without ``shape`` is none; what is taken back is told.

    Raises:
        CellFailure: the disk is full, or a file cannot be read.
    """
    main, copy = _bytes(path), _bytes(copy_of(path))
    if _agree(main, copy):
        return
    lines, own = _merged(main, copy, shape), list(_own_lines(main, shape).values())
    # whatever else a file holds that nobody lost anything of stays as it is
    if lines != own:
        _tell_of_damage(path, shape, tell)
        lost = len(set(lines).difference(own))
        tell(
            f"{short_path(path)}: {lost} of its lines, lost or damaged, are taken back from {copy_of(path).name}"
        )
        write_atomic(path, _joined(lines))
    marked = _joined(map(_marked, lines))
    if marked != copy:
        write_atomic(copy_of(path), marked)


class KeptTwiceWriter:
    """Appends records to ``path`` and to its copy, from any thread; what was lost before is mended first."""

    def __init__(self, path: Path, shape: Shape) -> None:
        mend(path, shape)
        self._path = path
        self._main, self._copy = JsonlWriter(path), JsonlWriter(copy_of(path))
        self._appending = threading.Lock()  # both in the same order

    def append(self, record: dict[str, Any]) -> None:
        """Append one record. Raises CellFailure when the disk is full."""
        with self._appending:
            line = self._main.append(record)
            self._copy.append_line(_marked(line))

    def sync(self) -> None:
        """Return when all that was appended before is on the disk. Raises CellFailure when the disk is full."""
        self._main.sync()
        self._copy.sync()

    @property
    def is_there(self) -> bool:
        """Whether ``path`` is still the file that is written."""
        return self._main.is_at(self._path)

    def close(self) -> None:
        """Flush to the disk and close."""
        try:
            self._main.close()
        finally:
            self._copy.close()


def _tell_of_damage(path: Path, shape: Shape, tell: Tell) -> None:
    for _ in read_jsonl(path, shape, tell):
        pass


def _bytes(path: Path) -> bytes:
    try:
        return when_one_is_free(path.read_bytes)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return b""
        raise CellFailure(f"{short_path(path)} cannot be read: {error.strerror}") from None


def _agree(main: bytes, copy: bytes) -> bool:
    return main == b"".join(line[_CHECKSUM:] for line in copy.splitlines(keepends=True))


def _joined(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _marked(line: bytes) -> bytes:
    return b"%08x " % zlib.crc32(line) + line


def _own_lines(main: bytes, shape: Shape) -> dict[_Key, bytes]:
    """The whole lines of a file in their order, by what tells records apart."""
    return {key: line for line in main.split(b"\n") if (key := _key(line, shape))}


def _kept_lines(copy: bytes, shape: Shape) -> dict[_Key, bytes]:
    """The whole lines of a copy likewise."""
    lines = (line[_CHECKSUM:] for line in copy.split(b"\n") if _marked(line[_CHECKSUM:]) == line)
    return {key: line for line in lines if (key := _key(line, shape))}


def _key(line: bytes, shape: Shape) -> _Key:
    """What a record is about, and when it was written, or all of it; empty where the line is none."""
    try:
        record = parse(line)
    except ValueError:
        return ()
    if shape.problem(record):
        return ()
    return (record["item"], record["time"]) if {"item", "time"} <= record.keys() else (line,)


def _merged(main: bytes, copy: bytes, shape: Shape) -> list[bytes]:
    """The lines of both in the order in which they were written: each may lack some, and the copy's are true."""
    own, kept = _own_lines(main, shape), _kept_lines(copy, shape)
    merged: list[bytes] = []
    waiting = deque(own)
    for key, line in kept.items():
        if key in own:
            while waiting and (first := waiting.popleft()) != key:
                if first not in kept:
                    merged.append(own[first])
        merged.append(line)
    return merged + [own[key] for key in waiting if key not in kept]
