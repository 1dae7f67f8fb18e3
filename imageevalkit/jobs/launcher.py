"""The launcher of a run: the record by which others find its process, and ``--detach``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from imageevalkit.common import logs
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import UserError, say
from imageevalkit.common.locks import open_lock, take_lock
from imageevalkit.common.machine import start_of
from imageevalkit.store.cell import short_path
from imageevalkit.store.jsonl import Int, Reader


@dataclass(frozen=True)
class Launcher:
    """The launcher process of a run. ``began`` is its start time, in clock ticks since the machine booted."""

    host: str
    pid: Int
    began: str


_LAUNCHER = Reader(Launcher)
_FILE = "launcher.json"


def note_launcher(run_folder: Path) -> int:
    """Records this process as the launcher of a run. Raises CellFailure: the disk is full.

    Returns the descriptor that locks the record: by the lock, other machines know that the process lives. If the
    disk has no locks, other machines see the run's jobs only.
    """
    launcher = Launcher(socket.gethostname(), os.getpid(), start_of(os.getpid()))
    write_atomic(path := run_folder / _FILE, json.dumps(asdict(launcher)))
    fd = open_lock(path)
    with contextlib.suppress(UserError, OSError):
        take_lock(fd, path, wait=True)
    return fd


def launcher_of(run_folder: Path) -> Launcher | None:
    """Returns the launcher of a run, which may have ended; None if it has left no record."""
    try:
        return _LAUNCHER.decode((run_folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return None


def has_launcher(run_folder: Path) -> bool:
    """Returns True if a process on any machine holds the lock of the launcher of a run."""
    with contextlib.ExitStack() as opened, contextlib.suppress(UserError, OSError):
        fd = open_lock(path := run_folder / _FILE)
        opened.callback(os.close, fd)
        try:
            take_lock(fd, path)
        except BlockingIOError:
            return True
    return False


def detach(run_folder: Path) -> None:
    """Continues in a background process that prints to a log; the calling process exits with status 0."""
    log = run_folder / "launcher.log"
    say(
        f"the run continues in the background, log {short_path(log)}; bash eval.sh --status shows it, --cancel ends it"
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    logs.print_to(log)
