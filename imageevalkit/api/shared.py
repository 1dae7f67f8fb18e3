"""Shares the limits of a run among its processes, through small files: slots, next start, budget.

A file has a row for the run, then one for each process, which a process owns by a lock on one byte. The kernel
releases the lock when the process ends, even if it is killed: its row then counts no more. Closing any
descriptor of the file would release the locks of the process, so each process opens the file only once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from imageevalkit.common.errors import UserError, say
from imageevalkit.common.locks import open_lock, take_byte
from imageevalkit.common.redaction import one_line

T = TypeVar("T")

_MOST_PROCESSES = 512
_MUTEX = 1 << 30  # the byte whose owner may read and write
_ROW = struct.Struct("<dd")
LOOK_AGAIN = 0.05
"""Seconds between two attempts to get a slot that another process holds."""
_SKEW = 60.0  # seconds that a process may sleep between reading the clock and using the time
_LOOKED_FOR = 0.1  # seconds for which the known demand of other processes counts


class SharedFile:
    """A file at ``path`` with two numbers for the run and two for each process, which is row ``me``.

    If ``inherits``, the first number of an ended process is added to the run's first number. Raises
    UserError: no locks there.
    """

    def __init__(self, path: Path, inherits: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._fd, self._threads = path, open_lock(path), threading.Lock()
        self._inherits = inherits
        self.me = 0
        with self.opened():
            self.me = next(filter(self._take, range(1, _MOST_PROCESSES + 1)), 0)
        if not self.me:
            self.close()
            raise UserError(
                f"{path}: {_MOST_PROCESSES} processes of the run send requests already: start fewer at once"
            )

    def _take(self, byte: int, wait: bool = False) -> bool:
        return take_byte(self._fd, self._path, byte, wait)

    def _drop(self, byte: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    def close(self) -> None:
        """Closes the file, which releases all locks of this process."""
        os.close(self._fd)

    @contextlib.contextmanager
    def opened(self) -> Iterator[list[list[float]]]:
        """Locks the file and yields its rows. Writes what the block changes, unless the block raises."""
        with self._threads:
            self._take(_MUTEX, wait=True)
            try:
                data = os.pread(self._fd, _ROW.size * (_MOST_PROCESSES + 1), 0)
                before = list(_ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size]))
                before += [(0.0, 0.0)] * (self.me + 1 - len(before))
                rows = [list(row) for row in before]
                for n in range(1, len(rows)):
                    if any(rows[n]) and n != self.me and self._take(n):
                        self._drop(n)
                        rows[0][0] += self._inherits * rows[n][0]
                        rows[n] = [0.0, 0.0]
                yield rows
                # the run's first: a kill in between counts money twice, not never
                for n, row in enumerate(rows):
                    if tuple(row) != before[n]:
                        os.pwrite(self._fd, _ROW.pack(*row), n * _ROW.size)
            finally:
                self._drop(_MUTEX)


class Slots:
    """The slots of a run for requests to one endpoint, and the time of the next start.

    If several processes want more slots than exist, each may have an equal share. A process above its share
    starts no request until it is below. A process keeps a slot for its next waiting request, because on a
    network file system each lock costs a round trip. If the file fails, each process continues without shared
    limits.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._threads = path, threading.Lock()
        self._file: SharedFile | None = SharedFile(path)
        self._used = self._kept = self._share = 0
        self._wants = False  # True if a request of this process waits for a slot
        self._looked = self._look_next = float("-inf")

    @contextlib.contextmanager
    def _working(self) -> Iterator[SharedFile | None]:
        with self._threads:
            try:
                yield self._file
            except (OSError, UserError) as error:
                say(
                    f"{self._path} fails ({one_line(error)}): its requests are bounded in each process by itself"
                )
                if self._file:
                    self._file.close()
                self._file = None

    def take(self, now: float, ceiling: int) -> float:
        """Takes one of ``ceiling`` slots at ``now`` (monotonic). Returns 0, or the seconds until a retry."""
        with self._working() as file:
            if file:
                is_known = now - self._looked <= _LOOKED_FOR and self._has_slot
                if not is_known and now >= self._look_next:
                    self._look(file, now, ceiling)
                if not self._has_slot:
                    return LOOK_AGAIN
                self._used += 1
        return 0.0

    @property
    def _has_slot(self) -> bool:
        return self._used < min(self._kept, self._share)

    def _look(self, file: SharedFile, now: float, ceiling: int) -> None:
        """Gets one more slot if this process has no unused one, and releases slots above its share."""
        with file.opened() as rows:
            others = [row for n, row in enumerate(rows) if n not in (0, file.me)]
            self._share = max(1, ceiling // (1 + sum(bool(wants) for _, wants in others)))
            free = ceiling - int(sum(kept for kept, _ in others))
            self._kept = max(self._used, min(self._share, free, max(self._kept, self._used + 1)))
            self._wants |= not self._has_slot
            rows[file.me] = [self._kept, self._wants]
        self._looked, self._look_next = now, now + LOOK_AGAIN * (not self._has_slot)

    def give(self) -> None:
        """Ends the use of one slot. The process keeps the slot for its next request."""
        with self._threads:
            self._used -= 1

    def content(self) -> None:
        """Releases the unused slots of this process: none of its requests waits for a slot."""
        with self._working() as file:
            if file and (self._kept > self._used or self._wants):
                self._kept, self._wants = self._used, False
                with file.opened() as rows:
                    rows[file.me] = [self._kept, 0.0]

    def start(self, now: float, gap: float) -> float:
        """Reserves a start ``gap`` seconds after the previous one. Returns 0, or the seconds to wait."""
        with self._working() as file:
            if file:
                with file.opened() as rows:
                    after = rows[0][0]
                    if now < after <= now + gap + _SKEW:  # else the time is from before a reboot
                        return after - now
                    rows[0][0] = now + gap
        return 0.0


class Account:
    """The sums of a budget in USD: ``spent``, and ``held`` for requests in flight."""

    def __init__(self) -> None:
        self.spent = self.held = 0.0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the account. Inside the block both sums are current and may be changed."""
        yield


class SharedAccount(Account):
    """The account of all processes of a run.

    The amount that a killed process held counts as spent: its requests were sent and may be billed.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = SharedFile(path, inherits=True)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with self._file.opened() as rows:
            held = sum(amount for amount, _ in rows[1:])
            self.spent, self.held = rows[0][0], held
            yield
            rows[0][0] = self.spent
            rows[self._file.me][0] += self.held - held


_opening = threading.Lock()


@functools.cache
def _made(kind: Callable[[Path], T], path: Path, process: int) -> T:
    return kind(path)


def shared(kind: Callable[[Path], T], path: Path) -> T:
    """Returns the :class:`Slots` or :class:`SharedAccount` at ``path``: one object per process."""
    with _opening:
        return _made(kind, path.absolute(), os.getpid())
