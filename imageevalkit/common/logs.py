"""Logs. If the disk is full or no descriptor is free, log lines are lost, but never an image or a score."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imageevalkit.common.atomic import is_disk_full, part_path, write_part
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.machine import are_used_up, when_one_is_free
from imageevalkit.common.text import printable, to_bytes

_ROOM = 1 << 14
"""Bytes that the outcomes of a run need."""


def append(path: Path, text: str) -> None:
    """Append ``text``, made printable, to a log that other processes may write too. Creates the folder."""
    with _unless_lacking():
        path.parent.mkdir(parents=True, exist_ok=True)
        with when_one_is_free(lambda: path.open("ab")) as file:
            file.write(to_bytes(f"{printable(text)}\n"))


def print_to(path: Path) -> None:
    """Redirect stdout and stderr, also of child processes and C libraries, to ``path``."""
    with _unless_lacking():
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def print_without_fear() -> None:
    """Make ``print`` never fail because the log's disk is full or the terminal is closed."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        before, file = getattr(sys, name), _ForgivingFile(fd, "wb", closefd=False)
        how = {"encoding": before.encoding, "errors": before.errors}
        setattr(sys, name, io.TextIOWrapper(file, **how, line_buffering=True, write_through=True))


def is_full(folder: Path) -> bool:
    """Returns whether the disk of ``folder`` has too little room for the files of a run."""
    probe = folder / "room"
    try:
        write_part(probe, os.urandom(_ROOM))
        part_path(probe).unlink()
    except CellFailure:
        return True
    except OSError:
        return False
    return False


def full_words(folder: Path) -> str:
    """Returns the message about a full disk."""
    return f"the disk of {folder} is full: free some space and run the same command again"


class _ForgivingFile(io.FileIO):
    def write(self, data: Any, /) -> int:
        rest = memoryview(data)
        with contextlib.suppress(OSError):
            while rest:  # a signal may cut short a write to a pipe
                rest = rest[super().write(rest) or rest.nbytes :]
        return memoryview(data).nbytes


@contextlib.contextmanager
def _unless_lacking() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not (is_disk_full(error) or are_used_up(error)):
            raise
