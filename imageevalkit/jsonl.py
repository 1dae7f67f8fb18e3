"""Append-only JSON Lines that survive ``kill -9`` in the middle of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from imageevalkit.atomic import disk_error
from imageevalkit.cell import short_path
from imageevalkit.errors import CellFailure
from imageevalkit.json_values import Shape, parse
from imageevalkit.open_files import when_one_is_free
from imageevalkit.secrets import one_line
from imageevalkit.text_output import to_bytes

_MOST_TOLD = 5  # of the bad lines of one file

Tell = Callable[[str], None]
"""Takes one line about something that cannot be read."""


def tell_nobody(text: str) -> None:
    """For who reads what somebody else has complained of."""


def read_jsonl(path: Path, shape: Shape, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """Yield the records of ``path`` that have ``shape``; nothing when it does not exist.

    Another line (the torn tail of a killed writer, damage) is passed over as if it was not there, and told with its
    number.

    Raises:
        CellFailure: the file is there and cannot be read.
    """
    bad = 0
    try:
        for number, line in enumerate(_lines(path), 1):
            record, problem = _record(line, shape)
            if not problem:
                yield record
            elif line.strip():
                bad += 1
                if bad <= _MOST_TOLD:
                    tell(f"{short_path(path)}:{number}: not a record: {problem}")
    except OSError as error:
        raise CellFailure(f"{short_path(path)} cannot be read: {error.strerror}") from None
    if bad > _MOST_TOLD:
        tell(f"{short_path(path)}: {bad - _MOST_TOLD} more lines are no records")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with when_one_is_free(lambda: path.open("rb")) as file:
            yield from file
    except FileNotFoundError:
        if path.is_symlink():  # perhaps to a disk that is not mounted
            raise


def _record(line: bytes, shape: Shape) -> tuple[Any, str]:
    try:
        record = parse(line.strip())
    except json.JSONDecodeError as error:
        return None, f"{error.msg} at column {error.colno}"
    except ValueError as error:
        return None, one_line(error, 100)
    return record, shape.problem(record)


class JsonlWriter:
    """Appends records to ``path``; each is one ``write`` call, so that writers never interleave."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._unsynced = False
        size = os.fstat(self._fd).st_size
        if size and not self._ends_with_newline(size):
            # close a torn last line, or the next record would be glued to it and lost with it
            self._write(b"\n")

    def _ends_with_newline(self, size: int) -> bool:
        with self._path.open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise disk_error(error, self._path) from error
        if written < len(data):
            # a full disk takes the first bytes and refuses the rest: raise the same error for both
            self._write(data[written:])

    def append(self, record: dict[str, Any]) -> bytes:
        """Append one record; returns its line, without the newline.

        Raises:
            CellFailure: the disk is full.
        """
        line = to_bytes(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        self.append_line(line)
        return line

    def append_line(self, line: bytes) -> None:
        """Append one ``line`` as it is. Raises CellFailure when the disk is full."""
        self._write(line + b"\n")
        self._unsynced = True

    def sync(self) -> None:
        """Return when all that was appended before is on the disk; at once where it is.

        Raises:
            CellFailure: the disk is full.
        """
        if self._unsynced:
            self._unsynced = False
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._unsynced = True
                raise disk_error(error, self._path) from error

    def is_at(self, path: Path) -> bool:
        """Whether the file that is written is the one at ``path``, and not one that was removed."""
        try:
            return os.path.samestat(os.fstat(self._fd), path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Flush to the disk and close."""
        try:
            self.sync()
        finally:
            os.close(self._fd)

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
