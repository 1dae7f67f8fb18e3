"""The command behind ``bash eval.sh``: parses options, makes the plan, locks the cells, runs the jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from imageevalkit import registry
from imageevalkit.cli.command_line import Command, ResultsHook, parse
from imageevalkit.common import logs
from imageevalkit.common.errors import (
    CellFailure,
    ExitStatus,
    UserError,
    complain,
    run_main,
    say,
    worst,
)
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.machine import garbage_collection, require
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import counted
from imageevalkit.extension_points import connected, extras
from imageevalkit.jobs.launcher import detach, note_launcher
from imageevalkit.jobs.plan import USABLE, GenerateOrder, Plan, ReportOrder, cell_of
from imageevalkit.plan.config import read_config
from imageevalkit.plan.models import makers
from imageevalkit.plan.options import (
    EXPORT,
    OF_EXTRAS,
    Options,
    is_set,
    options_over,
    resolve,
    with_absolute_paths,
)
from imageevalkit.plan.planner import plan_run
from imageevalkit.run.display import print_repeats, print_report, show_gallery
from imageevalkit.run.local import run_plan
from imageevalkit.slurm import cluster
from imageevalkit.slurm.commands import Slurm, look_around, sbatch_words, with_nodes
from imageevalkit.slurm.node_job import export
from imageevalkit.store.cell import LAUNCHERS_LOCK, REPO, lock_cell, note_owner

# Options that ask for a run if they are on the command line.
_RUNS = {"--model_names", "--ds_names", "--quickstart"}
# Files that the launcher has open, beside two locks and a log for each cell.
_FILES = 64
_FILES_OF_CELL = 3


def main() -> ExitStatus:
    """Does what the command line asks for and returns the exit status: after a run, its worst cell's status."""
    words = sys.argv[1:]
    if words[:1] != ["--config-fd"]:
        raise UserError("start this through eval.sh: bash eval.sh --help")
    here = Path.cwd()
    given = with_absolute_paths(parse(words[2:]), here)
    os.chdir(REPO)
    config = read_config(int(words[1]))
    of_results = _options_of_results()
    if command := _command(given):
        others = (_RUNS | of_results) - {command.option}
        if command.uses_results and (in_vain := [name for name in given if name in others]):
            raise UserError(f"{command.option} runs nothing: leave out {in_vain[0]}")
        return command.run(given, config, here)
    if given.keys() & of_results and not given.keys() & _RUNS:
        return _of_results(options_over(given, config), here)
    if "--report" in given:
        raise UserError(f"--report runs nothing: leave out {next(name for name in given if name in _RUNS)}")
    options = with_nodes(resolve(given, config), config)
    plan = plan_run(options, config)
    sbatch = sbatch_words(config, plan) if plan.cluster else {}
    require(_FILES + _FILES_OF_CELL * len(plan.cells))
    if options.hands_over and (early := [name for name in given if name in of_results]):
        raise UserError(
            f"--launcher {options.launcher} runs nothing itself: give {early[0]} when its jobs have ended"
        )
    hooks = _results_hooks(options)
    for hook in hooks:
        hook.prepare(plan)
    slurm = Slurm()
    try:
        # All cells are locked before anything starts, so a second run on one of them ends here.
        locks = {} if plan.cluster else {key: lock_cell(cell_of(key)) for key in sorted(plan.cells)}
        # On a cluster, a job locks its cells only when it starts; until then its launcher has this lock.
        launchers = [lock_cell(cell_of(key), name=LAUNCHERS_LOCK) for key in locks]
        found = look_around(plan, slurm) if plan.cluster else None
        plan.save()
    except (OSError, CellFailure) as error:
        raise UserError(f"output/ or log/ cannot be written: {one_line(error)}") from error
    cells, jobs = counted(len(plan.cells), "result"), counted(len(plan.jobs), "job")
    say(f"{cells}, {jobs}; run folder {plan.run_folder}")
    orders = [job.order for job in plan.jobs if isinstance(job.order, GenerateOrder)]
    for note in plan.notes:
        say(f"note: {note}")
    for line in makers({model: by_task for order in orders for model, by_task in order.settings.items()}):
        say(line)
    if options.launcher == EXPORT:
        for lock in (*locks.values(), *launchers):  # the exported jobs lock the cells when they run
            os.close(lock)
        return export(plan)
    if options.detach:
        detach(Path(plan.run_folder))
        for lock in (*(found.locks if found else locks).values(), *launchers):
            note_owner(lock)
    note_launcher(Path(plan.run_folder))
    logs.print_without_fear()
    if options.hands_over:
        for lock in locks.values():  # a job locks its cells when it runs
            os.close(lock)
        return _handed_over(options.launcher, plan)
    schedulers = connected("scheduler", options.active_extras)
    if schedulers:
        summary = next(iter(schedulers.values())).run(options, config, plan, locks)
    else:
        summary = (
            cluster.run_plan(plan, found, slurm, sbatch, options.detach) if found else run_plan(plan, locks)
        )
    print_repeats(plan)
    print_report(plan)
    if summary.status in (ExitStatus.INTERRUPTED, ExitStatus.TERMINATED):
        return summary.status
    if options.quickstart and summary.status == ExitStatus.COMPLETE:
        show_gallery(options.benchmarks[0])
    reasons = {one.cell: one.message or one.state for one in summary.cells if one.state not in USABLE}
    failed = {key: reasons.get(key, "") for key in plan.cells}
    return worst([summary.status, _finish(hooks, failed, ExitStatus.FAILED)])


