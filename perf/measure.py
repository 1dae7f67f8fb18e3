"""Wall time, CPU time and peak memory of a command and of everything that it starts (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_INTERVAL = 0.05
# Sampling many processes costs milliseconds of the very cores that are measured: it gets this share of one.
_SAMPLER_SHARE = 0.03
_LONGEST_RUN = 900.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """``wall`` and ``cpu`` in seconds, ``peak_mb`` in 10⁶ bytes; ``started`` is on ``time.monotonic``'s clock.

    ``server_cpu`` is what the server took meanwhile. ``others``: how many cores everything else on the machine
    kept busy; above about 0.1 the figures are those of a machine that was not free.
    """

    status: int
    started: float
    wall: float
    cpu: float
    peak_mb: float
    server_cpu: float
    others: float


def measure(
    command: Sequence[str], *, cwd: Path, environ: Mapping[str, str], log: Path, server: int
) -> Usage:
    """Run ``command`` to its end, its output appended to ``log``; killed after 15 minutes.

    ``server`` is the pid of a process whose load belongs to the measurement and is not ``others``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    busy_before, server_before, own_before = _busy_seconds(), _seconds_of(server), time.process_time()
    with log.open("ab") as out:
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        with _Sampler(process.pid) as sampler:
            # not Popen.wait: only wait4 tells the usage of this child, its own children included
            _, code, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(code)
    cpu = usage.ru_utime + usage.ru_stime
    server_cpu = _seconds_of(server) - server_before
    known = cpu + server_cpu + time.process_time() - own_before
    others = max(0.0, _busy_seconds() - busy_before - known) / wall
    return Usage(process.returncode, started, wall, cpu, sampler.peak / 1e6, server_cpu, others)


class _Sampler:
    """Samples the memory of a process tree in a thread, while used as a context manager.

    ``peak`` (bytes) is the largest sum of proportional set sizes: pages that processes share, as those of a
    forked pool, count once. At least it is the high-water mark of the largest single process, which no
    sample can miss. (Not ``ru_maxrss``: a child starts with that of the process that spawned it.)
    """

    def __init__(self, root: int) -> None:
        self.peak = 0
        self._root = root
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        deadline = time.monotonic() + _LONGEST_RUN
        while not self._done.wait(pause):
            start = time.thread_time()
            tree = list(_tree(self._root))
            total = sum(_kilobytes(pid, "smaps_rollup", "Pss:") for pid in tree)
            largest = max((_kilobytes(pid, "status", "VmHWM:") for pid in tree), default=0)
            self.peak = max(self.peak, total * 1024, largest * 1024)
            pause = max(_INTERVAL, (time.thread_time() - start) / _SAMPLER_SHARE)
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._root, signal.SIGKILL)


def _tree(root: int) -> Iterator[int]:
    yield root
    for task in _entries(Path(f"/proc/{root}/task")):
        for child in _read(task / "children").split():
            yield from _tree(int(child))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # it has ended


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended


def _kilobytes(pid: int, file: str, field: str) -> int:
    for line in _read(Path(f"/proc/{pid}/{file}")).splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0


def _seconds_of(pid: int) -> float:
    """CPU seconds of one process so far."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def _busy_seconds() -> float:
    """CPU seconds of the whole machine so far, those stolen by its host included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(n) for n in Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS
