"""What the user sees of a run: while it goes on a live block on a terminal or plain lines, a table at its end."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TextIO

from imageevalkit.cell import short_path
from imageevalkit.jobs import COMPLETE, FAILED, INCOMPLETE, STALE, Job
from imageevalkit.launch.summary import BLOCKED, INTERRUPTED, SKIPPED, JobSummary, RunSummary, StageSummary
from imageevalkit.progress import Pace
from imageevalkit.text import columns_of, counted, dollars, fit, plain

_BAR = 16
_GREEN, _YELLOW, _RED = "32", "33", "31"
_COLOURS = {
    COMPLETE: _GREEN,
    INCOMPLETE: _YELLOW,
    STALE: _YELLOW,
    INTERRUPTED: _YELLOW,
    FAILED: _RED,
    SKIPPED: _RED,
    BLOCKED: _RED,
}
STATE_WIDTH = max(map(len, _COLOURS))


class Paint:
    """Colour and symbols as far as the stream and the user allow."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        self._colour = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"

    def __call__(self, text: str, state: str) -> str:
        colour = _COLOURS.get(state)
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour and text else text

    def bar(self, done: int, total: int) -> str:
        """A bar of fixed width that is full only when ``done`` is ``total``."""
        filled = _BAR * done // total if total else 0
        full, empty = ("█", "░") if self._unicode else ("#", "-")
        return full * filled + empty * (_BAR - filled)


def clock(seconds: float) -> str:
    """``seconds`` as ``0:07``, ``12:34`` or ``1:02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


_PLAIN_INTERVAL = 10.0  # seconds between two lines about one cell: a log should stay readable
_PLAIN_CELLS = 5  # at once; of more each has its line less often
_WAITING_INTERVAL = 300.0  # between two lines about a job that waits: it may do so for hours
_REDRAW_INTERVAL = 0.2


@dataclass(frozen=True)
class RunningJob:
    """A running job as the display needs it, with the cells it works on; ``seconds`` since its start."""

    job: Job
    seconds: float
    paces: Sequence[Pace]


class WaitingJob(NamedTuple):
    """A job that could start, had it GPUs; ``seconds`` since it first could."""

    job: str
    why: str
    seconds: float


class Money(NamedTuple):
    """USD that the run has spent so far, and its bound, if it has one."""

    spent: float
    bound: float | None

    def __str__(self) -> str:
        return dollars(self.spent) + (f" of {dollars(self.bound)}" if self.bound is not None else "")


@dataclass(frozen=True)
class View:
    """The state of a run at one moment. ``waiting`` are the jobs that others keep from starting.

    ``money`` is None where no price is known.
    """

    seconds: float
    cells: int
    cells_done: int
    cells_failed: int
    running: Sequence[RunningJob] = ()
    waiting: Sequence[WaitingJob] = ()
    money: Money | None = None


class Display:
    """Plain lines: start and end of each job, and a line per running cell now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._broken = False
        self._shown: dict[tuple[str, str], tuple[float, int]] = {}
        self._waiting_shown: dict[str, float] = {}
        self._money = ""
        self._money_shown = -math.inf

    def job_started(self, job: Job, attempt: int, gpus: str = "") -> None:
        """A job was started for the ``attempt``-th time, on ``gpus`` if it has any."""
        if attempt == 1:
            on = f" on {gpus}" if gpus else ""
            self._line("started", f"{job.name}{on}, log {short_path(job.logs[0])}")

    def job_retried(self, text: str) -> None:
        """A job crashed and is started again."""
        self._line("retry", text, INCOMPLETE)

    def stopping(self, text: str) -> None:
        """The run was told to stop."""
        self._line("stopping", text, INTERRUPTED)

    def stage_ended(self, stage: StageSummary) -> None:
        """A stage of a cell has its outcome."""
        text = f"{stage.stage} {stage.cell}"
        if stage.message:
            text += f": {stage.message}"
        if stage.state != COMPLETE and stage.log:
            text += f", log {short_path(stage.log)}"
        self._line(stage.state, text, stage.state)

    def job_ended(self, job: JobSummary) -> None:
        """A job has ended for good, or never started for a reason that concerns no cell."""
        word = "ended" if job.state == COMPLETE else job.state
        told = [job.name, job.message or job.exit, clock(job.seconds) if job.attempts else ""]
        self._line(word, ", ".join(filter(None, told)), job.state)

    def refresh(self, view: View) -> None:
        """Show ``view``; called several times a second."""
        now = time.monotonic()
        for waiting in view.waiting:
            if now - self._waiting_shown.get(waiting.job, -math.inf) >= _WAITING_INTERVAL:
                self._waiting_shown[waiting.job] = now
                so_far = f" (for {clock(waiting.seconds)})" if waiting.seconds >= _WAITING_INTERVAL else ""
                self._line("waiting", f"{waiting.job} {waiting.why}{so_far}")
        # many cells in one log: the lines of all together should stay as readable as those of a few
        interval = _PLAIN_INTERVAL * max(1.0, sum(len(r.paces) for r in view.running) / _PLAIN_CELLS)
        for running in view.running:
            for pace in running.paces:
                if self._is_due(running.job, pace, interval):
                    self._line("running", " ".join(_parts(running, pace)))
        if time.monotonic() - self._money_shown >= _PLAIN_INTERVAL:
            self._tell_money(view.money)

    def close(self, money: Money | None) -> None:
        """The run has ended and has cost ``money``."""
        self._tell_money(money)

    def _tell_money(self, money: Money | None) -> None:
        if money and str(money) != self._money:
            self._money, self._money_shown = str(money), time.monotonic()
            self._line("spent", self._money)

    def _is_due(self, job: Job, pace: Pace, interval: float) -> bool:
        now = time.monotonic()
        key = (job.name, pace.progress.cell)
        shown, done = self._shown.get(key, (-math.inf, -1))
        if now - shown < interval or (pace.progress.done == done and not pace.progress.note):
            return False
        self._shown[key] = (now, pace.progress.done)
        return True

    def _line(self, word: str, text: str, state: str = "") -> None:
        self._write(f"[{time.strftime('%H:%M:%S')}] {word.ljust(STATE_WIDTH)} {plain(text)}\n")

    def _write(self, text: str) -> None:
        if self._broken:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._broken = True  # the terminal or the reader is gone; the run is not