def _handed_over(name: str, plan: Plan) -> ExitStatus:
    """Runs ``plan`` with the launcher of a plug-in. Returns its status; with blocked cells at least FAILED.

    Raises CellFailure: the launcher raised an error, or returned no exit status.
    """
    try:
        with guest_code():
            returned = registry.launcher(name)(plan)
        status = ExitStatus(returned)
    except (UserError, CellFailure):
        raise
    except Exception as error:
        raise CellFailure(f"launcher '{name}' failed: {type(error).__name__}: {one_line(error)}") from error
    print_report(plan)
    for cell, reason in plan.blocked.items():
        complain(f"{cell} was not started: {reason}")
    return worst([status, ExitStatus.FAILED] if plan.blocked else [status])


def _options_of_results() -> set[str]:
    """Returns the options that use results. Without an option of _RUNS, nothing runs."""
    with_results = [name for name, connects in extras().items() if "results" in connects]
    return {"--report", *(entry.name for name in with_results for entry in OF_EXTRAS[name].values())}


def _command(given: Mapping[str, Any]) -> Command | None:
    """Returns the command of an extra that the command line asks for. Raises UserError: it asks for two."""
    asked = {
        name: [e.name for e in entries.values() if e.name in given and (e.metavar or is_set(given, e.name))]
        for name, entries in OF_EXTRAS.items()
    }
    commands = connected("commands", [name for name, options in asked.items() if options])
    found = [one for name, of_extra in commands.items() for one in of_extra if one.option in asked[name]]
    if len(found) > 1:
        raise UserError(f"{found[0].option} and {found[1].option} exclude each other: leave one out")
    return next(iter(found), None)


def _results_hooks(options: Options) -> list[ResultsHook]:
    """Returns the hooks of the extras that the user asks for. Raises UserError if one cannot do its work."""
    return [hook(options) for hook in connected("results", options.active_extras).values()]


def _finish(
    hooks: Iterable[ResultsHook], failed: Mapping[str, str] | None, mistake: ExitStatus
) -> ExitStatus:
    """Lets all hooks finish, and prints errors. If one of them fails, the others still do their work.

    Returns the worst status; a UserError counts as the status ``mistake``.
    """
    statuses = []
    for hook in hooks:
        try:
            statuses.append(hook.finish(failed))
        except (UserError, CellFailure) as error:
            complain(str(error))
            statuses.append(mistake if isinstance(error, UserError) else ExitStatus.FAILED)
    return worst(statuses)


def _of_results(options: Options, here: Path) -> ExitStatus:
    """Handles options that use existing results and runs nothing.

    ``here`` is the user's folder, for relative paths. Raises UserError, CellFailure.
    """
    hooks = _results_hooks(options)
    for hook in hooks:
        hook.prepare(None)
    statuses = []
    if options.report is not None or any(hook.wants_report for hook in hooks):
        statuses.append(_report(options, here))
    return worst([*statuses, _finish(hooks, None, ExitStatus.USAGE)])


def _report(options: Options, here: Path) -> ExitStatus:
    """Writes the report of the existing results, or of the results in the folders of ``--report``.

    Raises UserError: a folder does not exist or holds no results. CellFailure: a file cannot be written.
    """
    from imageevalkit.report.__main__ import make_report, report_of

    folders = list(dict.fromkeys((here / folder).resolve() for folder in options.report or ()))
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--report takes folders of results; {folder} is none")
    order = ReportOrder([], report_mb=options.report_mb, sort_by=options.sort_by)
    with garbage_collection(False):
        if not folders:
            return make_report(None, order)
        return report_of(folders, order)


if __name__ == "__main__":
    run_main(main)
