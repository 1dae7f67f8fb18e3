"""The command behind ``bash eval.sh``: parses options, makes the plan, locks the cells, runs the jobs."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imageevalkit import registry
from imageevalkit.cli import runs
from imageevalkit.cli.listing import listing
from imageevalkit.common import logs
from imageevalkit.common.errors import (
    CellFailure,
    ExitStatus,
    UserError,
    complain,
    run_main,
    say,
    show,
    worst,
)
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.machine import garbage_collection, require
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import counted
from imageevalkit.extras.until.rounds import run_rounds, told_of_rounds
from imageevalkit.extras.watch.watch import watch
from imageevalkit.jobs.plan import USABLE, GenerateOrder, Plan, cell_of
from imageevalkit.plan.config import Config, read_config
from imageevalkit.plan.models import makers
from imageevalkit.plan.options import EXPORT, Options, is_set, options_over, parse, resolve
from imageevalkit.plan.planner import make_plan
from imageevalkit.plan.workload import describe, with_gpus_of_work
from imageevalkit.run.display import print_repeats, print_report
from imageevalkit.run.local import run_plan
from imageevalkit.slurm import cluster, export
from imageevalkit.slurm.commands import Slurm
from imageevalkit.store.cell import LAUNCHERS_LOCK, REPO, lock_cell, note_owner, short_path, split_names

if TYPE_CHECKING:
    from imageevalkit.extras.compare.gate import Gate

# Options that ask for a run if they are on the command line.
_RUNS = {"--model_names", "--ds_names", "--quickstart"}
# Options that use results. Without an option of _RUNS, they use the existing results and nothing runs.
_OF_RESULTS = {"--gate", "--save_baseline", "--votes", "--publish", "--export", "--report"}
# Files that the launcher has open, beside two locks and a log for each cell.
_FILES = 64
_FILES_OF_CELL = 3


def main() -> ExitStatus:
    """Does what the command line asks for and returns the exit status; for a run, that of the worst cell."""
    words = sys.argv[1:]
    if words[:1] != ["--config-fd"]:
        raise UserError("start this through eval.sh: bash eval.sh --help")
    given = parse(words[2:])
    here = Path.cwd()
    # Relative paths start from the user's folder, but the process changes into the checkout below.
    for name in ("--images", "--gate", "--save_baseline", "--watch", "--publish"):
        if given.get(name):
            given[name] = str(Path(given[name]).expanduser().absolute())
    if given.get("--votes"):
        files = (Path(name).expanduser().absolute() for name in split_names(given["--votes"]))
        given["--votes"] = ";".join(map(str, files))
    tracker, colon, folder = given.get("--export", "").partition(":")
    if tracker == "tensorboard" and folder:
        given["--export"] = f"{tracker}{colon}{Path(folder).expanduser().absolute()}"
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
    if "--compare" in given:
        return _compare(given, config, here)
    if given.keys() & _OF_RESULTS and not given.keys() & _RUNS:
        return _of_results(options_over(given, config), here)
    if "--report" in given:
        raise UserError(f"--report runs nothing: leave out {next(name for name in given if name in _RUNS)}")
    options = resolve(given, config)
    if options.watch:
        return watch(options, config)
    plan = make_plan(options, config)
    require(_FILES + _FILES_OF_CELL * len(plan.cells))
    if options.dry_run:
        text, status = describe(with_gpus_of_work(plan))
        show(text)
        if options.until:
            show(told_of_rounds(options.until))
        return status
    if options.hands_over and (early := [name for name in given if name in _OF_RESULTS]):
        raise UserError(
            f"--launcher {options.launcher} runs nothing itself: give {early[0]} when its jobs have ended"
        )
    if options.detach and options.gate:
        raise UserError(
            "--detach ends before the gate has looked, whose exit status nobody would see: leave one of them out; when "
            f"the run has ended, bash eval.sh --gate {shlex.quote(short_path(options.gate))} tells the same"
        )
    gate = _gate(options) if options.gate or options.save_baseline else None
    if gate:
        gate.check_cells(plan.cells)
    _check_handing_on(options)
    _take_votes(options)
    slurm = Slurm()
    try:
        # All cells are locked before anything starts, so a second run on one of them ends here.
        locks = {} if plan.cluster else {key: lock_cell(cell_of(key)) for key in sorted(plan.cells)}
        # On a cluster, a job locks its cells only when it starts; until then its launcher has this lock.
        launchers = [lock_cell(cell_of(key), name=LAUNCHERS_LOCK) for key in locks]
        plan = with_gpus_of_work(plan)
        found = cluster.look_around(plan, slurm) if plan.cluster else None
        plan.save()
    except (OSError, CellFailure) as error:
        raise UserError(f"output/ or log/ cannot be written: {one_line(error)}") from error
    cells, jobs = counted(len(plan.cells), "cell"), counted(len(plan.jobs), "job")
    say(f"{cells}, {jobs}; run folder {plan.run_folder}")
    orders = [job.order for job in plan.jobs if isinstance(job.order, GenerateOrder)]
    for note in plan.notes:
        say(f"note: {note}")
    for line in makers({model: by_task for order in orders for model, by_task in order.settings.items()}):
        say(line)
    if options.launcher == EXPORT:
        for lock in (*locks.values(), *launchers):  # the exported jobs lock the cells when they run
            os.close(lock)
        return export.write(plan)
    if options.detach:
        runs.detach(Path(plan.run_folder))
        for lock in (*(found.locks if found else locks).values(), *launchers):
            note_owner(lock)
    runs.note_launcher(Path(plan.run_folder))
    logs.print_without_fear()
    if options.hands_over:
        for lock in locks.values():  # a job locks its cells when it runs
            os.close(lock)
        return _handed_over(options.launcher, plan)
    if options.until:
        summary = run_rounds(options, config, plan, locks)
    else:
        summary = cluster.run_plan(plan, found, slurm, options.detach) if found else run_plan(plan, locks)
    print_repeats(plan)
    print_report(plan)
    if summary.status in (ExitStatus.INTERRUPTED, ExitStatus.TERMINATED):
        return summary.status
    status = worst([summary.status, _hand_on(options, ExitStatus.FAILED)])
    if gate is None:
        return status
    failed = {one.cell: one.message or one.state for one in summary.cells if one.state not in USABLE}
    return worst([status, gate.close({key: failed.get(key, "") for key in plan.cells})])


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


def _compare(given: Mapping[str, Any], config: Config, here: Path) -> ExitStatus:
    """Prints the comparison of ``--compare``. Raises UserError: A or B is unknown, or an option runs jobs."""
    options = options_over(given, config)
    if in_vain := [name for name in given if name in _RUNS | _OF_RESULTS]:
        raise UserError(f"--compare runs nothing: leave out {in_vain[0]}")
    from imageevalkit.extras.compare.telling import compare_words  # slow to import, and a run never needs it

    assert options.compare
    return compare_words(options.compare, here)


def _of_results(options: Options, here: Path) -> ExitStatus:
    """Handles options that use existing results (report, gate, publish, export) and runs nothing.

    ``here`` is the user's folder, for relative paths. Raises UserError, CellFailure.
    """
    _check_handing_on(options)
    statuses = []
    if _take_votes(options) or options.report is not None:
        statuses.append(_report(options, here))
    if options.gate or options.save_baseline:
        statuses.append(_gate(options).close())
    return worst([*statuses, _hand_on(options, ExitStatus.USAGE)])


def _take_votes(options: Options) -> bool:
    """Copies the files of ``--votes`` for all reports. Returns False if the option is not given.

    Raises UserError: a file holds no votes, or cannot be copied.
    """
    if options.votes:
        from imageevalkit.extras.votes.report import take_votes

        try:
            copies = take_votes(options.votes)
        except OSError as error:
            raise UserError(f"--votes: {error.filename} cannot be written: {error.strerror}") from None
        say(
            f"{counted(len(copies), 'file')} of votes taken: every report reads {short_path(copies[0].parent)}"
        )
    return bool(options.votes)


def _check_handing_on(options: Options) -> None:
    """Raises UserError: ``--publish`` or ``--export`` names a folder or tracker that cannot be used."""
    if options.publish:
        from imageevalkit.extras.publish.folder import check_folder

        check_folder(options.publish)
    if options.export:
        from imageevalkit.extras.export.trackers import check_tracker

        check_tracker(options.export[0])


def _publish(options: Options) -> ExitStatus:
    if options.publish:
        from imageevalkit.extras.publish.folder import publish

        return publish(options.publish, show)
    return ExitStatus.COMPLETE


def _export(options: Options) -> ExitStatus:
    if options.export:
        from imageevalkit.extras.export.trackers import send

        send(*options.export, show)
    return ExitStatus.COMPLETE


def _hand_on(options: Options, mistake: ExitStatus) -> ExitStatus:
    """Publishes and exports the results, and prints errors. If one of the two fails, the other still happens.

    Returns the worst status; a UserError counts as the status ``mistake``.
    """
    statuses = []
    for one in (_publish, _export):
        try:
            statuses.append(one(options))
        except (UserError, CellFailure) as error:
            complain(str(error))
            statuses.append(mistake if isinstance(error, UserError) else ExitStatus.FAILED)
    return worst(statuses)


def _report(options: Options, here: Path) -> ExitStatus:
    """Writes the report of the existing results, or of those in the folders of ``--report``.

    Raises UserError: a folder does not exist or holds no results. CellFailure: a file cannot be written.
    """
    from imageevalkit.extras.compare.telling import compare_words
    from imageevalkit.extras.relations.report import Asked
    from imageevalkit.report.__main__ import make_report, report_of

    folders = list(dict.fromkeys((here / folder).resolve() for folder in options.report or ()))
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--report takes folders of results; {folder} is none")
    with garbage_collection(False):
        if not folders:
            return make_report(Asked(), None, options.report_mb, options.sort_by)
        if len(folders) == 2:  # the report of two folders links to their comparison
            try:
                compare_words([str(folder) for folder in folders], here)
            except UserError as error:
                show(f"note: {error}")
        return report_of(folders, options.report_mb, options.sort_by)


def _gate(options: Options) -> Gate:
    """Returns the gate after reading its baseline. Raises UserError: a baseline cannot be read or saved."""
    from imageevalkit.extras.compare.gate import Gate

    return Gate.of(options.gate, options.save_baseline)


if __name__ == "__main__":
    run_main(main)
