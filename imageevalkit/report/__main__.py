"""``python -m imageevalkit.report``: write the leaderboard and the site of everything in ``output/``, and what
benchmarks say of several models at once (``output/comparisons/<benchmark>/<evaluator>/``)."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from imageevalkit import registry
from imageevalkit.atomic import write_atomic
from imageevalkit.benchmark.contract import Benchmark, benchmark_code
from imageevalkit.cell import COMPARISONS, REPORT_MB, Cell, by_name, output_root, results_in
from imageevalkit.cell.jsonl import Tell
from imageevalkit.cell.pictures import THUMBNAILS
from imageevalkit.cell.results import Result, check_files, folder_name, read_scores, write_files
from imageevalkit.errors import CellFailure, ExitStatus, UserError, run_main, show
from imageevalkit.jobs import (
    USABLE,
    BenchmarkSettings,
    Plan,
    ReportOrder,
    cell_of,
    given_job,
    read_outcome,
)
from imageevalkit.locks import held
from imageevalkit.machine import garbage_collection
from imageevalkit.metrics import grouped
from imageevalkit.report.collect import CellReport, collect
from imageevalkit.report.curves import Curve, curve_tables, curves
from imageevalkit.report.documents import tex_text, workbook
from imageevalkit.report.index import Found
from imageevalkit.report.leaderboard import Ranks, board_of, csv_text, format_table, grid
from imageevalkit.report.pages import markdown_text
from imageevalkit.report.relations import Asked, recorded_relations, update_relations
from imageevalkit.report.site import write_site
from imageevalkit.report.tables import read_folders
from imageevalkit.report.votes import vote_report
from imageevalkit.text import plain

_WIDTH_OF_A_PIPE = 120


def main(argv: Sequence[str] | None = None) -> ExitStatus:
    """The report of the job on the command line; without one, of all there is."""
    words = sys.argv[1:] if argv is None else argv
    with garbage_collection(False):
        if not words:
            return make_report(Asked())
        plan, _, order = given_job(ReportOrder, words)
        asked = Asked(order.cells, order.relations, order.relations_kwargs)
        return make_report(asked, plan, order.report_mb, order.sort_by)


def make_report(
    asked: Asked, plan: Plan | None = None, megabytes: float = REPORT_MB, sort_by: Sequence[str] = ()
) -> ExitStatus:
    """Write every report file and print the table of the cells asked for, else of all; cells that failed in the run of
    ``plan`` show no score. The status is FAILED if one of these results cannot be read, or relations that the run asks
    for cannot be computed; all others are reported.

    What cannot be read is one line each, here and in the files.

    Raises:
        CellFailure: a report file cannot be written.

    ``megabytes``: ``report.html``, one file with everything, is made where it takes no more. ``sort_by``: the
    benchmarks or columns whose mean orders the models; empty: all that count.
    """
    wanted = asked.cells
    try:
        with held(output_root() / ".report.lock"):  # of two runs that end at once one waits
            unreadable: list[str] = []
            found = collect(unreadable.append)
            failed = _failures(plan, {*wanted, *(cell.key for cell in found)})
            # only a run knows why there is no score
            cells = [
                cell if cell.result else cell._replace(problem=failed.get(cell.key, cell.problem))
                for cell in found
            ]
            ranks = Ranks(sort_by)
            unknown = _unknown_columns(cells, ranks)
            unreadable += unknown
            over_steps = curves([cell.result for cell in cells if cell.result])
            _print(
                cells, unreadable, wanted, failed, ranks, over_steps
            )  # first: a full disk must not hide the scores
            # what failed before it had a file is no less a cell without a result; the table of the run has told it
            there = {cell.key for cell in cells}
            cells += [_without_files(key, why) for key, why in failed.items() if key not in there]
            paths = write_reports(cells, unreadable, asked, ranks, over_steps, megabytes)
            paths += write_comparisons(cells, lambda line: show(plain(line)), plan.settings if plan else {})
    except OSError as error:
        raise _not_written(error, output_root()) from error
    # what failed is the last word
    show("\n".join([*(f"report: {path}" for path in paths), *map(plain, asked.refused)]))
    own = [cell for cell in found if not wanted or cell.key in wanted]
    return ExitStatus.FAILED if asked.refused or unknown else _status_of(own)


def report_of(
    folders: Sequence[Path], megabytes: float = REPORT_MB, sort_by: Sequence[str] = ()
) -> ExitStatus:
    """:func:`make_report` of the results in ``folders``, without what only a run finds out.

    It goes into the folder, of several into one below that of comparisons; there a model that is in more than one of
    them has its folder behind its name.

    Raises:
        UserError: one holds no results.
        CellFailure: a file cannot be written.
    """
    unreadable = list[str]()
    cells = read_folders(folders, unreadable.append)
    place = folders[0] if len(folders) == 1 else place_of(folders)
    if {cell.root for cell in cells} == {place}:
        with results_in(place):
            return make_report(Asked(), None, megabytes, sort_by)
    ranks = Ranks(sort_by)
    unknown = _unknown_columns(cells, ranks)
    unreadable += unknown
    try:
        with held(place / ".report.lock"):
            over_steps = curves([cell.result for cell in cells if cell.result])
            _print(cells, unreadable, (), {}, ranks, over_steps)
            paths = write_tables(place, cells, unreadable, ranks, over_steps)
            found = Found(recorded_relations(cells), over_steps, None, unreadable)
            paths += write_site(place, cells, found, ranks, megabytes)
    except OSError as error:
        raise _not_written(error, place) from error
    show("\n".join(f"report: {path}" for path in paths))
    return ExitStatus.FAILED if unknown else _status_of(cells)


def _unknown_columns(cells: Iterable[CellReport], ranks: Ranks) -> list[str]:
    """A line for each name of --sort_by that no column has."""
    if not ranks.sort_by:
        return []
    board = grid([cell.result for cell in cells if cell.result], ranks)
    known = f"columns are {', '.join(board.labels)}" if board.labels else "there is no result"
    return [f"--sort_by: no benchmark or column is called '{word}'; {known}" for word in board.mean.unknown]


def _status_of(cells: Iterable[CellReport]) -> ExitStatus:
    return ExitStatus.FAILED if any(cell.is_invalid for cell in cells) else ExitStatus.COMPLETE


def place_of(folders: Sequence[Path]) -> Path:
    """Where the report of several folders goes, of two beside what --compare says of them."""
    return output_root() / COMPARISONS / folder_name(" vs ".join(map(str, folders)))


def _not_written(error: OSError, place: Path) -> CellFailure:
    where = error.filename2 or error.filename or place
    return CellFailure(f"the report cannot be written: {where}: {error.strerror or error}")


def _without_files(key: str, problem: str) -> CellReport:
    cell = cell_of(key)
    return CellReport(cell, None, problem, cell.result, output_root(), cell.model)


def write_reports(
    cells: Sequence[CellReport],
    unreadable: Sequence[str],
    asked: Asked,
    ranks: Ranks,
    over_steps: Sequence[Curve],
    megabytes: float = REPORT_MB,
) -> list[Path]:
    """Write the leaderboard in all its formats, relations, the site and ``report.html``, and return the paths of what a
    reader opens.

    ``unreadable`` are the lines about what is not among ``cells``.

    Raises:
        OSError, CellFailure: one cannot be written.
    """
    root = output_root()
    shutil.rmtree(root / THUMBNAILS, ignore_errors=True)  # of versions that kept them all there
    # the numbers first: they must not wait for thousands of thumbnails, nor be lost with them
    tables = write_tables(root, cells, unreadable, ranks, over_steps)
    relations = update_relations(cells, asked, lambda line: show(plain(line)))
    told = list(unreadable)
    votes = vote_report(cells, told.append)
    for line in told[len(unreadable) :]:
        show(plain(line))
    found = Found(relations, over_steps, votes, told)
    return [*tables, *write_site(root, cells, found, ranks, megabytes)]


def write_tables(
    place: Path,
    cells: Sequence[CellReport],
    unreadable: Sequence[str],
    ranks: Ranks,
    over_steps: Sequence[Curve],
) -> list[Path]:
    """Write the leaderboard of ``cells`` into ``place`` in all its formats; their paths."""
    texts: dict[str, bytes | str] = {
        "leaderboard.csv": csv_text(cells, ranks),
        "leaderboard.md": markdown_text(cells, unreadable, ranks, over_steps),
        "leaderboard.xlsx": workbook(cells, ranks),
        "leaderboard.tex": tex_text(cells, ranks),
    }
    for name, text in texts.items():
        write_atomic(place / name, text)
    return [place / name for name in texts]


def _failures(plan: Plan | None, keys: Iterable[str]) -> dict[str, str]:
    """Why cells have no score of the run with that ``plan``, by key; empty when no run is meant."""
    if plan is None:
        return {}
    failed, steps = dict[str, str](), defaultdict[str, list[str]](list)
    for job in reversed(plan.jobs):
        for key in job.owed:
            steps[key].append(job.step)
    for key in keys:
        # the first of them that failed is the cause
        for step in steps[key]:
            outcome = read_outcome(Path(plan.run_folder), cell_of(key), step)
            if outcome and outcome.state not in USABLE:
                failed[key] = f"{outcome.state} in this run: {outcome.message}"
    return failed | {key: f"blocked in this run: {reason}" for key, reason in plan.blocked.items()}


def _print(
    cells: Sequence[CellReport],
    unreadable: Sequence[str],
    wanted: Sequence[str],
    failed: Mapping[str, str],
    ranks: Ranks,
    over_steps: Sequence[Curve],
) -> None:
    listed = [
        # an older score of a cell that failed now is still in the files, but it is not this run's answer
        cell._replace(result=None, problem=failed[cell.key]) if cell.key in failed else cell
        for cell in cells
        if not wanted or cell.key in wanted
    ]
    width = shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns
    results = [cell.result for cell in listed if cell.result]
    if results or not listed:
        show(format_table(results, width, ranks))
    boards_here = {(*by_name(one.model)[:1], board_of(one)) for one in results}
    # each among all steps of its training that there are
    if text := curve_tables([curve for curve in over_steps if (curve.run, curve.board) in boards_here]):
        show(text)
    # a cell with the results of several evaluators is listed once for each
    without = [cell for cell in listed if not cell.result]
    for line in dict.fromkeys(f"{cell.key}: {cell.problem}" for cell in without):
        show(plain(line))
    for key in wanted:
        # of a cell that failed before it had a file the table of the run tells all
        if key not in failed and all(cell.key != key for cell in cells):
            show(f"{key}: nothing in {output_root()}")
    told = {cell.problem for cell in without}
    for line in unreadable:
        if line not in told:
            show(plain(line))


def write_comparisons(
    cells: Sequence[CellReport], tell: Tell, settings: BenchmarkSettings | None = None
) -> list[Path]:
    """Write what each benchmark, with its ``settings``, says of its models (:meth:`Benchmark.compare`); the folders.

    Models are compared where they were measured alike: by one evaluator, on the same items, and none withheld. What a
    benchmark cannot say is told in one line.

    Raises:
        OSError, CellFailure: a file cannot be written.
    """
    if any(cell.cell.folder.is_relative_to(output_root() / COMPARISONS) for cell in cells):
        tell(
            f"models are not compared: {COMPARISONS}/ is where that goes, and a model is called so; rename its folder"
        )
        return []
    measured = [(cell, cell.result) for cell in cells if cell.result and cell.result.headline]
    by_benchmark = grouped(measured, lambda one: one[0].cell.benchmark)
    folders = []
    for name in {**by_benchmark, **{folder.name: [] for folder in (output_root() / COMPARISONS).glob("*")}}:
        try:
            cls = registry.benchmark_class(name)
            if cls is None or cls.compare is Benchmark.compare:
                continue
            benchmark = registry.make_benchmark(name, (settings or {}).get(name, {}), "")
        except (UserError, CellFailure) as error:
            tell(f"{name}: models are not compared: {error}")
            continue
        found = list(_compared(benchmark, by_benchmark.get(name, []), tell))
        for folder in (output_root() / COMPARISONS / name).glob("*"):
            if folder not in found:  # of models that are not there any more
                shutil.rmtree(folder, ignore_errors=True)
        folders += found
    return folders


def _compared(
    benchmark: Benchmark, measured: Sequence[tuple[CellReport, Result]], tell: Tell
) -> Iterator[Path]:
    for how, alike in grouped(measured, lambda one: _how(one[1])).items():
        # the latest first, of a model with several
        files_of = {cell.cell.model: cell.source.with_name("scores.jsonl") for cell, _ in reversed(alike)}
        if len(files_of) < 2:
            continue
        try:
            scores = {model: read_scores(path) for model, path in reversed(files_of.items())}
            with benchmark_code(benchmark.name, "compare()") as where:
                files = dict(benchmark.compare(scores))
                check_files(files, where)
        except CellFailure as error:
            tell(str(error))
            continue
        if files:
            folder = output_root() / COMPARISONS / benchmark.name / folder_name(how)
            write_files(folder, files)
            yield folder


def _how(result: Result) -> str:
    """How ``result`` was measured, in words."""
    limit = f" limit {result.limit}" if result.limit else ""
    limit += f" asked {result.coverage.asked}" if result.coverage.unasked else ""
    rewriter = Cell(result.model, result.benchmark).rewriter
    prompts = f" prompts {rewriter}" if rewriter else ""
    return f"{result.evaluator.id} version {result.benchmark_version} {result.treatment}{limit}{prompts}"


if __name__ == "__main__":
    run_main(main)
