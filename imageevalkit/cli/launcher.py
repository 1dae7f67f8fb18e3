"""The launcher of a run: the process that others find by its files, and ``--detach``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import UserError, say
from imageevalkit.common.locks import open_lock, take_lock
from imageevalkit.common.machine import start_of
from imageevalkit.store.cell import short_path
from imageevalkit.store.jsonl import Reader


@dataclass(frozen=True)
class Launcher:
    """The launcher process of a run. ``began`` is its start time, in clock ticks since the machine booted."""

    host: str
    pid: int
    began: str


_LAUNCHER = Reader(Launcher)
_FILE, _LOCK = "launcher.json", "launcher.lock"


def note_launcher(folder: Path) -> int | None:
    """Records this process as the launcher of the run in ``folder``.

    Returns the descriptor of the launcher's lock, by which other machines know that the process lives. None
    if the disk has no locks: other machines see the run's jobs only. Raises CellFailure: the disk is full.
    """
    launcher = Launcher(socket.gethostname(), os.getpid(), start_of(os.getpid()))
    write_atomic(folder / _FILE, json.dumps(asdict(launcher)))
    with contextlib.suppress(UserError, OSError):
        fd = open_lock(folder / _LOCK)
        take_lock(fd, folder / _LOCK, wait=True)
        return fd
    return None


def detach(folder: Path) -> None:
    """Continues in a background process that logs to ``folder``; the calling process exits with status 0."""
    log = folder / "launcher.log"
    say(
        f"the run continues in the background, log {short_path(log)}; bash eval.sh --status shows it, --cancel ends it"
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fd, 1), (fd, 2)):
        os.dup2(source, target)


def launcher_of(folder: Path) -> Launcher | None:
    """Returns the launcher of the run in ``folder``, which may have ended; None if it has left no record."""
    try:
        return _LAUNCHER.decode((folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return None


def has_launcher(folder: Path) -> bool:
    """Returns True if a process on any machine holds the lock of the launcher of the run in ``folder``."""
    try:
        fd = open_lock(folder / _LOCK)
    except (UserError, OSError):
        return False
    try:
        take_lock(fd, folder / _LOCK)
    except BlockingIOError:
        return True
    except (UserError, OSError):
        return False
    finally:
        os.close(fd)
    return False