class LiveDisplay(Display):
    """A block of a few lines at the bottom of a terminal, redrawn; what has ended scrolls above it."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(stream)
        self._paint = Paint(stream, environ)
        self._block: list[str] = []
        self._drawn = 0.0

    def job_started(self, job: Job, attempt: int, gpus: str = "") -> None:
        pass  # it has a line in the block

    def job_ended(self, job: JobSummary) -> None:
        if job.message:  # else its cells have told it all
            super().job_ended(job)

    def refresh(self, view: View) -> None:
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_INTERVAL:
            self._drawn = now
            self._draw(self._lines(view))

    def close(self, money: Money | None) -> None:
        self._draw([])
        super().close(money)

    def _line(self, word: str, text: str, state: str = "") -> None:
        block = self._block
        self._draw([])
        # not cut to the width: this stays, and a path must be whole to be copied
        self._write(f"{self._paint(word.ljust(STATE_WIDTH), state)} {plain(text)}\n")
        self._draw(block)

    def _draw(self, lines: list[str]) -> None:
        up = f"\x1b[{len(self._block)}A" if self._block else ""
        self._write(up + "\r\x1b[J" + "".join(f"{line}\n" for line in lines))
        self._block = lines

    def _lines(self, view: View) -> list[str]:
        columns, rows = shutil.get_terminal_size()
        head = f"{view.cells_done}/{view.cells} cells done"
        if view.cells_failed:
            head += f", {view.cells_failed} failed"
        money = f" · spent {view.money}" if view.money else ""
        lines = [fit(f"{head} · {clock(view.seconds)}{money}", columns - 1)]
        for running in view.running:
            lines += self._running_lines(running, columns - 1)
        for waiting in view.waiting:
            text = f"waiting {clock(waiting.seconds)} {waiting.job} {waiting.why}"
            lines.append(fit(plain(text), columns - 1))
        # the cursor cannot move above the screen: a taller block would smear
        room = max(2, rows - 2)
        if len(lines) > room:
            lines[room - 1 :] = [f"… and {len(lines) - room + 1} more"]
        return lines

    def _running_lines(self, running: RunningJob, width: int) -> list[str]:
        if not running.paces:
            return [fit(f"{plain(running.job.name)}  starting  {clock(running.seconds)}", width)]
        cells = max(columns_of(plain(pace.progress.cell)) for pace in running.paces)
        return [self._running_line(running, pace, cells, width) for pace in running.paces]

    def _running_line(self, running: RunningJob, pace: Pace, cells: int, width: int) -> str:
        parts = _parts(running, pace)
        aligned = parts[1] + " " * (cells - columns_of(parts[1]))
        wide = [parts[0], aligned, self._paint.bar(pace.progress.done, pace.progress.total), *parts[2:]]
        # what must be seen: the rate, and the money where there is any
        needed = wide[:5] if pace.progress.cost is None else wide[:7]
        fits = sum(columns_of(part) + 1 for part in needed) <= width
        return fit(" ".join(wide if fits else parts), width)  # the numbers say what the bar does


def choose_display(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Display:
    """The live block where ``stream`` is a terminal that can redraw, else plain lines."""
    live = stream.isatty() and environ.get("TERM", "dumb") != "dumb"
    return LiveDisplay(stream, environ) if live else Display(stream)


def _parts(running: RunningJob, pace: Pace) -> list[str]:
    progress = pace.progress
    parts = [plain(progress.stage or running.job.stage), plain(progress.cell)]
    parts.append(f"{progress.done}/{progress.total}")
    if pace.rate and progress.done < progress.total:
        parts.append(f"{pace.rate:.3g}/s" if pace.rate >= 0.1 else f"{1 / pace.rate:.3g} s each")
        parts.append(f"ETA {clock(pace.eta or 0)}")
    if progress.cost is not None:
        parts.append(dollars(progress.cost))
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.note:
        parts.append(plain(progress.note))
    return parts


def print_table(summary: RunSummary, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Every cell with its state, its log, and below it the reason where it is not complete."""
    paint = Paint(stream, environ)
    told = [(cell.cell, cell.state, cell.log, cell.message) for cell in summary.cells]
    # jobs only where no cell tells of them: the report, and what went wrong after the last outcome
    told += [
        (job.name, job.state, job.log, job.message or job.exit)
        for job in summary.jobs
        if job.state not in (COMPLETE, SKIPPED) and (job.message or not _has_cells(job, summary))
    ]
    # before it is painted: what the terminal is told to do is ours alone
    rows = [
        (plain(name), state, plain(short_path(log)) if log else "", plain(message))
        for name, state, log, message in told
    ]
    name_width = max([columns_of(row[0]) for row in rows], default=0)
    for name, state, log, message in rows:
        padding = " " * (name_width - columns_of(name))
        line = f"{name}{padding}  {paint(state.ljust(STATE_WIDTH), state)}  {log}"
        stream.write(f"{line.rstrip()}\n")
        if message:
            stream.write(f"    {message}\n")
    counts = Counter(cell.state for cell in summary.cells)
    states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing to do"
    stream.write(
        f"{counted(len(summary.cells), 'cell')}: {states} · {clock(summary.seconds)} · "
        f"exit status {int(summary.status)} ({summary.status.name.lower()})\n"
    )
    stream.flush()


def _has_cells(job: JobSummary, summary: RunSummary) -> bool:
    return any(stage.job == job.name for cell in summary.cells for stage in cell.stages)
