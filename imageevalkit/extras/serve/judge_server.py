"""The server of a judge, and the job that runs evaluate jobs with it."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import NoReturn

from imageevalkit.common import logs
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, run_main, worst
from imageevalkit.common.locks import open_lock, take_lock
from imageevalkit.common.python_path import usable_paths
from imageevalkit.common.redaction import environ_with
from imageevalkit.jobs.plan import (
    ATTEMPT_ENV,
    CORES_ENV,
    FAILED,
    STATUS_OF_STATE,
    Job,
    Outcome,
    Plan,
    ServeOrder,
    cell_of,
    given_job,
    read_outcome,
    write_outcome,
)
from imageevalkit.jobs.progress import Progress, ProgressReader, ProgressWriter
from imageevalkit.judges.server import DIED, ERROR, ServerAddress
from imageevalkit.plan.config import OUR_PATHS
from imageevalkit.run.runner import (
    Guarded,
    JobRun,
    describe_exit,
    job_environ,
    last_line,
    lifeline,
    log_of,
    shorten,
    tail_of,
)
from imageevalkit.store.cell import REPO, short_path

_HOST = "127.0.0.1"
_ANSWERS_WITHIN = 2.0  # seconds
_LOOK_EVERY = 0.5  # least seconds between two checks of a loading server
_MOST_READ = 1 << 20  # bytes of a reply: a foreign server on the port may send without end
_PORTS = 3  # tries: another process may take a port before the server does
_LIVES = 2  # in one cell: a cell that kills the server twice would kill it again
_LOG_TAIL = 1 << 16
_ERROR_LINE = re.compile(r"(?:\b[\w.]*(?:Error|Exception)|\berror): .+")


class Address(ServerAddress):
    """The address file for the job that serves the judge. Creating it removes the state of an earlier job."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = open_lock(self._keeper)
        take_lock(self._lock, self._keeper, wait=True)
        self.forget()

    @property
    def wanted(self) -> bool:
        """True if a client waits to ask questions."""
        return self._wanted.exists()

    def give(self, base_url: str) -> None:
        """Announces that the judge answers at ``base_url``."""
        write_atomic(self.path, base_url)

    def give_up(self, why: str, for_good: bool) -> None:
        """Announces that the judge will not answer: ever, or about the present cell. ``why`` is one line."""
        write_atomic(self.path, (ERROR if for_good else DIED) + why)

    def withdraw(self) -> None:
        """Announces that the judge does not answer now: clients wait."""
        self.path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Removes the address and all requests for a server."""
        self.withdraw()
        self._wanted.unlink(missing_ok=True)


class JudgeServer:
    """Runs the server of ``order`` under a guard in ``environ``, and publishes its address once healthy.

    Use it in the main thread only. ``lifeline`` is the read end of a pipe whose other end this process keeps.
    """

    def __init__(self, order: ServeOrder, environ: dict[str, str], lifeline: int) -> None:
        self._order, self._environ, self._lifeline = order, environ, lifeline
        self._log = REPO / order.log
        self._address = Address(Path(order.address_file))
        self._process: Guarded | None = None
        self._port = self._ports_taken = self._log_start = self._deaths = 0
        self._started = self._next_look = 0.0
        self._healthy = self._hopeless = False

    def tend(self) -> str:
        """Start, check or restart the server; return a note for the user. Call it several times a second."""
        if self._deaths == _LIVES and not self._address.given_up:  # the next cell has begun
            self._deaths = 0
        if self._hopeless or self._deaths == _LIVES:
            return ""
        if self._process is None:
            if self._address.wanted:
                self._start(_free_port())
        elif (status := self._process.poll()) is not None:
            self._process = None
            self._ended(describe_exit(status))
        elif not self._healthy:
            self._look(self._process)
        loads = self._process is not None and not self._healthy
        return (
            f"loading judge {self._order.judge} … {time.monotonic() - self._started:.0f} s" if loads else ""
        )

    def next_cell(self, makes_room: bool) -> None:
        """Prepare the server for the next cell. Its deaths during the cell before no longer count.

        A server that was given up starts again if the next cell asks for it
        (:meth:`imageevalkit.judges.server.ServerAddress.begin_cell`).
        ``makes_room``: stop the server, because metric models need the GPUs first. The server starts again
        when the judge is asked.
        """
        if makes_room and self._process is not None:
            self.stop()
            self._address.forget()
        if self._deaths < _LIVES:
            self._deaths = 0

    def stop(self) -> None:
        """End the server and all processes that it started."""
        self._healthy = False
        if self._process is not None:
            self._process.end()
        self._process = None

    def _start(self, port: int) -> None:
        self._port, self._healthy = port, False
        self._started = self._next_look = time.monotonic()
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        command, title = [*self._order.command, "--port", str(port)], f"server of judge {self._order.judge}"
        self._process = Guarded(command, self._log, title, self._environ, self._lifeline)

    def _look(self, process: Guarded) -> None:
        began = time.monotonic()
        if began < self._next_look:
            return
        answers = _answers(self._port, self._order.model)
        now = time.monotonic()
        # a server that accepts but does not answer blocks this process for a fifth of the time at most
        self._next_look = now + max(_LOOK_EVERY, 4 * (now - began))
        if answers is False:
            self.stop()
            self._take_another_port("found servers of others on the ports it was given")
        elif answers and process.poll() is None:
            self._healthy, self._ports_taken = True, 0
            self._address.give(f"http://{_HOST}:{self._port}/v1")
        elif now - self._started > self._order.start_timeout:
            self.stop()
            what = f"was not ready after {self._order.start_timeout:g} s (start_timeout)"
            self._give_up(what, shorten(last_line(str(self._log))))

    def _ended(self, how: str) -> None:
        last_error = self._last_error()
        if self._healthy:
            self._address.withdraw()
            self._deaths += 1
            if self._deaths < _LIVES:
                self._start(self._port)  # the same port: retried requests find the server there
            else:
                self._give_up(f"died {self._deaths} times ({how})", last_error)
        elif "address already in use" in last_error.lower():
            self._take_another_port(f"could not start ({how})", last_error)
        else:
            self._give_up(f"could not start ({how})", last_error)

    def _take_another_port(self, what: str, last_error: str = "") -> None:
        self._ports_taken += 1
        if self._ports_taken < _PORTS:
            self._start(_free_port())
        else:
            self._give_up(what, last_error)

    def _give_up(self, what: str, last_error: str) -> None:
        self._hopeless = self._deaths < _LIVES  # the server did not even start
        detail = f": {last_error.rstrip('.')}" if last_error else ""
        self._address.give_up(
            f"the server of judge {self._order.judge} {what}{detail}; log {short_path(self._log)}",
            for_good=self._hopeless,
        )

    def _last_error(self) -> str:
        """Return the line of the log that best explains why the server ended."""
        found = map(_ERROR_LINE.search, tail_of(self._log, _LOG_TAIL, self._log_start))
        lines = [match[0] for match in found if match]
        # processes that only pass on the error of another one mention its "root cause", and end last
        causes = [line for line in lines if "root cause" not in line]
        return shorten(causes[-1] if causes else last_line(str(self._log)))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _answers(port: int, model: str) -> bool | None:
    """Return whether the server on ``port`` serves ``model``; None if the server is not ready."""
    if _body(port, "/health") is None or (models := _body(port, "/v1/models")) is None:
        return None
    try:
        return model in [each["id"] for each in json.loads(models)["data"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _body(port: int, path: str) -> bytes | None:
    """Return the body of a reply with status 200; None for any other reply."""
    # not urllib, which uses the proxy of the environment and follows redirects of a foreign server
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


def main() -> ExitStatus:
    """Evaluate every cell of the job and return the worst status. Without cells, keep the server running."""
    plan, job, order = given_job(ServeOrder)
    with lifeline() as end_of_this:
        server = JudgeServer(order, _server_environ(order), end_of_this)
        if not order.parts:
            _keep(server)
        return _SharedEvaluation(plan, job, order, server, end_of_this).run()


def _keep(server: JudgeServer) -> NoReturn:
    """Run the server until this process is ended: jobs of other runs may ask it at any time."""
    while True:
        server.tend()
        time.sleep(_TICK)


class _SharedEvaluation:
    def __init__(self, plan: Plan, job: Job, order: ServeOrder, server: JudgeServer, lifeline: int) -> None:
        self._plan, self._job, self._folder = plan, job, Path(plan.run_folder)
        self._parts = [plan.job(name) for name in order.parts]
        path = plan.progress_path(job)
        self._progress, self._reader = ProgressWriter(path), ProgressReader(path)
        self._server, self._lifeline = server, lifeline

    def run(self) -> ExitStatus:
        for part in self._parts:
            self._evaluate(part)
        self._server.stop()
        outcomes = [read_outcome(self._folder, cell_of(key), self._job.step) for key in self._job.cells]
        return worst(STATUS_OF_STATE[one.state] if one else ExitStatus.FAILED for one in outcomes)

    def _evaluate(self, part: Job) -> None:
        """Evaluates the cells of ``part``. If its process writes no outcome of a cell, this function does."""
        environ = job_environ(part, {}, int(os.environ.get(CORES_ENV, part.cores)))
        # metric models of the part need the GPUs first
        self._server.next_cell(makes_room=part.gpus > 0)
        before = int(os.environ.get(ATTEMPT_ENV, "1")) - 1
        run, how = JobRun(self._plan, part, environ, self._lifeline, before=before), ""
        while self._plan.lacking(part):
            try:
                run.start()
            except CellFailure as failure:
                how = str(failure)
                break
            status = self._wait(run)
            how = describe_exit(status)
            if not run.is_worth_retry(status):
                break
        for key in self._plan.lacking(part):
            last_error = shorten(last_line(log := log_of(part, key)))
            problem = f"left no outcome, {how}" + (f": {last_error}" if last_error else "")
            logs.append(REPO / log, f"=== {FAILED}: {problem}")
            write_outcome(self._folder, cell_of(key), part.step, Outcome(FAILED, problem))

    def _wait(self, run: JobRun) -> int:
        """Tends the server until the attempt has ended, and returns its exit status."""
        noted, left = "", self._plan.lacking(run.job)
        while (status := run.poll()) is None:
            if left != (now := self._plan.lacking(run.job)):
                left = now
                self._server.next_cell(makes_room=False)
            note = self._server.tend()
            if note != noted and left:
                # the evaluation waits for the server and reports nothing itself
                seen = self._reader.read()
                cell = max(left, key=lambda key: seen[key].time if key in seen else 0.0)
                progress = seen.get(cell) or Progress(cell, run.job.stage, 0, 0)
                self._progress.report(progress._replace(note=note), force=not note)
                noted = note
            time.sleep(_TICK)
        return status


def _server_environ(order: ServeOrder) -> dict[str, str]:
    # without VLLM_API_KEY, with which the server would demand a key
    environ = environ_with(order.secrets)
    folder = str(Path(order.command[0]).parent)
    environ["PATH"] = os.pathsep.join([folder, *filter(None, [environ.get("PATH")])])
    # our folders (tests, utils) must not shadow packages of its environment
    paths = usable_paths(environ.get("PYTHONPATH", ""), order.command[0])
    environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path not in map(str, OUR_PATHS))
    return environ


if __name__ == "__main__":
    run_main(main)
