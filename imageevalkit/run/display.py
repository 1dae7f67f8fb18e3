"""Displays a run: a live block on a terminal or plain lines while it runs, its summary and a table at its end."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import ExitStatus, say
from imageevalkit.common.text import counted, dollars, plain
from imageevalkit.jobs.plan import COMPLETE, FAILED, INCOMPLETE, STALE, EvaluateOrder, Job, Plan
from imageevalkit.jobs.progress import Pace
from imageevalkit.run.runner import LOG_HEADER, last_line
from imageevalkit.store.cell import SITE, output_root, short_path

SKIPPED, BLOCKED, INTERRUPTED = "skipped", "blocked", "interrupted"
"""States that only a launcher sets: a dependency failed; the plan blocks the cell; the run was stopped."""

_BAR, _WIDE = 16, 60  # columns of a progress bar, and of the narrowest terminal with bars
_GREEN, _YELLOW, _RED = "green", "yellow", "red"
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


def _console(stream: TextIO) -> Console:
    """Return a console that prints text as it is: brackets in a message of a model are no markup."""
    return Console(
        file=stream,
        force_terminal=stream.isatty(),
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
    )


def clock(seconds: float) -> str:
    """Return ``seconds`` as ``0:07``, ``12:34`` or ``1:02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


_PLAIN_INTERVAL = 10.0  # seconds between two lines about one cell: more lines would flood a log
_PLAIN_CELLS = 5  # if more cells run at once, each has a line less often
_WAITING_INTERVAL = 300.0  # seconds between two lines about a waiting job, which may wait for hours
_REDRAW_INTERVAL = 0.2


@dataclass(frozen=True)
class StageSummary:
    """The end of one stage of one cell. ``attempts`` counts the starts of its job; 0: the job never ran.

    ``is_empty``: a shard produced nothing. A cell whose shards are all empty has failed.
    """

    cell: str
    stage: str
    job: str
    state: str
    message: str = ""
    log: str = ""
    attempts: int = 0
    is_empty: bool = False


@dataclass(frozen=True)
class JobSummary:
    """The end of one job. ``exit`` is how its last attempt ended (``exit status 1``, ``SIGKILL``) or ""."""

    name: str
    stage: str
    state: str
    message: str
    exit: str = ""
    attempts: int = 0
    seconds: float = 0.0
    log: str = ""


@dataclass(frozen=True)
class CellSummary:
    """The end of one cell. Its state, message and log come from its worst stage.

    ``cause`` is the message of the first earlier stage that is not complete: why images are missing.
    """

    cell: str
    state: str
    message: str
    log: str
    stages: list[StageSummary]
    cause: str = ""


