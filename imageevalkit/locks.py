"""Locks on files, in folders that several users share: the kernel drops one with the last process that holds it."""

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

from imageevalkit.errors import UserError

# NFS without its lock daemon, Lustre mounted without -o flock, FUSE; NFS takes no lock on a file open for reading
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF})


def open_lock(
    path: Path, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o666, folder: int | None = None
) -> int:
    """A descriptor of the regular file at ``path``; ``folder`` may be one of the folder that it is looked for in.

    Another user may have put a link there, which would lead elsewhere, or a pipe, which would wait for ever.

    Raises:
        UserError: what is there is no regular file.
        OSError: it cannot be opened.
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
    """Take the lock on ``fd``, an open file at ``path``: the exclusive one, or one that others may share.

    Raises:
        BlockingIOError: somebody has it, and we do not ``wait``.
        UserError: the filesystem has no locks.
    """
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(fd, kind | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        raise _without_locks(error, path, "flock") from None


def drop_lock(fd: int) -> None:
    """Drop the lock on ``fd``, for all processes that have it from this one."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def take_byte(fd: int, path: Path, byte: int, wait: bool = False) -> bool:
    """Lock one ``byte`` of ``fd``, an open file at ``path``, for this process; False: another one has it.

    Unlike :func:`take_lock`, it is the process's: it has any byte as often as it asks, and loses all with the first
    descriptor of the file that it closes. Raises as :func:`take_lock`.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, byte)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise _without_locks(error, path, "fcntl") from None
    return True


_OWN_ONLY = {
    # nfs(5); flock is as local as its option says, or without a lock daemon
    "nfs": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "lustre": frozenset({"localflock"}),
}


def why_of_one_machine(folder: Path, mounts: str | None = None) -> str:
    """Why locks in ``folder`` hold among the processes of one machine only: ``nfs with nolock``; empty: they hold
    everywhere, as far as its mount tells.

    ``mounts``: what stands in /proc/self/mounts.
    """
    try:
        told = Path("/proc/self/mounts").read_text(errors="surrogateescape") if mounts is None else mounts
    except OSError:
        return ""
    whole, best, why = folder.resolve(), -1, ""
    for line in told.splitlines():
        _, place, kind, options, *_ = [*line.split(" "), "", "", "", ""]
        # blanks and the like are written as octal numbers: proc(5)
        mount = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), place))
        if len(mount.parts) >= best and whole.is_relative_to(
            mount
        ):  # of several at one place the last is seen
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
    """For its time nobody else has the lock at ``path``, which is made where it is not there.

    Where somebody has it, ``wait_for`` is called, and it is waited for. Raises as :func:`open_lock`, :func:`take_lock`.
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
    """``path`` and whose it is, as far as the system tells."""
    try:
        uid = path.lstat().st_uid
        return f"{path} of {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"{path} of user {uid}"
    except OSError:
        return str(path)


def _unfit(path: Path) -> UserError:
    return UserError(f"{with_owner(path)} is no regular file, as a lock must be: have it removed")
