"""``bash eval.sh`` after its configuration is read: options, plan, locks, launch, and the closing table."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from imageevalkit.cell import REPO, lock_cell
from imageevalkit.errors import CellFailure, ExitStatus, UserError, run_main, say, show
from imageevalkit.jobs import cell_of
from imageevalkit.launch.config import Config, read_config
from imageevalkit.launch.environments import ensure_driver_env, python_of
from imageevalkit.launch.options import help_text, is_set, parse_words, resolve
from imageevalkit.launch.process import LOG_HEADER
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
    fd, given = int(words[1]), parse_words(words[2:])
    if given.get("--images"):
        # relative to where the user is, which the next line leaves
        given["--images"] = str(Path(given["--images"]).expanduser().absolute())
    os.chdir(REPO)
    if is_set(given, "--help"):
        show(help_text())
        return ExitStatus.COMPLETE
    if is_set(given, "--list"):
        from imageevalkit.launch.listing import listing

        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        show(listing(read_config(fd), columns))
        return ExitStatus.COMPLETE
    # planning checks settings with a library that is only there, and may have come just now
    if ensure_driver_env():
        python = python_of("", "", "")
        # as they are understood here: what was relative to where the user is, is not so in REPO
        options = [f"{name}={value}" for name, value in given.items()]
        os.execv(python, [python, "-P", "-m", "imageevalkit.launch", *words[:2], *options])
    return _run(given, read_config(fd))


def _run(given: dict[str, str], config: Config) -> ExitStatus:
    from imageevalkit.launch.local import run_plan
    from imageevalkit.launch.planner import make_plan
    from imageevalkit.launch.workload import with_gpus_of_work

    options = resolve(given, config)
    plan = make_plan(options, config)
    require(_FILES + _FILES_OF_CELL * len(plan.cells))
    if options.dry_run:
        from imageevalkit.launch.workload import describe

        text, status = describe(with_gpus_of_work(plan))
        show(text)
        return status
    try:
        # every cell is locked before anything starts: a second run on any of them ends here
        locks = {key: lock_cell(cell_of(key)) for key in sorted(plan.cells)}
        plan = with_gpus_of_work(plan)
        plan.save()
    except (OSError, CellFailure) as error:
        raise UserError(f"output/ or log/ cannot be written: {one_line(error)}") from error
    cells, jobs = counted(len(plan.cells), "cell"), counted(len(plan.jobs), "job")
    say(f"{cells}, {jobs}; run folder {plan.run_folder}")
    summary = run_plan(plan, locks)
    _print_report(plan.jobs[-1].logs)
    return summary.status


def _print_report(logs: Sequence[str]) -> None:
    path = Path(logs[0])
    if path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        say("\n".join(line for line in lines if not line.startswith(LOG_HEADER)))


if __name__ == "__main__":
    run_main(main)
