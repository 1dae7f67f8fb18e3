"""``bash eval.sh`` after its configuration is read: options, plan, locks, launch, and the closing table."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from imageevalkit import logs
from imageevalkit.cell import REPO, lock_cell, note_owner
from imageevalkit.errors import CellFailure, ExitStatus, UserError, run_main, say, show
from imageevalkit.jobs import GenerateOrder, cell_of
from imageevalkit.launch import cluster, export, runs
from imageevalkit.launch.config import read_config
from imageevalkit.launch.local import run_plan
from imageevalkit.launch.models import makers
from imageevalkit.launch.options import EXPORT, is_set, parse, resolve
from imageevalkit.launch.planner import make_plan
from imageevalkit.launch.process import LOG_HEADER
from imageevalkit.launch.slurm import Slurm
from imageevalkit.launch.workload import describe, listing, with_gpus_of_work
from imageevalkit.machine import require
from imageevalkit.secrets import one_line
from imageevalkit.text import counted

# open at a time in the launcher, beside the lock and the log of each cell
_FILES = 64
_FILES_OF_CELL = 2


def main() -> ExitStatus:
    """Run one evaluation; the exit status is that of the worst cell."""
    words = sys.argv[1:]
    if words[:1] != ["--config-fd"]:
        raise UserError("start this through eval.sh: bash eval.sh --help")
    given = parse(words[2:])
    if given.get("--images"):
        # relative to where the user is, which the next line leaves
        given["--images"] = str(Path(given["--images"]).expanduser().absolute())
    os.chdir(REPO)
    config = read_config(int(words[1]))
    if is_set(given, "--list"):
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        show(listing(config, columns))
        return ExitStatus.COMPLETE
    if is_set(given, "--status"):
        runs.show_status()
        return ExitStatus.COMPLETE
    if is_set(given, "--cancel"):
        runs.cancel()
        return ExitStatus.COMPLETE
    options = resolve(given, config)
    plan = make_plan(options, config)
    require(_FILES + _FILES_OF_CELL * len(plan.cells))
    if options.dry_run:
        text, status = describe(with_gpus_of_work(plan))
        show(text)
        return status
    slurm = Slurm()
    try:
        # every cell is locked before anything starts: a second run on any of them ends here
        locks = {} if plan.cluster else {key: lock_cell(cell_of(key)) for key in sorted(plan.cells)}
        plan = with_gpus_of_work(plan)
        found = cluster.look_around(plan, slurm) if plan.cluster else None
        plan.save()
    except (OSError, CellFailure) as error:
        raise UserError(f"output/ or log/ cannot be written: {one_line(error)}") from error
    cells, jobs = counted(len(plan.cells), "cell"), counted(len(plan.jobs), "job")
    say(f"{cells}, {jobs}; run folder {plan.run_folder}")
    orders = [job.order for job in plan.jobs if isinstance(job.order, GenerateOrder)]
    for line in makers({model: by_task for order in orders for model, by_task in order.settings.items()}):
        say(line)
    if options.launcher == EXPORT:
        for lock in locks.values():  # its jobs take them, where they run
            os.close(lock)
        return export.write(plan)
    if options.detach:
        runs.detach(Path(plan.run_folder))
        for lock in (found.locks if found else locks).values():
            note_owner(lock)
    runs.note_launcher(Path(plan.run_folder))
    logs.print_without_fear()
    summary = cluster.run_plan(plan, found, slurm) if found else run_plan(plan, locks)
    report = Path(plan.jobs[-1].logs[0])
    if report.is_file():
        lines = report.read_text(encoding="utf-8", errors="replace").splitlines()
        say("\n".join(line for line in lines if not line.startswith(LOG_HEADER)))
    return summary.status


if __name__ == "__main__":
    run_main(main)
