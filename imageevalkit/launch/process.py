"""One attempt of one job: its environment, its log, its guard, and what to say about how it ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from imageevalkit.cell import REPO
from imageevalkit.errors import ExitStatus
from imageevalkit.jobs import Job, Plan
from imageevalkit.launch import guard
from imageevalkit.progress import PROGRESS_ENV
from imageevalkit.secrets import environ_with
from imageevalkit.text import plain

OUR_PATHS = (REPO, REPO / "infer")
CORES_ENV = "IMAGEEVALKIT_CORES"
LOG_HEADER = "# imageevalkit: "
"""Begins the line that the launcher itself writes into a job's log."""
# Starting the same command again cannot change these; any other status is a crash.
CANNOT_START: frozenset[int] = frozenset((guard.CANNOT_EXECUTE, guard.NOT_FOUND))
FINAL: frozenset[int] = CANNOT_START | {ExitStatus.COMPLETE, ExitStatus.INCOMPLETE, ExitStatus.USAGE}
_TAIL_BYTES = 8192
_LINE_WIDTH = 200


def progress_path(plan: Plan, job: Job) -> Path:
    """Where ``job`` reports its progress."""
    return Path(plan.run_folder) / "progress" / f"{job.file_stem}.jsonl"


def job_environ(plan: Plan, job: Job, gpus: dict[str, str], cores: int) -> dict[str, str]:
    """The environment of ``job``: the launcher's without secrets of others, its own additions, what it was given."""
    environ = with_our_paths(environ_with(job.secrets) | job.environ | gpus)
    environ[PROGRESS_ENV] = str(progress_path(plan, job).absolute())
    environ[CORES_ENV] = str(cores)
    # else the last words of a killed job die in its buffer
    environ.setdefault("PYTHONUNBUFFERED", "1")
    return environ


def with_our_paths(environ: dict[str, str]) -> dict[str, str]:
    """``environ`` with the folders in which Python finds the toolkit and what ``infer/`` registers."""
    paths = [*map(str, OUR_PATHS), *filter(None, [environ.get("PYTHONPATH")])]
    return environ | {"PYTHONPATH": os.pathsep.join(paths)}


def guarded(
    command: Sequence[str],
    log: Path,
    title: str,
    environ: dict[str, str],
    lifeline: int,
    held: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """``command`` under a guard of its own; what it prints is appended to ``log`` below a line with ``title``.

    Call it from the main thread: the guard takes the end of the thread that started it for the launcher's.

    Raises:
        OSError: the log cannot be written, or no process can be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-I", "-S", guard.__file__, str(lifeline), "--", *command]
    with log.open("ab", buffering=0) as out:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        shown = shorten(plain(shlex.join(command)))
        out.write(f"{LOG_HEADER}{when} {title}: {shown}\n".encode())
        return subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=REPO,
            env=environ,
            pass_fds=[lifeline, *held],
            start_new_session=True,
        )


def describe_exit(status: int) -> str:
    """``"exit status 1"`` or ``"SIGKILL"`` for the status a guard passed on."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit status {status}"
    return f"guard killed by {name}" if status < 0 else name


def last_line(log: str) -> str:
    """The last line of ``log`` that a job wrote, without terminal escapes, shortened; "" if there is none."""
    try:
        with (REPO / log).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return ""
    for line in reversed(re.split(r"[\r\n]+", tail)):
        text = plain(line)
        if text and not text.startswith(LOG_HEADER):
            return shorten(text)
    return ""


def shorten(text: str) -> str:
    """``text``, cut to what fits a line of a table or a log."""
    return text if len(text) <= _LINE_WIDTH else text[: _LINE_WIDTH - 1] + "…"


def log_of(job: Job, cell: str | None = None) -> str:
    """The log of ``cell`` if the job got so far, else the one written last (where a job died)."""
    if cell is not None and len(job.logs) == len(job.cells):
        own = job.logs[job.cells.index(cell)]
        if (REPO / own).exists():
            return own
    written = [log for log in job.logs if (REPO / log).exists()]
    return max(written, key=lambda log: (REPO / log).stat().st_mtime_ns) if written else job.logs[0]
