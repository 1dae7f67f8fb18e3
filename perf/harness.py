"""What all programs of this folder share: their options, what a command costs, and one table of ratios and bars.

Two cores that others use as well make a ratio worse, never better: what misses its bar while something else took more
than a tenth of a core is measured again, up to three times in all (``--tries``).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from imageevalkit.common.machine import available_cores

REPO = Path(__file__).resolve().parent.parent
MIRROR = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared/mirror")
"""Benchmarks' own prompts, for programs that take the real ones where there are any."""
USAGE = ("wall s", "CPU s", "MB", "server CPU s")
"""The columns that :class:`Usage` fills."""

_FREE = 0.1
_INTERVAL = 0.05
# Sampling many processes costs milliseconds of the very cores that are measured: it gets this share of one.
_SAMPLER_SHARE = 0.03
_LONGEST_RUN = 900.0
_LABEL_WIDTH = 64


class Seconds(NamedTuple):
    """Of the monotonic clock, and of CPU: this process, its ended children, and all of the machine."""

    clock: float
    own: float
    ended: float
    busy: float

    @classmethod
    def now(cls) -> Seconds:
        """Returns the seconds until now. Seconds of the machine include those that its host has stolen."""
        own, machine = psutil.Process().cpu_times(), psutil.cpu_times()
        busy = machine.user + machine.nice + machine.system + machine.irq + machine.softirq + machine.steal
        ended = own.children_user + own.children_system
        return cls(time.monotonic(), time.process_time(), ended, busy)

    def since(self, earlier: Seconds) -> Seconds:
        """Returns the seconds between ``earlier`` and this time."""
        return Seconds(*(after - before for after, before in zip(self, earlier, strict=True)))


class Usage(NamedTuple):
    """``wall`` and ``cpu`` in seconds, ``peak_mb`` in 10⁶ bytes; ``started`` is on ``time.monotonic``'s clock.

    ``server_cpu`` is what the servers took meanwhile. ``others``: how many cores everything else on the machine kept
    busy.
    """

    status: int
    started: float
    wall: float
    cpu: float
    peak_mb: float
    server_cpu: float
    others: float

    @property
    def how_it_ended(self) -> str:
        """``exit status 1 after 12 s``; of a command that took too long, that it was killed."""
        if self.status < 0 and self.wall >= _LONGEST_RUN:
            return f"killed after {self.wall:.0f} s, as a run may take {_LONGEST_RUN:.0f} s: is the machine busy?"
        how = f"exit status {self.status}" if self.status >= 0 else signal.Signals(-self.status).name
        return f"{how} after {self.wall:.0f} s"

    @property
    def figures(self) -> dict[str, str]:
        """For the columns of a table."""
        shown = f"{self.wall:.2f}", f"{self.cpu:.1f}", f"{self.peak_mb:.0f}", f"{self.server_cpu:.2f}"
        return dict(zip(USAGE, shown, strict=True))


