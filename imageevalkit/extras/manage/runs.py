"""The runs of this checkout that have not ended: ``--status`` and ``--cancel``."""

from __future__ import annotations

import os
import signal
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.cli.command_line import Command
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, say, show
from imageevalkit.common.machine import start_of
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import counted
from imageevalkit.jobs.launcher import has_launcher, launcher_of
from imageevalkit.jobs.plan import Plan, cell_of, load_plan, read_outcome, stop_path
from imageevalkit.jobs.progress import ProgressReader
from imageevalkit.plan.config import Config
from imageevalkit.slurm.commands import Slurm, SlurmFailed, files_of, run_of, waiting_or_running
from imageevalkit.store.cell import log_root, short_path


class _UnderWay(NamedTuple):
    """A run that has not ended.

    ``launcher`` is the id of its launcher process on this machine (None: no such process). ``host`` is the
    name of another machine with the launcher (empty: this machine or unknown). ``jobs`` are the numbers of
    its jobs in Slurm's queue.
    """

    plan: Plan
    launcher: int | None
    host: str
    jobs: list[str]

    def __str__(self) -> str:
        parts = [f"run {short_path(self.plan.run_folder)}"]
        if self.launcher:
            parts.append(f"process {self.launcher}")
        if self.host:
            parts.append(f"watched from {self.host}")
        if self.jobs:
            parts.append(f"{counted(len(self.jobs), 'job')} in Slurm's queue")
        return ", ".join(parts)


def _watching(folder: Path) -> tuple[int | None, str]:
    """Returns the launcher of the run in ``folder``: its process id here, or the name of another machine."""
    launcher = launcher_of(folder)
    if launcher is None:
        return None, ""
    if launcher.host != socket.gethostname():
        # From here, a run on another machine can be cancelled only if its jobs are in Slurm's queue.
        return None, launcher.host if files_of(folder).is_dir() and has_launcher(folder) else ""
    is_alive = launcher.began and start_of(launcher.pid) == launcher.began
    return (launcher.pid if is_alive else None), ""


def _under_way() -> Iterator[_UnderWay]:
    """Yields the runs with a launcher or with jobs in Slurm's queue, even if the end of the run is on record.

    Raises UserError after the last run: Slurm's queue cannot be read, so runs on a cluster may be missing.
    """
    submitted, unseen = defaultdict[str, list[str]](list), ""
    folders = sorted(path.parent for path in (log_root() / "runs").glob("*/plan.json"))
    if any(files_of(folder).is_dir() for folder in folders):
        try:
            for number, queued in waiting_or_running(Slurm()).items():
                submitted[run_of(queued)].append(number)
        except UserError as error:
            unseen = str(error)
    for folder in folders:
        has_ended = (folder / "summary.json").exists()
        jobs = submitted[str(folder.absolute())]
        launcher, host = (None, "") if has_ended else _watching(folder)
        if launcher or host or jobs:
            try:
                plan = load_plan(folder / "plan.json")
            except UserError as error:  # another version may have written the plan
                say(str(error))
            else:
                yield _UnderWay(plan, launcher, host, jobs)
    if unseen:
        raise UserError(f"the list lacks runs on the cluster: {unseen}")


def show_status(given: Mapping[str, Any], config: Config, here: Path) -> ExitStatus:
    """Prints the progress of each run that has not ended. Raises UserError: Slurm's queue cannot be read."""
    there = False
    for run in _under_way():
        there = True
        show(str(run))
        plan, folder = run.plan, Path(run.plan.run_folder)
        for job in plan.jobs:
            snapshots = ProgressReader(plan.progress_path(job)).read()
            for key in job.owed:
                what = f"{job.stage} {key}" + f" (shard {job.shard})" * bool(job.shard)
                if outcome := read_outcome(folder, cell_of(key), job.step):
                    show(f"  {outcome.state:10} {what}: {outcome.message}")
                elif progress := snapshots.get(key):
                    note = f" {progress.note}" if progress.note else ""
                    show(f"  {'running':10} {what} {progress.done}/{progress.total}{note}")
                else:
                    show(f"  {'waiting':10} {what}")
    if not there:
        show("no run is under way")
    return ExitStatus.COMPLETE


def cancel(given: Mapping[str, Any], config: Config, here: Path) -> ExitStatus:
    """Ends each run of this user: its launcher ends its jobs.

    If the launcher has ended, or is on another machine, Slurm cancels the jobs.

    Raises UserError: Slurm does not cancel a job, or its queue cannot be read.
    """
    there = False
    for run in _under_way():
        there = True
        folder = Path(run.plan.run_folder)
        if (owner := folder.stat().st_uid) != os.getuid():
            say(f"not cancelled: {run}: user {owner} owns it")
            continue
        try:
            # A launcher on another machine reads this file: it submits no more jobs and reports the end.
            write_atomic(stop_path(folder), "")
            if run.launcher:
                os.kill(run.launcher, signal.SIGTERM)
            else:
                Slurm().cancel(run.jobs)
        except SlurmFailed as error:
            raise UserError(f"{error}; to end what is left: scancel {' '.join(run.jobs)}") from None
        except (OSError, CellFailure) as error:  # no permission, or the process has just ended
            say(f"not cancelled: {run}: {one_line(error)}")
            continue
        show(f"cancelled: {run}")
    if not there:
        show("no run is under way")
    return ExitStatus.COMPLETE


COMMANDS = [
    Command("--status", show_status, uses_results=False),
    Command("--cancel", cancel, uses_results=False),
]
