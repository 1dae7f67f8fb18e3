"""The server of a judge, and the job that evaluates, cell after cell, what asks it."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imageevalkit import logs
from imageevalkit.cell import REPO, short_path
from imageevalkit.errors import ExitStatus, run_main, worst
from imageevalkit.jobs import (
    FAILED,
    STATUS_OF_STATE,
    USABLE,
    Job,
    Outcome,
    Plan,
    cell_of,
    load_plan,
    read_outcome,
    write_outcome,
)
from imageevalkit.judges.server import Address
from imageevalkit.launch.process import (
    FINAL,
    OUR_PATHS,
    describe_exit,
    guarded,
    last_line,
    progress_path,
    shorten,
)
from imageevalkit.progress import Progress, ProgressReader, ProgressWriter
from imageevalkit.secrets import environ_with
from imageevalkit.text import plain

_HOST = "127.0.0.1"
_ANSWERS_WITHIN = 2.0  # seconds
_LOOK_EVERY = 0.5  # seconds between two looks at a server that loads, at least
_MOST_READ = 1 << 20  # bytes of a reply: a stranger's may not end
_PORTS = 3  # somebody may take a port between our choice and the server's start
_LIVES = 2  # in one cell: what kills a server twice would kill it a third time
_STOPS_WITHIN = 10.0  # seconds; its guard kills after 5
_LOG_TAIL = 1 << 16
_TELLING = re.compile(r"(?:\b[\w.]*(?:Error|Exception)|\berror): .+")


@dataclass
class JudgeServer:
    """``command`` under a guard, reached at ``address`` once it is healthy. Belongs to the main thread.

    ``name`` is the judge's, for messages, ``model`` the name under which it is served; ``start_timeout`` in seconds
    bounds the loading. ``lifeline`` is the read end of a pipe whose other end this process keeps.
    """

    name: str
    model: str
    command: Sequence[str]
    environ: dict[str, str]
    log: Path
    start_timeout: float
    address: Address
    lifeline: int

    def __post_init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._port = self._ports_taken = self._log_start = self._deaths = 0
        self._started = self._next_look = 0.0
        self._healthy = self._hopeless = False

    def tend(self) -> str:
        """Do what is due, and return what the user should know of it now; call it several times a second."""
        if self._hopeless or self._deaths == _LIVES:
            return ""
        if self._process is None:
            if self.address.wanted:
                self._start(_free_port())
        elif (status := self._process.poll()) is not None:
            self._process = None
            self._ended(describe_exit(status))
        elif not self._healthy:
            self._look(self._process)
        loads = self._process is not None and not self._healthy
        return f"loading judge {self.name} … {time.monotonic() - self._started:.0f} s" if loads else ""

    def next_cell(self, makes_room: bool) -> None:
        """Another cell begins: it is not to blame for what the one before did to the server.

        ``makes_room``: it has models of its own, which need the GPUs first; the server starts again when it is asked.
        """
        if self._deaths == _LIVES or (makes_room and self._process is not None):
            self.stop()
            self.address.forget()
        self._deaths = 0

    def stop(self) -> None:
        """End the server and all that it started."""
        self._healthy = False
        if self._process is None:
            return
        for _ in range(2):  # a guard takes the second one as the order to kill at once
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOPS_WITHIN)
                break
        self._process = None

    def _start(self, port: int) -> None:
        self._port, self._healthy = port, False
        self._started = self._next_look = time.monotonic()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        command, title = [*self.command, "--port", str(port)], f"server of judge {self.name}"
        self._process = guarded(command, self.log, title, self.environ, self.lifeline)

    def _look(self, process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        if began < self._next_look:
            return
        answers = _answers(self._port, self.model)
        now = time.monotonic()
        # who tends a server that accepts and does not answer is held up for a fifth of the time at most
        self._next_look = now + max(_LOOK_EVERY, 4 * (now - began))
        if answers is False:
            self.stop()
            self._take_another_port("found servers of others on the ports it was given")
        elif answers and process.poll() is None:
            self._healthy, self._ports_taken = True, 0
            self.address.give(f"http://{_HOST}:{self._port}/v1")
        elif now - self._started > self.start_timeout:
            self.stop()
            what = f"was not ready after {self.start_timeout:g} s (start_timeout)"
            self._give_up(what, last_line(str(self.log)))

    def _ended(self, how: str) -> None:
        said = self._said()
        if self._healthy:
            self.address.withdraw()
            self._deaths += 1
            if self._deaths < _LIVES:
                self._start(self._port)  # the same: requests that are tried again will find it there
            else:
                self._give_up(f"died {self._deaths} times ({how})", said)
        elif "address already in use" in said.lower():
            self._take_another_port(f"could not start ({how})", said)
        else:
            self._give_up(f"could not start ({how})", said)

    def _take_another_port(self, what: str, said: str = "") -> None:
        self._ports_taken += 1
        if self._ports_taken < _PORTS:
            self._start(_free_port())
        else:
            self._give_up(what, said)

    def _give_up(self, what: str, said: str) -> None:
        self._hopeless = self._deaths < _LIVES  # it did not even start
        told = f": {said.rstrip('.')}" if said else ""
        self.address.give_up(f"the server of judge {self.name} {what}{told}; log {short_path(self.log)}")

    def _said(self) -> str:
        """The line of the log that tells best why the server ended."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, file.seek(0, 2) - _LOG_TAIL))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [match[0] for line in text.splitlines() if (match := _TELLING.search(plain(line)))]
        # processes that only pass on the fault of another one say so, and end last
        causes = [line for line in lines if "root cause" not in line]
        return shorten(causes[-1]) if causes else last_line(str(self.log))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _answers(port: int, model: str) -> bool | None:
    """Whether the server on ``port`` is ready (None: not yet) and says that it serves ``model``."""
    if _body(port, "/health") is None or (models := _body(port, "/v1/models")) is None:
        return None
    try:
        return model in [each["id"] for each in json.loads(models)["data"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _body(port: int, path: str) -> bytes | None:
    """The body of a 200; None for anything else."""
    # not urllib, which asks the proxy of the environment and goes where a stranger on the port sends it
    connection = http.client.HTTPConnection(_HOST, port, timeout=_ANSWERS_WITHIN)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.read(_MOST_READ) if reply.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


_TICK = 0.1
_ATTEMPTS = 2  # of one cell: a crash may pass


def main() -> ExitStatus:
    """Evaluate every cell of the job; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--job", required=True)
    args = parser.parse_args()
    plan = load_plan(args.plan)
    return _SharedEvaluation(plan, plan.job(args.job)).run()


class _SharedEvaluation:
    def __init__(self, plan: Plan, job: Job) -> None:
        self._plan = plan
        self._job = job
        self._progress, self._reader = ProgressWriter(), ProgressReader(progress_path(plan, job))
        # nobody closes the other end: it closes with this process, however that ends, and ends what it started
        self._lifeline, self._end = os.pipe()
        server: dict[str, Any] = job.options["server"]
        self._server = JudgeServer(
            server["judge"],
            server["model"],
            server["command"],
            _server_environ(Path(server["command"][0]), server["secrets"]),
            REPO / server["log"],
            server["start_timeout"],
            Address(Path(server["address_file"])),
            self._lifeline,
        )

    def run(self) -> ExitStatus:
        cells = zip(self._job.cells, self._job.logs, strict=True)
        outcomes = [self._outcome(cell, REPO / log) for cell, log in cells]
        self._server.stop()
        return worst(STATUS_OF_STATE[outcome.state] for outcome in outcomes)

    def _outcome(self, cell: str, log: Path) -> Outcome:
        stage = self._job.stage
        if outcome := self._read(cell, stage):  # of an attempt of this job that crashed later
            return outcome
        problem = self._missing(cell) or self._evaluate(cell, log)
        if outcome := self._read(cell, stage):
            return outcome
        logs.append(log, f"=== {FAILED}: {problem}")
        write_outcome(Path(self._plan.run_folder), cell_of(cell), stage, Outcome(FAILED, problem))
        return Outcome(FAILED, problem)

    def _read(self, cell: str, stage: str) -> Outcome | None:
        return read_outcome(Path(self._plan.run_folder), cell_of(cell), stage)

    def _missing(self, cell: str) -> str:
        """The stage before this one without which the cell cannot start; empty when all is there."""
        for before in map(self._plan.job, self._job.after):
            outcome = self._read(cell, before.stage) or Outcome(FAILED)
            if cell in before.cells and outcome.state not in USABLE:
                return f"not started: {before.stage} of {cell} is {outcome.state}"
        return ""

    def _evaluate(self, cell: str, log: Path) -> str:
        """How the process that evaluates the cell ended."""
        given: dict[str, Any] = self._job.options["cells"][cell]
        environ = environ_with(given["secrets"]) | given["environ"]
        for name in ("NO_PROXY", "no_proxy"):  # which of them counts is up to the library
            environ[name] = ",".join(filter(None, [environ.get(name), _HOST]))
        self._server.next_cell(makes_room=given["uses_encoders"])
        for attempt in range(1, _ATTEMPTS + 1):
            title = f"{self._job.stage}:{cell} attempt {attempt}"
            status = self._wait(cell, guarded(given["command"], log, title, environ, self._lifeline))
            if status in FINAL or self._read(cell, self._job.stage):
                break
        said = last_line(str(log))
        return f"left no outcome, {describe_exit(status)}" + (f": {said}" if said else "")

    def _wait(self, cell: str, process: subprocess.Popen[bytes]) -> int:
        noted = ""
        while (status := process.poll()) is None:
            note = self._server.tend()
            if note != noted:
                # the cell itself waits meanwhile and reports nothing
                seen = self._reader.read().get(cell) or Progress(cell, self._job.stage, 0, 0)
                self._progress.report(seen._replace(note=note), force=not note)
                noted = note
            time.sleep(_TICK)
        return status


def _server_environ(executable: Path, secrets: Sequence[str]) -> dict[str, str]:
    # not VLLM_API_KEY either, which would make it ask for one
    environ = environ_with(secrets)
    environ["PATH"] = os.pathsep.join([str(executable.parent), *filter(None, [environ.get("PATH")])])
    # our folders (tests, utils) must not shadow packages of its environment
    paths = environ.get("PYTHONPATH", "").split(os.pathsep)
    environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path not in ("", *map(str, OUR_PATHS)))
    return environ


if __name__ == "__main__":
    run_main(main)
