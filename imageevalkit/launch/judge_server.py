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
    outcome_path,
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
_LOOK_EVERY = 0.5  # seconds between two looks at a server that loads
_ANSWERS_WITHIN = 2.0  # seconds
_PORTS = 3  # somebody may take a port between our choice and the server's start
_LIVES = 2  # in one cell: what kills a server twice would kill it a third time
_STOPS_WITHIN = 10.0  # seconds; its guard kills after 5
_LOG_TAIL = 1 << 16
_TELLING = re.compile(r"(?:\b[\w.]*(?:Error|Exception)|\berror): .+")


class JudgeServer:
    """``command`` under a guard, reached at ``address`` once it is healthy; its output goes to ``log``.

    ``name`` is the judge's, for messages, ``model`` the name under which it is served; ``start_timeout`` in seconds
    bounds the loading. ``lifeline`` is the read end of a pipe whose other end this process keeps. Belongs to the
    main thread.
    """

    def __init__(
        self,
        name: str,
        model: str,
        command: Sequence[str],
        environ: dict[str, str],
        log: Path,
        start_timeout: float,
        address: Address,
        lifeline: int,
    ) -> None:
        self._name = name
        self._model = model
        self._command = command
        self._environ = environ
        self._log = log
        self._start_timeout = start_timeout
        self._address = address
        self._lifeline = lifeline
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._ports_tried = 0
        self._log_start = 0
        self._started = self._looked = 0.0
        self._healthy = False
        self._deaths = 0
        self._hopeless = self._given_up = False

    def tend(self) -> str:
        """Do what is due, and return what the user should know of it now; call it several times a second."""
        if self._given_up:
            return ""
        if self._process is None:
            if not self._address.wanted:
                return ""
            self._start(_free_port())
        elif (status := self._process.poll()) is not None:
            self._process = None
            self._ended(describe_exit(status))
        elif not self._healthy:
            self._look()
        loads = self._process is not None and not self._healthy
        return f"loading judge {self._name} … {time.monotonic() - self._started:.0f} s" if loads else ""

    def next_cell(self, makes_room: bool) -> None:
        """Another cell begins: it is not to blame for what the one before did to the server.

        ``makes_room``: it has models of its own, which come first and need the GPUs; the server starts again when it
        is asked.
        """
        self._deaths = 0
        if makes_room and self._process is not None:
            self.stop()
            self._healthy = False
            self._address.forget()
        if self._given_up and not self._hopeless:
            self._given_up = False
            self._address.forget()

    def stop(self) -> None:
        """End the server and all that it started."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # a guard takes the second one as the order to kill at once
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOPS_WITHIN)
        self._process = None

    def _start(self, port: int) -> None:
        self._port, self._healthy, self._started = port, False, time.monotonic()
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        title = f"server of judge {self._name}"
        self._process = guarded(
            [*self._command, "--port", str(port)], self._log, title, self._environ, self._lifeline
        )

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        answers = _answers(self._port, self._model)
        if answers is False:
            self.stop()
            self._another_port("found servers of others on the ports it was given", "")
        elif answers and self._process and self._process.poll() is None:
            self._healthy, self._ports_tried = True, 0
            self._address.give(f"http://{_HOST}:{self._port}/v1")
        elif now - self._started > self._start_timeout:
            self.stop()
            self._hopeless = True
            said = last_line(str(self._log))
            self._give_up(f"was not ready after {self._start_timeout:g} s (start_timeout)", said)

    def _ended(self, how: str) -> None:
        said = self._said()
        if self._healthy:
            self._healthy = False
            self._address.withdraw()
            self._deaths += 1
            if self._deaths < _LIVES:
                self._start(self._port)  # the same: requests that are tried again will find it there
            else:
                self._give_up(f"died {self._deaths} times ({how})", said)
        elif "address already in use" in said.lower():
            self._another_port(f"could not start ({how})", said)
        else:
            self._hopeless = True
            self._give_up(f"could not start ({how})", said)

    def _another_port(self, what: str, said: str) -> None:
        if self._ports_tried + 1 < _PORTS:
            self._ports_tried += 1
            self._start(_free_port())
        else:
            self._hopeless = True
            self._give_up(what, said)

    def _give_up(self, what: str, said: str) -> None:
        self._given_up = True
        told = f": {said.rstrip('.')}" if said else ""
        self._address.give_up(f"the server of judge {self._name} {what}{told}; log {short_path(self._log)}")

    def _said(self) -> str:
        """The line of the log that tells best why the server ended."""
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self._log_start, size - _LOG_TAIL))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [match[0] for line in text.splitlines() if (match := _TELLING.search(plain(line)))]
        # processes that only pass on the fault of another one say so, and end last
        causes = [line for line in lines if "root cause" not in line]
        return shorten(causes[-1]) if causes else last_line(str(self._log))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _answers(port: int, model: str) -> bool | None:
    """Whether the server on ``port`` is ready (None: not yet) and says that it serves ``model``."""
    health, models = _get(port, "/health"), _get(port, "/v1/models")
    if health is None or models is None:
        return None
    try:
        return model in [each["id"] for each in json.loads(models)["data"]]
    except (ValueError, TypeError, KeyError):
        return False


def _get(port: int, path: str) -> bytes | None:
    """The body of a 200; None for anything else."""
    # not urllib: a proxy of the environment has no business here
    connection = http.client.HTTPConnection(_HOST, port, timeout=_ANSWERS_WITHIN)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.read() if reply.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException):
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
        self._folder = Path(plan.run_folder)
        self._progress = ProgressWriter()
        self._reader = ProgressReader(progress_path(plan, job))
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
        outcome = read_outcome(self._folder, cell_of(cell), self._job.stage)
        if outcome is not None:  # of an attempt of this job that crashed later
            return outcome
        outcome = self._missing(cell)
        if outcome is None:
            outcome = self._evaluate(cell, log)
        if not outcome_path(self._folder, cell_of(cell), self._job.stage).exists():
            logs.append(log, f"=== {outcome.state}: {outcome.message}")
            write_outcome(self._folder, cell_of(cell), self._job.stage, outcome)
        return outcome

    def _missing(self, cell: str) -> Outcome | None:
        """What the cell fails with when a stage before this one did."""
        for before in map(self._plan.job, self._job.after):
            if cell in before.cells:
                outcome = read_outcome(self._folder, cell_of(cell), before.stage)
                state = outcome.state if outcome else FAILED
                if state not in USABLE:
                    return Outcome(FAILED, f"not started: {before.stage} of {cell} is {state}")
        return None

    def _evaluate(self, cell: str, log: Path) -> Outcome:
        given: dict[str, Any] = self._job.options["cells"][cell]
        environ = _asker_environ(given["secrets"], given["environ"])
        self._server.next_cell(makes_room=given["uses_encoders"])
        for attempt in range(1, _ATTEMPTS + 1):
            title = f"{self._job.stage}:{cell} attempt {attempt}"
            status = self._wait(cell, guarded(given["command"], log, title, environ, self._lifeline))
            outcome = read_outcome(self._folder, cell_of(cell), self._job.stage)
            if outcome is not None:
                return outcome
            if status in FINAL:
                break
        said = last_line(str(log))
        return Outcome(FAILED, f"left no outcome, {describe_exit(status)}" + (f": {said}" if said else ""))

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
    ours = {"", *map(str, OUR_PATHS)}
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ours]
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    return environ


def _asker_environ(secrets: Sequence[str], own: dict[str, str]) -> dict[str, str]:
    environ = environ_with(secrets) | own
    for name in ("NO_PROXY", "no_proxy"):  # which of them counts is up to the library
        environ[name] = ",".join(filter(None, [environ.get(name), "127.0.0.1"]))
    return environ


if __name__ == "__main__":
    run_main(main)
