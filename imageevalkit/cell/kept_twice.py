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
from imageevalkit.cell.jsonl import JsonlWriter, Shape, Tell, file_bytes, parse, read_jsonl, tell_nobody

_CHECKSUM = 9  # characters: 8 hex digits of the CRC-32 and a blank


def copy_of(path: Path) -> Path:
    """Where the copy of ``path`` is."""
    return path.with_name(f".{path.name}.copy")


def read_kept(path: Path, shape: Shape, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """Yield the records of ``path`` that have ``shape``, with those that only its copy still has; touches nothing.

    Other lines are told, as :func:`imageevalkit.cell.jsonl.read_jsonl` tells them. Raises CellFailure: the file or its
    copy is there and cannot be read.
    """
    main, copy = file_bytes(path), file_bytes(copy_of(path))
    if not copy or _agree(main, copy):
        return read_jsonl(path, shape, tell)
    deque(read_jsonl(path, shape, tell), maxlen=0)  # tells of the damage
    return map(parse, _merged(main, copy, shape))


def mend(path: Path, shape: Shape, tell: Tell = tell_nobody) -> None:
    """Give ``path`` the lines that only its copy still has, and the copy what it lacks; quick where they agree.

    A line without ``shape`` is none; what is taken back is told. Raises CellFailure: the disk is full, or a file cannot
    be read.
    """
    main, copy = file_bytes(path), file_bytes(copy_of(path))
    if _agree(main, copy):
        return
    lines, own = _merged(main, copy, shape), list(_by_record(main.split(b"\n"), shape).values())
    # whatever else a file holds that nobody lost anything of stays as it is
    if lines != own:
        deque(read_jsonl(path, shape, tell), maxlen=0)
        lost = len(set(lines).difference(own))
        tell(
            f"{short_path(path)}: {lost} of its lines, lost or damaged, are taken back from {copy_of(path).name}"
        )
        write_atomic(path, b"".join(line + b"\n" for line in lines))
    marked = b"".join(_marked(line) + b"\n" for line in lines)
    if marked != copy:
        write_atomic(copy_of(path), marked)


class KeptTwiceWriter:
    """Appends records to ``path`` and to its copy, from any thread; what was lost before is mended first.

    All of it raises CellFailure when the disk is full.
    """

    def __init__(self, path: Path, shape: Shape) -> None:
        mend(path, shape)
        self._main, self._copy = JsonlWriter(path), JsonlWriter(copy_of(path))
        self._appending = threading.Lock()  # both in the same order

    def append(self, record: dict[str, Any]) -> None:
        """Append one record."""
        with self._appending:
            self._copy.append_line(_marked(self._main.append(record)))

    def sync(self) -> None:
        """Return when all that was appended before is on the disk."""
        self._main.sync()
        self._copy.sync()

    @property
    def is_there(self) -> bool:
        """Whether its path still leads to the file that is written."""
        return self._main.is_there

    def close(self) -> None:
        """Flush to the disk and close."""
        try:
            self._main.close()
        finally:
            self._copy.close()


def _agree(main: bytes, copy: bytes) -> bool:
    return main == b"".join(line[_CHECKSUM:] for line in copy.splitlines(keepends=True))


def _marked(line: bytes) -> bytes:
    return b"%08x " % zlib.crc32(line) + line


def _by_record(lines: Iterable[bytes], shape: Shape) -> dict[tuple[str | bytes, ...], bytes]:
    """The whole ones of ``lines`` in their order, by what tells records apart."""
    found = dict[tuple[str | bytes, ...], bytes]()
    for line in lines:
        try:
            record = parse(line)
        except ValueError:
            continue
        if not shape.problem(record):
            # what it is about and when it was written, or all of it
            found[(record["item"], record["time"]) if {"item", "time"} <= record.keys() else (line,)] = line
    return found


def _merged(main: bytes, copy: bytes, shape: Shape) -> list[bytes]:
    """The lines of both in the order in which they were written: each may lack some, and the copy's are true."""
    true = (line[_CHECKSUM:] for line in copy.split(b"\n") if _marked(line[_CHECKSUM:]) == line)
    own, kept = _by_record(main.split(b"\n"), shape), _by_record(true, shape)
    merged: list[bytes] = []
    waiting = deque(own)
    for key, line in kept.items():
        if key in own:
            while waiting and (first := waiting.popleft()) != key:
                if first not in kept:
                    merged.append(own[first])
        merged.append(line)
    return merged + [own[key] for key in waiting if key not in kept]
