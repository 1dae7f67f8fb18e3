"""The evaluate job of all cells that ask one served judge: cell after cell, and the judge's server beside them."""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imageevalkit import logs
from imageevalkit.cell import REPO
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
from imageevalkit.launch.judge_server import JudgeServer
from imageevalkit.launch.process import FINAL, OUR_PATHS, describe_exit, guarded, last_line, progress_path
from imageevalkit.progress import Progress, ProgressReader, ProgressWriter
from imageevalkit.secrets import environ_with

_TICK = 0.1
_ATTEMPTS = 2  # of one cell: a crash may pass


def main() -> ExitStatus:
    """Evaluate every cell of the job; the exit status is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--job", required=True)
    args = parser.parse_args()
    plan = load_plan(args.plan)
    return _Serving(plan, plan.job(args.job)).run()


class _Serving:
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
