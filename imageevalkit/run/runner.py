"""The job runner: starts the attempts of a job under a guard, with its variables and its log, and ends them.

Local jobs, jobs on a Slurm node, and judges that a run serves all go through this module.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from imageevalkit.common import logs
from imageevalkit.common.atomic import is_disk_full
from imageevalkit.common.errors import CellFailure, ExitStatus
from imageevalkit.common.redaction import environ_with
from imageevalkit.common.text import plain
from imageevalkit.jobs.plan import ATTEMPT_ENV, CORES_ENV, EvaluateOrder, GenerateOrder, Job, Plan
from imageevalkit.plan.config import with_our_paths
from imageevalkit.run import guard
from imageevalkit.store.cell import REPO, log_root

LOG_HEADER = "# imageevalkit: "
"""Prefix of the line that the runner writes into the log of a job."""
_CANNOT_START = (guard.CANNOT_EXECUTE, guard.NOT_FOUND)
# of a job without outcomes; any other status is a crash
_ENDS = (ExitStatus.COMPLETE, ExitStatus.INCOMPLETE, ExitStatus.USAGE, ExitStatus.FAILED)
_ENDS_WITHIN = 10.0  # seconds; a guard kills its processes after 5
_TAIL_BYTES = 8192
_LINE_WIDTH = 200


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """Yields the read end of a pipe: guards that have it end their commands when the block or this process ends."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(write)
        os.close(read)


class Guarded:
    """A command under a guard. No process that the command starts outlives it, or the process that started it.

    The output of the command is appended to ``log``, below a line with ``title``. The guard holds the locks
    ``held`` until all processes have ended. Make this in the main thread: the guard also ends the command if
    the thread that started it ends.

    Raises OSError: the log cannot be written, or no process can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        title: str,
        environ: Mapping[str, str],
        lifeline: int,
        held: Sequence[int] = (),
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        program = [sys.executable, "-I", "-S", guard.__file__, str(lifeline), "--", *command]
        with log.open("ab", buffering=0) as out:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            shown = shorten(plain(shlex.join(command)))
            out.write(f"{LOG_HEADER}{when} {title}: {shown}\n".encode())
            self._process = subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=REPO,
                env=environ,
                pass_fds=[lifeline, *held],
                start_new_session=True,
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Returns the exit status; None while the command runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Sends SIGTERM. At the second one, the guard kills all processes at once."""
        self._process.terminate()

    def end(self) -> None:
        """Ends the command and all processes that it started."""
        for _ in range(2):
            self.ask_to_end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_WITHIN)
                break


class JobRun:
    """The attempts of ``job``. ``before`` counts the starts of the job that another process has made.

    ``environ`` are the variables of the job (:func:`job_environ`), ``place`` is for the log ("on node n1").
    ``lifeline`` and ``held`` are as for :class:`Guarded`.
    """

    def __init__(
        self,
        plan: Plan,
        job: Job,
        environ: Mapping[str, str],
        lifeline: int,
        held: Sequence[int] = (),
        place: str = "",
        before: int = 0,
    ) -> None:
        self.job, self.attempts = job, 0
        self._plan, self._environ, self._lifeline, self._held = plan, environ, lifeline, held
        self._place, self._before = place, before
        self._process: Guarded | None = None

    @property
    def pid(self) -> int:
        """The process id of the guard; 0 before the first start."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Starts the next attempt. Raises CellFailure: no process can be started, or the log cannot be written."""
        self.attempts += 1
        environ = {**self._environ, ATTEMPT_ENV: str(self._before + self.attempts)}
        title = f"{self.job.name} attempt {self.attempts}{self._place}"
        log = REPO / self.job.logs[0]
        try:
            self._process = Guarded(self.job.command, log, title, environ, self._lifeline, self._held)
        except OSError as error:
            full = logs.full_words(log_root()) if is_disk_full(error) else ""
            why = full or f"{error.strerror}: {error.filename or self.job.command[0]}"
            raise CellFailure(f"cannot start: {why}") from None

    def poll(self) -> int | None:
        """Returns the exit status of the attempt; None while it runs or before the first one."""
        return self._process.poll() if self._process else None

    def ask_to_end(self) -> None:
        """Ends the attempt, if one runs (:meth:`Guarded.ask_to_end`)."""
        if self._process:
            self._process.ask_to_end()

    def is_worth_retry(self, status: int) -> bool:
        """Returns True if the job, whose attempt ended with ``status``, is to be started again."""
        if self.attempts > self.job.retries or status in _CANNOT_START:
            return False
        if self.job.always:
            return status not in _ENDS
        # The status does not matter: third-party code may exit with 0 before all outcomes are written.
        return bool(self._plan.lacking(self.job)) and not logs.is_full(Path(self._plan.run_folder))


def job_environ(job: Job, gpus: Mapping[str, str], cores: int) -> dict[str, str]:
    """Returns the environment variables of ``job``: the launcher's, without secrets of other jobs."""
    # workers of a generate job inherit its PYTHONPATH, and eval.sh has filtered it for the driver's Python
    python = job.order.python if isinstance(job.order, GenerateOrder) else ""
    environ = with_our_paths({**environ_with(job.secrets), **job.environ, **gpus}, python or job.command[0])
    environ[CORES_ENV] = str(cores)
    if isinstance(job.order, EvaluateOrder) and job.order.judge_options.address_file:
        environ |= _past_proxies(environ)  # the judge's server is on this machine
    # Otherwise a killed job would lose the last lines of its log in Python's buffer.
    environ.setdefault("PYTHONUNBUFFERED", "1")
    return environ


def _past_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which a job reaches this machine directly if ``environ`` sets a proxy."""
    # each library reads one of the two
    return {
        name: ",".join(filter(None, [environ.get(name), "127.0.0.1"])) for name in ("NO_PROXY", "no_proxy")
    }


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
    """Returns the last line that a job wrote into ``log``; empty if there is none."""
    lines = [line for line in tail_of(REPO / log) if line and not line.startswith(LOG_HEADER)]
    return lines[-1] if lines else ""


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
