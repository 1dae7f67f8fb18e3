"""How a judge that a job of this run serves is found: files at ``JudgeOptions.address_file`` and beside it.

``.wanted`` is left by the first who asks; the address itself, a base URL or ``error: …``, by the job. A lock on
``.keeper`` lasts as long as that job: files alone would not tell that nobody will answer any more.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from imageevalkit.atomic import write_atomic
from imageevalkit.evaluation.question import JudgeUnusable
from imageevalkit.locks import open_lock, take_lock

_ERROR = "error: "
_TICK = 0.1


def wait_for_address(address_file: str) -> str:
    """The base URL of the judge's server, which starts when this is first called: that may take many minutes.

    A server that died is started again, where possible on the same port.

    Raises:
        JudgeUnusable: it does not start, or it died too often, or the job that keeps it has ended.
    """
    path = Path(address_file)
    while True:
        text = _read(path)
        if text.startswith(_ERROR):
            raise JudgeUnusable(text.removeprefix(_ERROR))
        if text:
            return text
        if not _wanted(path).exists():
            write_atomic(_wanted(path), "")
        if not _is_kept(path):
            raise JudgeUnusable("the job that serves the judge has ended; run the same command again")
        time.sleep(_TICK)


def problem(address_file: str, base_url: str) -> str:
    """The one line why the judge will not come back at ``base_url``; empty as long as it may.

    For those whose requests fail: to them it looks like an outage that passes.
    """
    text = _read(Path(address_file))
    if text.startswith(_ERROR):
        return text.removeprefix(_ERROR)
    moved = text and text != base_url
    return "the server of the judge has moved to another port; run the same command again" if moved else ""


def is_away(address_file: str) -> bool:
    """Whether the judge's server is being started again."""
    return not _read(Path(address_file)) and _is_kept(Path(address_file))


def edition(address_file: str) -> int:
    """Another number each time the address is given anew; 0 while there is none."""
    try:
        return Path(address_file).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


class Address:
    """The other side: what the job that serves the judge tells those who wait. Forgets an earlier job's words."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = open_lock(_keeper(path))
        take_lock(self._lock, _keeper(path), wait=True)
        self.forget()

    @property
    def wanted(self) -> bool:
        """Whether somebody has something to ask."""
        return _wanted(self._path).exists()

    def give(self, base_url: str) -> None:
        """The judge answers at ``base_url``."""
        write_atomic(self._path, base_url)

    def give_up(self, why: str) -> None:
        """The judge will not answer; ``why`` is one line."""
        write_atomic(self._path, _ERROR + why)

    def withdraw(self) -> None:
        """The judge does not answer now: who wants it waits."""
        self._path.unlink(missing_ok=True)

    def forget(self) -> None:
        """As if nobody had asked."""
        self.withdraw()
        _wanted(self._path).unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _is_kept(path: Path) -> bool:
    try:
        fd = os.open(_keeper(path), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _wanted(path: Path) -> Path:
    return path.with_name(f"{path.name}.wanted")


def _keeper(path: Path) -> Path:
    return path.with_name(f"{path.name}.keeper")
