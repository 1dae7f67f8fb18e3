"""Files that are either whole or absent."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

from imageevalkit.errors import CellFailure
from imageevalkit.machine import when_one_is_free
from imageevalkit.text import to_bytes

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
_FICLONE = 0x40049409  # Linux: share the blocks of another file (Btrfs, XFS)
# Where a file system cannot do that with a folder (some network ones), it keeps names by itself.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


def part_path(path: Path) -> Path:
    """The temporary name beside ``path``; deterministic, so that a resumed run finds and reuses it."""
    return path.with_name(f".{path.name}.part")


def write_part(path: Path, data: bytes, durably: bool = True) -> int:
    """Write ``data`` under the temporary name of ``path``; what is not written ``durably`` a power cut may damage.

    Returns the file's ``st_mtime_ns``; the file may be gone again by then. Raises CellFailure: the disk is full.
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
    """Make the names of the files in ``folder`` durable: a file that is on the disk may still be without one."""
    try:
        fd = when_one_is_free(lambda: os.open(folder, os.O_RDONLY))
    except PermissionError:
        return  # not ours to list: it was there before
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise disk_error(error, folder) from error
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes | str, durably: bool = True) -> None:
    """Replace ``path`` with ``data``: a reader sees the old file or the new one. As :func:`write_part`."""
    write_part(path, to_bytes(data) if isinstance(data, str) else data, durably)
    commit_part(path)


def copy_file(source: Path, target: Path) -> None:
    """Copy ``source`` to the new file ``target``. The two share their blocks where the file system can (a reflink)."""
    with source.open("rb") as old, target.open("xb") as new:
        try:
            fcntl.ioctl(new, _FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new)


def is_disk_full(error: OSError) -> bool:
    """Whether the disk, or the user's share of it, is full."""
    return error.errno in _FULL_DISK


def disk_error(error: OSError, path: Path, part: Path | None = None) -> Exception:
    """``error`` as a one-line :class:`CellFailure` when the disk or quota is full, else ``error`` itself."""
    if part:
        part.unlink(missing_ok=True)
    if is_disk_full(error):
        return CellFailure(f"disk full: cannot write {path}; free some space and run the same command again")
    return error
