"""Writes files that are either complete or absent."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

from imageevalkit.common.errors import CellFailure
from imageevalkit.common.machine import when_one_is_free
from imageevalkit.common.text import to_bytes

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
_FICLONE = 0x40049409  # Linux: share the blocks of another file (Btrfs, XFS)
# Errors of file systems (some network ones) that cannot sync a folder; they store names by themselves.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


def part_path(path: Path) -> Path:
    """Returns the temporary name for ``path``; always the same, so that a resumed run finds the file."""
    return path.with_name(f".{path.name}.part")


def write_part(path: Path, data: bytes, durably: bool = True) -> int:
    """Write ``data`` under the temporary name of ``path``. Unless ``durably``, a power cut may damage it.

    Returns the file's ``st_mtime_ns``; the file may be gone by then. Raises CellFailure if the disk is full.
    """
    part = part_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with when_one_is_free(lambda: part.open("wb")) as file:
            file.write(data)
            file.flush()
            if durably:
                os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError as error:
        raise disk_error(error, path, part) from error


def commit_part(path: Path) -> None:
    """Give the temporary file of ``path`` its final name."""
    part_path(path).replace(path)


def sync_folder(folder: Path) -> None:
    """Make the names of the files in ``folder`` durable: syncing a file does not save its name."""
    try:
        fd = when_one_is_free(lambda: os.open(folder, os.O_RDONLY))
    except PermissionError:
        return  # no permission to list the folder: so it existed before
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise disk_error(error, folder) from error
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes | str, durably: bool = True) -> None:
    """Replace ``path`` with ``data``: a reader sees the old file or the new one. See :func:`write_part`."""
    write_part(path, to_bytes(data) if isinstance(data, str) else data, durably)
    commit_part(path)


def copy_file(source: Path, target: Path) -> None:
    """Copy ``source`` to the new file ``target``, sharing blocks if the file system can (a reflink)."""
    with source.open("rb") as old, target.open("xb") as new:
        try:
            fcntl.ioctl(new, _FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new)


def is_disk_full(error: OSError) -> bool:
    """Returns whether the disk or the user's quota is full."""
    return error.errno in _FULL_DISK


def disk_error(error: OSError, path: Path, part: Path | None = None) -> Exception:
    """Returns ``error``, or a one-line :class:`CellFailure` if disk or quota are full. Deletes ``part``."""
    if part:
        part.unlink(missing_ok=True)
    if is_disk_full(error):
        return CellFailure(f"disk full: cannot write {path}; free some space and run the same command again")
    return error
