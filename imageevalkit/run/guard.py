"""Runs one command and leaves no process of it behind: ``python -I -S guard.py LIFELINE_FD -- COMMAND...``.

The guard is the parent of the job and outlives the launcher. If Ctrl-C, SIGTERM or ``kill -9`` ends the
launcher, the guard ends all processes of the job. On Linux the guard is a child subreaper: processes that
called ``setsid`` or whose parent died stay its descendants and are found in /proc. On other systems the guard
only reaches the process group of the job.

The command does not inherit the guard's descriptors above 2 (locks, GPU leases). So they are held until the
last process of the job has ended. The guard exits with the command's status, or 128 + n after signal n.

The guard runs by path with ``-I -S`` and imports little, because its start delays every job.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

GRACE_ASKED = 5.0  # seconds from SIGTERM to SIGKILL; launchers wait 9 or 10 s for a guard
GRACE_ORPHANED = 2.0  # the same without a launcher: a user who resumes at once waits for the locks
# Seconds from the end of the command to SIGTERM: the tee of `exec > >(tee log)` still has to write its pipe.
DRAIN = 0.5
TICK = 0.05

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
CANNOT_EXECUTE, NOT_FOUND = 126, 127  # as in POSIX shells


def _prctl(option: int, value: int) -> bool:
    try:
        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    except (OSError, AttributeError):  # no such function outside Linux
        return False


class Guard:
    """Guards one command. ``lifeline`` is the read end of a pipe that the launcher keeps open."""

    def __init__(self, command: list[str], lifeline: int) -> None:
        self._command = command
        self._asked = 0
        self._launcher = os.getppid()
        self._status: int | None = None
        self._whole_tree = _prctl(_PR_SET_CHILD_SUBREAPER, 1) and os.path.exists("/proc/self/stat")  # noqa: PTH110
        for fd in _open_fds():
            os.set_inheritable(fd, False)
        self._poll = select.poll()
        self._lifeline = lifeline
        # no events: poll always reports POLLHUP, and nothing is ever written into the lifeline
        self._poll.register(lifeline, 0)
        self._wake, wake_end = os.pipe()
        for fd in (self._wake, wake_end):
            os.set_blocking(fd, False)
        self._poll.register(self._wake, select.POLLIN)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        self._orphaned = False

    def run(self) -> int:
        """Run the command, end the processes that it leaves behind, and return the guard's exit status."""
        self._wait(0)
        if self._orphaned:
            return 128 + signal.SIGTERM
        self._child = self._start()
        while self._reap() and self._status is None and not self._stopping:
            self._wait(None)
        self._end_tree()
        return 128 + signal.SIGTERM if self._status is None else self._status

    @property
    def _stopping(self) -> bool:
        return self._asked > 0 or self._orphaned

    def _ask(self, *_: object) -> None:
        self._asked += 1

    def _start(self) -> int:
        guard = os.getpid()
        child = os.fork()
        if child:
            return child
        status = CANNOT_EXECUTE
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:  # the guard died before the line above took effect
                os._exit(status)
            os.setpgid(0, 0)  # a job's `kill 0` must not reach the guard
            signal.set_wakeup_fd(-1)
            # Python ignores the first two, a shell the others in background commands; exec would keep that
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(self._command[0], self._command)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                status = NOT_FOUND
            os.write(2, os.fsencode(f"cannot run {self._command[0]}: {error.strerror}\n"))
        finally:
            os._exit(status)

    def _wait(self, seconds: float | None) -> None:
        for fd, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if fd == self._wake:
                os.read(fd, 4096)
            else:
                self._orphaned = True
                self._poll.unregister(fd)
        # a second check, because a stray process may have inherited the other end of the lifeline
        self._orphaned = self._orphaned or os.getppid() != self._launcher

    def _reap(self) -> bool:
        """Collect ended children. Return whether any process of the job is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                # to a subreaper, no children means no descendants
                return not self._whole_tree and self._signal_group(0)
            if pid == 0:
                return True
            if pid == self._child:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code

    def _end_tree(self) -> None:
        now = time.monotonic()
        term_at = now if self._stopping else now + DRAIN
        kill_at = term_at + GRACE_ASKED
        termed = orphaned = False
        tick = TICK
        while self._reap():
            now = time.monotonic()
            if self._stopping:
                term_at = min(term_at, now)
            if self._orphaned and not orphaned:
                orphaned, kill_at = True, min(kill_at, now + GRACE_ORPHANED)
            if self._asked > 1 + orphaned:  # a second request, parent-death signal aside
                kill_at = now
            if now >= kill_at:
                self._signal_all(signal.SIGKILL)
                tick = min(2 * tick, 1.0)  # the rest hangs in the kernel (a dead network disk)
            elif now >= term_at and not termed:
                termed = True
                self._signal_all(signal.SIGTERM)
            self._wait(tick)

    def _signal_all(self, number: int) -> None:
        if not self._whole_tree:
            self._signal_group(number)
            return
        for pid in descendants(os.getpid()):
            try:  # noqa: SIM105 - importing contextlib takes a millisecond
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # it has ended, or is a set-uid program; the next round tries again

    def _signal_group(self, number: int) -> bool:
        try:
            os.killpg(self._child, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def _open_fds() -> list[int]:
    fds = []
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - pathlib costs 10 ms of start
        fd = int(name)
        try:
            os.fstat(fd)
        except OSError:
            continue  # the listing's own descriptor, closed by now
        if fd > 2:
            fds.append(fd)
    return fds


def descendants(root: int) -> list[int]:
    """Return the ids of all processes below ``root`` in the process tree, parents first (Linux only)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    # pid (name) state ppid: the name may hold blanks and parentheses
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue  # the process has ended
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


if __name__ == "__main__":
    sys.exit(Guard(sys.argv[3:], int(sys.argv[1])).run())