@dataclass(frozen=True)
class RunSummary:
    """The end of a run. ``status`` is the exit status of the command."""

    status: ExitStatus
    seconds: float
    cells: list[CellSummary]
    jobs: list[JobSummary]

    def save(self, run_folder: Path) -> None:
        """Write ``summary.json``. Raises CellFailure if the disk is full."""
        raw = asdict(self) | {"status": int(self.status)}
        write_atomic(run_folder / "summary.json", json.dumps(raw, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class RunningJob:
    """A running job with the progress of its cells (``paces``), ``seconds`` after its start."""

    job: Job
    seconds: float
    paces: Sequence[Pace]


class WaitingJob(NamedTuple):
    """A job that is ready but cannot start, the reason, and the ``seconds`` since it began to wait."""

    job: str
    why: str
    seconds: float


@dataclass(frozen=True)
class View:
    """The state of a run at one moment. ``waiting`` are the jobs that are ready but cannot start.

    ``money`` is the cost so far, as text; empty if no price is known.
    """

    seconds: float
    cells: int
    cells_done: int
    cells_failed: int
    running: Sequence[RunningJob] = ()
    waiting: Sequence[WaitingJob] = ()
    money: str = ""


class Display:
    """Prints plain lines: at the start and end of each job, and now and then for each running cell."""

    def __init__(self, stream: TextIO) -> None:
        self._console = _console(stream)
        self._shown: dict[object, tuple[float, object]] = {}

    def job_started(self, job: Job, attempt: int, gpus: str = "") -> None:
        """Show the start of ``job`` on ``gpus``, if it is the first ``attempt``; others have a line."""
        if attempt == 1:
            on = f" on {gpus}" if gpus else ""
            self.tell("started", f"{job.name}{on}, log {short_path(job.logs[0])}")

    def stage_ended(self, stage: StageSummary) -> None:
        """Show the outcome of a stage of a cell."""
        text = f"{stage.stage} {stage.cell}"
        if stage.message:
            text += f": {stage.message}"
        if stage.state != COMPLETE and stage.log:
            text += f", log {short_path(stage.log)}"
        self.tell(stage.state, text, stage.state)

    def job_ended(self, job: JobSummary) -> None:
        """Show that a job has ended for good, or never started for a reason that concerns no cell."""
        word = "ended" if job.state == COMPLETE else job.state
        told = [job.name, job.message or job.exit, clock(job.seconds) if job.attempts else ""]
        self.tell(word, ", ".join(filter(None, told)), job.state)

    def refresh(self, view: View) -> None:
        """Show ``view``. The launcher calls this several times a second."""
        for waiting in view.waiting:
            so_far = f" (for {clock(waiting.seconds)})" if waiting.seconds >= _WAITING_INTERVAL else ""
            text = f"{waiting.job} {waiting.why}{so_far}"
            self._now_and_then(waiting.job, _WAITING_INTERVAL, waiting.seconds, "waiting", text)
        # many running cells would flood a log: each gets a line less often
        interval = _PLAIN_INTERVAL * max(1.0, sum(len(r.paces) for r in view.running) / _PLAIN_CELLS)
        for running in view.running:
            for pace in running.paces:
                progress, text = pace.progress, " ".join(_parts(running, pace))
                # a note such as "loading model" is repeated although no number changes
                state = time.monotonic() if progress.note else progress.done
                self._now_and_then((running.job.name, progress.cell), interval, state, "running", text)
        self._now_and_then("", _PLAIN_INTERVAL, view.money, "spent", view.money)

    def close(self, money: str) -> None:
        """Show the final cost ``money`` of the run."""
        self._now_and_then("", 0.0, money, "spent", money)

    def _now_and_then(self, about: object, interval: float, state: object, word: str, text: str) -> None:
        """Print a line, unless the last ``about`` this is younger than ``interval`` or had this ``state``."""
        now = time.monotonic()
        shown, before = self._shown.get(about, (-math.inf, None))
        if text and now - shown >= interval and state != before:
            self._shown[about] = (now, state)
            self.tell(word, text)

    def tell(self, word: str, text: str, state: str = "") -> None:
        """Print a line that begins with ``word``, in the colour of ``state``."""
        self._console.print(f"[{time.strftime('%H:%M:%S')}] {word.ljust(STATE_WIDTH)} {plain(text)}")


class LiveDisplay(Display):
    """Redraws a block of lines at the bottom of a terminal; lines about ended jobs scroll above it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._drawn = 0.0

    def job_started(self, job: Job, attempt: int, gpus: str = "") -> None:
        pass  # the block has a line for the job

    def job_ended(self, job: JobSummary) -> None:
        if job.message:  # without a message, the lines of its cells say everything
            super().job_ended(job)

    def refresh(self, view: View) -> None:
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_INTERVAL:
            self._drawn = now
            if not self._live.is_started:
                self._live.start()
                self._console.show_cursor(True)  # a killed run would leave the terminal without a cursor
            self._live.update(self._block(view), refresh=True)

    def close(self, money: str) -> None:
        self._live.stop()
        super().close(money)

    def tell(self, word: str, text: str, state: str = "") -> None:
        # not cut to the width: the line stays, and a cut path cannot be copied
        self._console.print(Text.assemble(_state(word, state), " ", plain(text)))

    def _block(self, view: View) -> Group:
        head = f"{view.cells_done}/{view.cells} results done"
        if view.cells_failed:
            head += f", {view.cells_failed} failed"
        money = f" · spent {view.money}" if view.money else ""
        rows = [row for running in view.running for row in self._rows(running)]
        below = [f"waiting {clock(one.seconds)} {one.job} {one.why}" for one in view.waiting]
        # the cursor cannot move above the screen: a taller block could not be erased
        room = max(2, self._console.height - 2) - 1
        if (total := len(rows) + len(below)) > room:
            rows = rows[: room - 1]
            below = [*below[: room - 1 - len(rows)], f"… and {total - room + 1} more"]
        table = Table.grid(padding=(0, 1, 0, 0))
        for row in rows:
            table.add_row(*row)
        for column in table.columns:
            column.no_wrap = True
        head, *below = (f"{head} · {clock(view.seconds)}{money}", *map(plain, below))
        lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in (head, *below)]
        return Group(lines[0], *[table] * bool(rows), *lines[1:])

    def _rows(self, running: RunningJob) -> Iterator[list[RenderableType]]:
        """Yield a row for each cell of a job: stage, cell, bar and numbers. A narrow terminal has no bar."""
        if not running.paces:
            yield [running.job.stage, Text(plain(running.job.name)), f"starting {clock(running.seconds)}"]
        for pace in running.paces:
            stage, cell, *numbers = _parts(running, pace)
            done, total = pace.progress.done, pace.progress.total
            bar = [ProgressBar(total, done, _BAR)] if self._console.width >= _WIDE else []
            yield [Text(stage), Text(cell), *bar, Text(" ".join(numbers))]


def _state(word: str, state: str) -> Text:
    return Text(word.ljust(STATE_WIDTH), _COLOURS.get(state, ""))


def choose_display(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Display:
    """Return the live display if ``stream`` is a terminal that can redraw lines, else plain lines."""
    live = stream.isatty() and environ.get("TERM", "dumb") != "dumb"
    return LiveDisplay(stream) if live else Display(stream)


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


def print_repeats(plan: Plan) -> None:
    """Print the last log line of each job that repeats questions to judges: the table of cells has none."""
    for job in plan.jobs:
        if job.always and isinstance(job.order, EvaluateOrder):
            for cell, log in zip(job.cells, job.logs, strict=True):
                if line := last_line(log):
                    say(f"repeat:{cell}: {line}")


def print_report(plan: Plan) -> None:
    """Print the log of the report, which is the last job of the plan."""
    log = Path(plan.jobs[-1].logs[0])
    if log.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        say("\n".join(line for line in lines if not line.startswith(LOG_HEADER)))


def show_gallery(benchmark: str) -> None:
    """Prints the address of a benchmark's gallery in the report. On a desktop, a browser opens it."""
    page = output_root() / SITE / "index.html"
    if not page.is_file():
        return
    address = f"{page.as_uri()}#/gallery/{benchmark}"
    say(f"gallery: {address}")
    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    has_desktop = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if opener and has_desktop and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ:
        with Path(os.devnull).open("wb") as null:
            subprocess.Popen([opener, address], stdout=null, stderr=null, start_new_session=True)


def print_table(summary: RunSummary, stream: TextIO) -> None:
    """Print each cell with its state and log, and below it the reason and the cause if it is not complete."""
    console = _console(stream)
    told = [(cell.cell, cell.state, cell.log, (cell.message, cell.cause)) for cell in summary.cells]
    # jobs only if no cell shows their failure: the report, and failures after the last outcome
    with_cells = {stage.job for cell in summary.cells for stage in cell.stages}
    told += [
        (job.name, job.state, job.log, (job.message or job.exit, ""))
        for job in summary.jobs
        if job.state not in (COMPLETE, SKIPPED) and (job.message or job.name not in with_cells)
    ]
    width = max((cell_len(plain(name)) for name, *_ in told), default=0)
    for name, state, log, messages in told:
        shown = plain(name) + " " * (width - cell_len(plain(name)))
        line = Text.assemble(shown, "  ", _state(state, state), "  ", plain(short_path(log)) if log else "")
        line.rstrip()
        console.print(line)
        for message in filter(None, messages):
            console.print(f"    {plain(message)}")
    counts = Counter(cell.state for cell in summary.cells)
    states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "nothing to do"
    console.print(
        f"{counted(len(summary.cells), 'result')}: {states} · {clock(summary.seconds)} · "
        f"exit status {int(summary.status)} ({summary.status.name.lower()})"
    )