def measure(
    command: Sequence[str], *, cwd: Path, environ: Mapping[str, str], log: Path, servers: Sequence[int] = ()
) -> Usage:
    """Run ``command`` to its end, its output appended to ``log``; killed after 15 minutes.

    ``servers`` are the pids of processes whose load belongs to the measurement and is not ``others``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    served_before, before = sum(map(_seconds_of, servers)), Seconds.now()
    with log.open("ab") as out:
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
            process.wait()
    spent = Seconds.now().since(before)
    served = sum(map(_seconds_of, servers)) - served_before
    others = max(0.0, spent.busy - spent.own - spent.ended - served) / spent.clock
    peak = sampler.peak / 1e6
    return Usage(process.returncode, before.clock, spent.clock, spent.ended, peak, served, others)


class Cost:
    """Seconds of this process by the clock and of CPU, its threads and ended children included, added up over turns.

    ``with cost: …`` adds one turn. ``others`` is as in :class:`Usage`.
    """

    def __init__(self) -> None:
        self.wall = self.cpu = self._elsewhere = 0.0

    def __enter__(self) -> Cost:
        self._before = Seconds.now()
        return self

    def __exit__(self, *_: object) -> None:
        spent = Seconds.now().since(self._before)
        cpu = spent.own + spent.ended
        self.cpu, self.wall = self.cpu + cpu, self.wall + spent.clock
        self._elsewhere += max(0.0, spent.busy - cpu)

    @property
    def others(self) -> float:
        return self._elsewhere / self.wall


class Bar(NamedTuple):
    """A ratio that is to be kept."""

    sign: str
    limit: float

    def keeps(self, ratio: float) -> bool:
        return ratio <= self.limit if self.sign == "≤" else ratio >= self.limit


def at_most(limit: float) -> Bar:
    return Bar("≤", limit)


def at_least(limit: float) -> Bar:
    return Bar("≥", limit)


class Row(NamedTuple):
    """One line of a table: ``ratio``, or where it has a ``unit`` a size of its own, is held against ``bar``.

    ``figures`` are by column; ``problems`` say why nothing was measured, ``skipped`` why nothing was to be. ``others``
    as in :class:`Usage`.
    """

    label: str
    ratio: float
    bar: Bar | None = None
    figures: Mapping[str, str] = {}
    problems: Sequence[str] = ()
    others: float = 0.0
    unit: str = ""
    skipped: str = ""

    @property
    def verdict(self) -> str:
        if self.problems:
            return "FAILED"
        if self.skipped:
            return "skipped"
        return "" if self.bar is None else "ok" if self.bar.keeps(self.ratio) else "MISSED"

    @property
    def keeps(self) -> bool:
        """Whether nothing failed and no bar was missed."""
        return self.verdict in ("ok", "", "skipped")

    @property
    def cells(self) -> tuple[str, str, str]:
        """The ratio, the bar and the verdict, as a table shows them."""
        digits = 3 if self.ratio < 0.1 else 2 if self.ratio < 100 else 0
        ratio = "" if math.isnan(self.ratio) else f"{self.ratio:.{digits}f}{self.unit}"
        return ratio, f"{self.bar.sign} {self.bar.limit:g}{self.unit}" if self.bar else "", self.verdict


class Table:
    """Prints its rows as they come; ``status`` is 1 once a row failed or missed its bar."""

    def __init__(self, about: str, *columns: str, tries: int = 3) -> None:
        self.status, self._columns, self._tries = 0, columns, tries
        print(f"{about}; {available_cores()} cores", flush=True)
        self._print("", "ratio", "bar", "verdict", *columns, "others")

    def add(self, *rows: Row) -> None:
        """Print ``rows``."""
        for row in rows:
            self.status |= not row.keeps
            self._print(
                row.label,
                *row.cells,
                *(row.figures.get(name, "") for name in self._columns),
                f"{row.others:.2f}",
            )
            for reason in (*row.problems, *filter(None, [row.skipped])):
                print(f"    {reason}", flush=True)

    def measure(self, run: Callable[..., Sequence[Row]], *given: Any) -> None:
        """Add the rows that ``run`` gives; it runs again while a bar is missed on a machine that is not free."""
        tries: list[Sequence[Row]] = []
        while len(tries) < self._tries:
            tries.append(run(*given))
            is_disturbed = any(row.others > _FREE for row in tries[-1])
            if not is_disturbed or not any(row.verdict == "MISSED" for row in tries[-1]):
                break
        self.add(*min(tries, key=lambda rows: sum(not row.keeps for row in rows)))

    def _print(self, label: str, *cells: str) -> None:
        widths = (8, 8, 7, *(max(6, len(name)) for name in self._columns), 6)
        print(
            f"{label:{_LABEL_WIDTH}}",
            *(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)),
            sep="  ",
            flush=True,
        )


def run_program(
    about: str,
    main: Callable[[argparse.Namespace, Path], Table],
    **options: tuple[Any, str],
) -> None:
    """Read the command line and end with the status of the table that ``main`` prints, given a folder to work in.

    ``options`` are the default and the help of each: a tuple is one or more of those words, separated by commas, False
    a switch.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (default, words) in {"tries": (3, "on a machine that is not free"), **options}.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true", help=words)
        elif isinstance(default, tuple):
            read: Callable[[str], list[str]] = lambda text: text.split(",")  # noqa: E731
            shown = f"{words} ({','.join(default)})"
            parser.add_argument(f"--{name}", type=read, default=[*default], metavar="A,B", help=shown)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{words} ({default})")
    given = parser.parse_args()
    for name, (default, _) in options.items():
        if isinstance(default, tuple) and (unknown := set(getattr(given, name)) - {*default}):
            parser.error(f"--{name} {','.join(unknown)}: use {','.join(default)}")
    with tempfile.TemporaryDirectory(prefix="perf-") as folder:
        table = main(given, Path(folder))
    sys.exit(table.status)


class _Sampler(threading.Thread):
    """Samples the memory of a process and its descendants while used as a context manager; kills it after 15 minutes.

    ``peak`` (bytes) is the largest sum of proportional set sizes: pages that processes share, as those of a
    forked pool, count once.
    """

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._root = root
        self._done = threading.Event()

    def __enter__(self) -> _Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        pause, deadline = 0.0, time.monotonic() + _LONGEST_RUN
        while not self._done.wait(pause):
            start, total = time.thread_time(), 0
            with contextlib.suppress(psutil.Error):  # they have ended
                root = psutil.Process(self._root)
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        total += process.memory_full_info().pss
                if time.monotonic() > deadline:
                    os.killpg(self._root, signal.SIGKILL)
            self.peak = max(self.peak, total)
            pause = max(_INTERVAL, (time.thread_time() - start) / _SAMPLER_SHARE)


def _seconds_of(pid: int) -> float:
    """CPU seconds of one process so far."""
    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)
