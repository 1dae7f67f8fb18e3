"""File locks, in folders shared by several users. The kernel releases a lock with its last holder process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from imageevalkit.common.errors import UserError

# NFS without its lock daemon, Lustre without -o flock, FUSE; NFS refuses to lock a file open for reading
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})


def open_lock(
    path: Path, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o666, folder: int | None = None
) -> int:
    """Returns a descriptor of the regular file ``path``; ``folder`` may be a descriptor of its folder.

    Another user may have put a link there, which would lead elsewhere, or a pipe, which would block.

    Raises:
        UserError: ``path`` is not a regular file.
        OSError: the file cannot be opened.
    """
    try:
        name = path if folder is None else path.name
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a socket, a folder
            raise
        raise _unfit(path) from None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise _unfit(path)


def take_lock(fd: int, path: Path, wait: bool = False, shared: bool = False) -> None:
    """Take an exclusive (or ``shared``) lock on ``fd``, an open file at ``path``.

    Raises:
        BlockingIOError: another process holds the lock, and ``wait`` is False.
        UserError: the filesystem has no locks.
    """
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(fd, kind | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        raise _without_locks(error, path, "flock") from None


def drop_lock(fd: int) -> None:
    """Release the lock on ``fd``, also for child processes that inherited it."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def take_byte(fd: int, path: Path, byte: int, wait: bool = False) -> bool:
    """Lock one ``byte`` of ``fd``, an open file at ``path``. Returns False if another process holds it.

    Unlike :func:`take_lock`, the process owns the lock: it can lock a byte repeatedly. Closing any descriptor
    of the file releases all its locks. Raises as :func:`take_lock` does.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, byte)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise _without_locks(error, path, "fcntl") from None
    return True


_OWN_ONLY = {
    # nfs(5): these options, or a missing lock daemon, make flock local
    "nfs": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "lustre": frozenset({"localflock"}),
}


def why_of_one_machine(folder: Path, mounts: str | None = None) -> str:
    """Returns why locks in ``folder`` hold only within one machine (``nfs with nolock``); else empty.

    The answer comes from the mount's options. ``mounts`` replaces the text of /proc/self/mounts.
    """
    try:
        table = Path("/proc/self/mounts").read_text(errors="surrogateescape") if mounts is None else mounts
    except OSError:
        return ""
    whole, best, why = folder.resolve(), -1, ""
    for line in table.splitlines():
        _, place, kind, options, *_ = [*line.split(" "), "", "", "", ""]
        # spaces and the like are written as octal numbers: proc(5)
        mount = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), place))
        # the last of several mounts at one place hides the others
        if len(mount.parts) >= best and whole.is_relative_to(mount):
            local = _OWN_ONLY.get(kind.removesuffix("4"), frozenset()).intersection(options.split(","))
            best, why = len(mount.parts), f"{kind} with {min(local)}" if local else ""
    return why


def _without_locks(error: OSError, path: Path, kind: str) -> Exception:
    if error.errno not in _NO_LOCKS:
        return error
    return UserError(
        f"{path.parent} is on a filesystem without file locks ({kind}: {error.strerror}): use a folder on one that "
        "has them, such as a local disk (a link to it will do), or have this one mounted with them"
    )


@contextlib.contextmanager
def held(path: Path, wait_for: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` during the block; the file is created if needed.

    If another process holds the lock, ``wait_for`` is called, then the block waits. Raises as
    :func:`open_lock` and :func:`take_lock` do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_lock(path), "wb") as lock:
        try:
            take_lock(lock.fileno(), path)
        except BlockingIOError:
            wait_for()
            take_lock(lock.fileno(), path, wait=True)
        yield


def with_owner(path: Path) -> str:
    """Returns ``path`` and the name of its owner, if known."""
    try:
        uid = path.lstat().st_uid
        return f"{path} of {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"{path} of user {uid}"
    except OSError:
        return str(path)


def _unfit(path: Path) -> UserError:
    return UserError(f"{with_owner(path)} is no regular file, as a lock must be: have it removed")
