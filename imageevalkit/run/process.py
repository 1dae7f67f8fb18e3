"""Starts the process of a job: finds its Python, sets its variables, opens its log, and explains its exit."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from imageevalkit.common.errors import ExitStatus
from imageevalkit.common.redaction import environ_with
from imageevalkit.common.text import plain
from imageevalkit.jobs.plan import ATTEMPT_ENV, CORES_ENV, GenerateOrder, Job
from imageevalkit.plan.environments import with_our_paths
from imageevalkit.run import guard
from imageevalkit.store.cell import REPO

LOG_HEADER = "# imageevalkit: "
"""Prefix of the line that the launcher writes into the log of a job."""
# Another attempt would end with the same status again; any status not listed here is a crash.
CANNOT_START: frozenset[int] = frozenset((guard.CANNOT_EXECUTE, guard.NOT_FOUND))
FINAL: frozenset[int] = CANNOT_START | {ExitStatus.COMPLETE, ExitStatus.INCOMPLETE, ExitStatus.USAGE}
_TAIL_BYTES = 8192
_LINE_WIDTH = 200


def job_environ(job: Job, gpus: dict[str, str], cores: int, attempt: int = 1) -> dict[str, str]:
    """Returns the environment variables of ``job``: those of the launcher, without secrets of other jobs."""
    # workers of a generate job inherit its PYTHONPATH, and eval.sh has filtered it for the driver's Python
    python = job.order.python if isinstance(job.order, GenerateOrder) else ""
    environ = with_our_paths(environ_with(job.secrets) | job.environ | gpus, python or job.command[0])
    environ |= {CORES_ENV: str(cores), ATTEMPT_ENV: str(attempt)}
    # Otherwise a killed job would lose the last lines of its log in Python's buffer.
    environ.setdefault("PYTHONUNBUFFERED", "1")
    return environ


def guarded(
    command: Sequence[str],
    log: Path,
    title: str,
    environ: dict[str, str],
    lifeline: int,
    held: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts ``command`` under a guard and returns the guard's process.

    The output of the command is appended to ``log``, below a line with ``title``. The guard inherits the
    locks ``held`` and the read end of the pipe ``lifeline``; it ends the command when the write end closes.
    Call this from the main thread: the guard also ends the command if the thread that started it ends.

    Raises OSError: the log cannot be written, or no process can be started.
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


def start_of(pid: int) -> str:
    """Returns the start time of process ``pid`` in clock ticks since boot; empty if there is no such process.

    The system reuses process ids; id and start time together identify one process.
    """
    with contextlib.suppress(OSError, IndexError):
        # proc(5): the program's name comes first, in brackets, and may itself hold blanks and brackets
        about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return about.rpartition(")")[2].split()[19]
    return ""


def describe_exit(status: int) -> str:
    """Returns ``"exit status 1"`` or ``"SIGKILL"`` for the exit status of a guard."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit status {status}"
    return f"guard killed by {name}" if status < 0 else name


def tail_of(log: Path, most: int = _TAIL_BYTES, since: int = 0) -> list[str]:
    """Returns the lines in the last ``most`` bytes of ``log``, none before byte ``since``, as plain text."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, os.fstat(file.fileno()).st_size - most))
            return [plain(line) for line in re.split(r"[\r\n]+", file.read().decode(errors="replace"))]
    except OSError:
        return []


def last_line(log: str) -> str:
    """Returns the last line that a job wrote into ``log``, shortened; empty if there is none."""
    lines = [line for line in tail_of(REPO / log) if line and not line.startswith(LOG_HEADER)]
    return shorten(lines[-1]) if lines else ""


def shorten(text: str) -> str:
    """Returns ``text``, cut to ``_LINE_WIDTH`` characters."""
    return text if len(text) <= _LINE_WIDTH else text[: _LINE_WIDTH - 1] + "…"


def log_of(job: Job, cell: str | None = None) -> str:
    """Returns the log of ``cell`` if it exists, else the log that ``job`` wrote last; empty without logs."""
    if cell is not None and len(job.logs) == len(job.cells):
        own = job.logs[job.cells.index(cell)]
        if (REPO / own).exists():
            return own
    written = [log for log in job.logs if (REPO / log).exists()]
    return max(written, key=lambda log: (REPO / log).stat().st_mtime_ns) if written else ""
