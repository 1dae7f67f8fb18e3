"""Append-only JSON Lines that survive ``kill -9`` in the middle of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from imageevalkit.atomic import disk_error


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of ``path``; nothing when it does not exist.

    A line that is not a JSON object is passed over: it is the torn tail of a killed writer, and its item
    is simply done again.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


class JsonlWriter:
    """Appends records to ``path``; each is one ``write`` call, so that writers never interleave."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
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
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
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
