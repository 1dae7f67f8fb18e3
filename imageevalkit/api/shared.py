"""Shares the limits of a run among its processes, through small files: slots, next start, budget.

A process holds a slot by a lock on one byte. The kernel releases the lock when the process ends, even if it
is killed. The locks belong to the process. Closing any descriptor of the file would release all of them, so
each process opens the file only once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from imageevalkit.common.errors import UserError, say
from imageevalkit.common.locks import open_lock, take_byte
from imageevalkit.common.redaction import one_line

T = TypeVar("T")

_MEMBERS = 1 << 20  # first of the bytes that represent processes
_MOST_MEMBERS = 512
_PLACES = range(_MEMBERS, _MEMBERS + _MOST_MEMBERS)
_MUTEX = 1 << 30
_AMOUNT = struct.Struct("<d")
# struct flock of fcntl(2): type, whence, start, length, process. macOS has them in another order.
_FLOCK, _ORDER = struct.Struct("hhqqi4x"), (0, 1, 2, 3, 4)
if sys.platform == "darwin":
    _FLOCK, _ORDER = struct.Struct("qqihh"), (2, 3, 4, 0, 1)
LOOK_AGAIN = 0.05
"""Seconds between two attempts to get a slot that another process holds."""
_SKEW = 60.0  # seconds that a process may sleep between reading the clock and using the time
_COUNTED_FOR = 0.1  # seconds between two counts of the other waiting processes


class SharedFile:
    """A file at ``path`` with byte locks, and with numbers as content. Raises UserError: no locks there."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._fd, self._threads = path, open_lock(path), threading.Lock()

    def take(self, byte: int, wait: bool = False) -> bool:
        """Locks ``byte``. Returns False if another process holds it."""
        return take_byte(self._fd, self._path, byte, wait)

    def drop(self, byte: int) -> None:
        """Unlocks ``byte``."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    def close(self) -> None:
        """Closes the file, which releases all locks of this process."""
        os.close(self._fd)

    def gaps(self, first: int, stop: int) -> Iterator[range]:
        """Yields, in order, the ranges in [``first``, ``stop``) that no other process has locked."""
        if first >= stop:
            return
        parts = (fcntl.F_WRLCK, os.SEEK_SET, first, stop - first, 0)
        answer = fcntl.fcntl(self._fd, fcntl.F_GETLK, _FLOCK.pack(*(parts[n] for n in _ORDER)))
        found = dict(zip(_ORDER, _FLOCK.unpack(answer), strict=True))
        if found[0] == fcntl.F_UNLCK:
            yield range(first, stop)
        else:  # the kernel reports one lock, not always the lowest
            yield from self.gaps(first, found[2])
            yield from self.gaps(found[2] + found[3], stop)

    def count(self, first: int, stop: int) -> int:
        """Returns the number of bytes in [``first``, ``stop``) that other processes have locked."""
        return stop - first - sum(map(len, self.gaps(first, stop)))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lets one thread of one process at a time into the block; all others wait."""
        with self._threads:
            self.take(_MUTEX, wait=True)
            try:
                yield
            finally:
                self.drop(_MUTEX)

    def amounts(self) -> list[float]:
        """Returns all numbers in the file."""
        data = os.pread(self._fd, _AMOUNT.size * (_MOST_MEMBERS + 1), 0)
        return [amount for (amount,) in _AMOUNT.iter_unpack(data[: len(data) // _AMOUNT.size * _AMOUNT.size])]

    def write(self, place: int, amount: float) -> None:
        """Writes ``amount`` as the number at index ``place``."""
        os.pwrite(self._fd, _AMOUNT.pack(amount), place * _AMOUNT.size)


class Slots:
    """The slots of a run for requests to one endpoint, and the time of the next start.

    If several processes want more slots than exist, each may use an equal share. A process above its share
    starts no request until it is below. A process keeps a slot for its next waiting request, because on a
    network file system each lock costs a round trip. If the file fails, each process continues without shared
    limits.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._threads = path, threading.Lock()
        self._file: SharedFile | None = SharedFile(path)
        self._ours: list[int] = []
        self._idle: list[int] = []  # locked by this process, but not in use
        self._wants: int | None = None
        self._others, self._counted, self._look_next = 0, float("-inf"), float("-inf")

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
                return 0.0 if self._takes(file, now, ceiling) else LOOK_AGAIN
        return 0.0

    def _takes(self, file: SharedFile, now: float, ceiling: int) -> bool:
        if now - self._counted > _COUNTED_FOR:
            self._others, self._counted = file.count(_PLACES.start, _PLACES.stop), now
        share = max(1, ceiling // (1 + self._others))
        while self._idle and len(self._ours) + len(self._idle) > share:
            file.drop(self._idle.pop())
        if len(self._ours) < share:
            if not self._idle and now >= self._look_next:
                free = (slot for gap in file.gaps(0, ceiling) for slot in gap if slot not in self._ours)
                self._idle += itertools.islice(filter(file.take, free), 1)
                self._look_next = now if self._idle else now + LOOK_AGAIN
            if self._idle:
                self._ours.append(self._idle.pop())
                return True
        if self._wants is None:
            self._wants = next(filter(file.take, _PLACES), None)
        return False

    def give(self) -> None:
        """Ends the use of one slot. The process keeps the slot for its next request."""
        with self._threads:
            if self._file:
                self._idle.append(self._ours.pop())

    def content(self) -> None:
        """Releases the unused slots of this process: none of its requests waits for a slot."""
        with self._working() as file:
            if file:
                while self._idle:
                    file.drop(self._idle.pop())
                if self._wants is not None:
                    file.drop(self._wants)
                    self._wants = None

    def start(self, now: float, gap: float) -> float:
        """Reserves a start ``gap`` seconds after the previous one. Returns 0, or the seconds to wait."""
        with self._working() as file:
            if file:
                with file.exclusive():
                    after = next(iter(file.amounts()), 0.0)
                    if now < after <= now + gap + _SKEW:  # else the time is from before a reboot
                        return after - now
                    file.write(0, now + gap)
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
        self._file = SharedFile(path)
        self._mine = 0.0
        with self._file.exclusive():
            self._me = next(filter(self._file.take, _PLACES)) - _MEMBERS
            self._amounts(nobody=self._me)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with self._file.exclusive():
            spent, *held = self._amounts()
            self.spent, self.held = spent, sum(held)
            before = self.held
            yield
            if self.spent != spent:
                self._file.write(0, self.spent)
            if self.held != before:
                mine = self._mine + self.held - before
                self._file.write(self._me + 1, mine)
                self._mine = mine

    def _amounts(self, nobody: int | None = None) -> list[float]:
        """Returns the spent amount and the amount that each process holds.

        The amounts of dead processes become spent, and so does that of an earlier process at place
        ``nobody``.
        """
        spent, *held = self._file.amounts() or [0.0]
        for n, amount in enumerate(held):
            dead = (
                n == nobody or (n != self._me and not self._file.count(_MEMBERS + n, _MEMBERS + n + 1))
                if amount
                else False
            )
            if dead:
                spent, held[n] = spent + amount, 0.0
                self._file.write(0, spent)
                self._file.write(n + 1, 0.0)
        return [spent, *held]


_opening = threading.Lock()


@functools.cache
def _made(kind: Callable[[Path], T], path: Path, process: int) -> T:
    return kind(path)


def shared(kind: Callable[[Path], T], path: Path) -> T:
    """Returns the :class:`Slots` or :class:`SharedAccount` at ``path``: one object per process."""
    with _opening:
        return _made(kind, path.absolute(), os.getpid())
