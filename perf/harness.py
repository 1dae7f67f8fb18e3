"""The harness of all programs in this folder: measures a command or a block, prints one table of ratios and bars.

A busy machine makes a ratio worse, never better. A row that misses its bar beside other processes is measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from imageevalkit.common.machine import available_cores

REPO = Path(__file__).resolve().parent.parent
COLUMNS = ("wall s", "CPU s", "MB", "against s")
"""``against s``: seconds of the plain way or of the lower bound, by which the wall time is divided."""

_FREE = 0.1
_LABEL_WIDTH = 64


class Usage(NamedTuple):
    """Cost of one measurement. ``wall`` and ``cpu`` are seconds, ``peak_mb`` is in 10⁶ bytes.

    ``others`` is the number of cores that all other processes of the machine used meanwhile.
    """

    status: int
    wall: float
    cpu: float
    peak_mb: float
    others: float


class Meter:
    """Measures the block of a ``with`` statement; ``usage`` is set at its end.

    CPU seconds are of this process and its ended children. ``servers`` are pids whose load belongs to the measurement:
    it counts neither as ``cpu`` nor as ``others``.
    """

    usage: Usage

    def __init__(self, servers: Sequence[int] = ()) -> None:
        self._servers = [psutil.Process(pid) for pid in servers]

    def __enter__(self) -> Meter:
        self._before = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu, served, busy = (a - b for a, b in zip(self._now(), self._before, strict=True))
        self.usage = Usage(0, wall, cpu, 0.0, max(0.0, busy - cpu - served) / wall)

    def _now(self) -> tuple[float, float, float, float]:
        own, machine = psutil.Process().cpu_times(), psutil.cpu_times()
        cpu = own.user + own.system + own.children_user + own.children_system
        served = sum(times.user + times.system for times in (one.cpu_times() for one in self._servers))
        # Time that the host of a virtual machine takes away is time of others, too.
        busy = machine.user + machine.nice + machine.system + machine.irq + machine.softirq + machine.steal
        return time.monotonic(), cpu, served, busy


def measure(
    command: Sequence[str], *, cwd: Path, environ: Mapping[str, str], log: Path, servers: Sequence[int] = ()
) -> Usage:
    """Runs ``command`` to its end, appends its output to ``log``, and returns its cost.

    A command that runs for more than 15 minutes is killed. ``servers`` as in :class:`Meter`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    how: dict[str, Any] = {"cwd": cwd, "env": environ, "stdin": subprocess.DEVNULL, "start_new_session": True}
    peak, pause, deadline = 0, 0.01, time.monotonic() + 900
    with log.open("ab") as out, Meter(servers) as meter:
        process = subprocess.Popen(command, stdout=out, stderr=out, **how)
        ended = os.pidfd_open(process.pid)
        while not select.select([ended], [], [], pause)[0]:
            start = time.process_time()
            peak = max(peak, _memory_of(process.pid))
            # Otherwise sampling many processes would slow down the measured command: it gets 3 % of a core.
            pause = max(0.05, (time.process_time() - start) / 0.03)
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
        os.close(ended)
        process.wait()
    return meter.usage._replace(status=process.returncode, peak_mb=peak / 1e6)


def _memory_of(pid: int) -> int:
    """Returns the bytes of a process and its descendants; shared pages count once (proportional set size)."""
    total = 0
    with contextlib.suppress(psutil.Error):  # the process has ended
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


class Bar(NamedTuple):
    """The limit of a ratio."""

    sign: str
    limit: float

    def keeps(self, ratio: float) -> bool:
        return ratio <= self.limit if self.sign == "≤" else ratio >= self.limit


def at_most(limit: float) -> Bar:
    return Bar("≤", limit)


def at_least(limit: float) -> Bar:
    return Bar("≥", limit)


class Row(NamedTuple):
    """One line of a table. ``ratio`` is compared with ``bar``; with a ``unit`` it is a size, not a ratio.

    ``figures`` are the cells of further columns by name. ``problems`` explain a failed measurement, ``skipped``
    explains a missing one. ``others`` as in :class:`Usage`.
    """

    label: str
    ratio: float
    bar: Bar | None = None
    figures: Mapping[str, str] = {}
    problems: Sequence[str] = ()
    others: float = 0.0
    unit: str = ""
    skipped: str = ""

    @classmethod
    def of(
        cls, label: str, usage: Usage, against: float, bar: Bar | None, problems: Sequence[str] = ()
    ) -> Row:
        """Returns the row of a wall time over ``against`` seconds."""
        cells = f"{usage.wall:.2f}", f"{usage.cpu:.1f}", f"{usage.peak_mb:.0f}", f"{against:.2f}"
        figures = dict(zip(COLUMNS, cells, strict=True))
        return cls(label, usage.wall / max(against, 1e-9), bar, figures, problems, usage.others)

    @property
    def verdict(self) -> str:
        if self.problems:
            return "FAILED"
        if self.skipped:
            return "skipped"
        return "" if self.bar is None else "ok" if self.bar.keeps(self.ratio) else "MISSED"

    @property
    def keeps(self) -> bool:
        """True if the measurement did not fail and did not miss its bar."""
        return self.verdict in ("ok", "", "skipped")

    @property
    def cells(self) -> tuple[str, str, str]:
        """The ratio, the bar and the verdict as text."""
        digits = 3 if self.ratio < 0.1 else 2 if self.ratio < 100 else 0
        ratio = "" if math.isnan(self.ratio) else f"{self.ratio:.{digits}f}{self.unit}"
        return ratio, f"{self.bar.sign} {self.bar.limit:g}{self.unit}" if self.bar else "", self.verdict


class Table:
    """Prints rows as they are added. ``status`` is 1 after a row has failed or missed its bar."""

    def __init__(self, about: str, *columns: str, tries: int = 3) -> None:
        self.status, self._columns, self._tries = 0, columns, tries
        print(f"{about}; {available_cores()} cores", flush=True)
        self._print("", "ratio", "bar", "verdict", *columns, "others")

    def add(self, *rows: Row) -> None:
        """Prints ``rows``."""
        for row in rows:
            self.status |= not row.keeps
            figures = [row.figures.get(name, "") for name in self._columns]
            self._print(row.label, *row.cells, *figures, f"{row.others:.2f}")
            for reason in (*row.problems, *filter(None, [row.skipped])):
                print(f"    {reason}", flush=True)

    def measure(self, run: Callable[..., Sequence[Row]], *given: Any) -> None:
        """Adds the rows that ``run`` returns. Calls it again while a bar is missed on a busy machine."""
        tries: list[Sequence[Row]] = []
        while len(tries) < self._tries:
            tries.append(run(*given))
            is_disturbed = any(row.others > _FREE for row in tries[-1])
            if not is_disturbed or not any(row.verdict == "MISSED" for row in tries[-1]):
                break
        self.add(*min(tries, key=lambda rows: sum(not row.keeps for row in rows)))

    def _print(self, label: str, *cells: str) -> None:
        widths = (8, 8, 7, *(max(6, len(name)) for name in self._columns), 6)
        shown = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        print(f"{label:{_LABEL_WIDTH}}", *shown, sep="  ", flush=True)


def run_program(about: str, main: Callable[[Table, Path, bool], None]) -> None:
    """Runs ``main`` with a table, a temporary folder and the value of ``--small``; exits with the table's status."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tests the program: a few items, one try")
    is_small = parser.parse_args().small
    table = Table(about.splitlines()[0], *COLUMNS, tries=1 if is_small else 3)
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        main(table, Path(folder), is_small)
    sys.exit(table.status)
