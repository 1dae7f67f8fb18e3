"""``python -m imageevalkit.report`` writes the leaderboard and the site of all results in ``output/``.

It also writes the benchmarks' own comparisons of models (``output/comparisons/<benchmark>/<evaluator>/``)."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from imageevalkit import registry
from imageevalkit.benchmark.contract import Benchmark, benchmark_code
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError, run_main, show
from imageevalkit.common.locks import held
from imageevalkit.common.machine import garbage_collection
from imageevalkit.common.text import plain
from imageevalkit.jobs.plan import (
    USABLE,
    BenchmarkSettings,
    Plan,
    ReportOrder,
    cell_of,
    given_job,
    read_outcome,
)
from imageevalkit.metrics import grouped
from imageevalkit.report.collect import CellReport, collect
from imageevalkit.report.curves import Curve, curve_tables, curves
from imageevalkit.report.documents import tex_text, workbook
from imageevalkit.report.index import Found
from imageevalkit.report.item_parts import read_scores
from imageevalkit.report.leaderboard import Ranks, board_of, csv_text, format_table, grid
from imageevalkit.report.pages import markdown_text
from imageevalkit.report.sections import Section, sections_of
from imageevalkit.report.site import write_site
from imageevalkit.report.tables import read_folders
from imageevalkit.store.cell import COMPARISONS, REPORT_MB, Cell, by_name, output_root, results_in
from imageevalkit.store.jsonl import Tell
from imageevalkit.store.pictures import THUMBNAILS
from imageevalkit.store.results import Result, check_files, folder_name, write_files

_WIDTH_OF_A_PIPE = 120


def main(argv: Sequence[str] | None = None) -> ExitStatus:
    """Write the report of the job on the command line, or of all results if there is no job."""
    words = sys.argv[1:] if argv is None else argv
    with garbage_collection(False):
        if not words:
            return make_report()
        plan, _, order = given_job(ReportOrder, words)
        return make_report(plan, order)


def make_report(plan: Plan | None = None, order: ReportOrder = ReportOrder([])) -> ExitStatus:  # noqa: B008
    """Write all report files and print the table of the cells of ``order``, or of all cells if it names none.

    Cells that failed in the run of ``plan`` show no score in the printed table. Each unreadable file gets one
    line, printed and in the report.

    Returns:
        FAILED if one of these results cannot be read, requested relations cannot be computed, or ``sort_by``
        has an unknown name.

    Raises:
        CellFailure: A report file cannot be written.
    """
    wanted, sections = order.cells, sections_of(order.extra, order.cells)
    try:
        with held(output_root() / ".report.lock"):  # else two runs that end together would mix their files
            unreadable: list[str] = []
            found = collect(unreadable.append)
            failed = _failures(plan, {*wanted, *(cell.key for cell in found)})
            # the run knows the cause of a missing score better than the files
            cells = [
                cell if cell.result else cell._replace(problem=failed.get(cell.key, cell.problem))
                for cell in found
            ]
            ranks = Ranks(order.sort_by)
            unknown = _unknown_columns(cells, ranks)
            unreadable += unknown
            over_steps = curves([cell.result for cell in cells if cell.result])
            # print before writing: a full disk must not hide the scores
            _print(cells, unreadable, wanted, failed, ranks, over_steps)
            # cells that failed before they had a file: the report lists them too, the run's table already did
            there = {cell.key for cell in cells}
            cells += [_without_files(key, why) for key, why in failed.items() if key not in there]
            paths = write_reports(cells, unreadable, sections, ranks, over_steps, order.report_mb)
            paths += write_comparisons(cells, lambda line: show(plain(line)), plan.settings if plan else {})
    except OSError as error:
        raise _not_written(error, output_root()) from error
    # failures come last, so that they are the last lines on the screen
    refused = [line for section in sections for line in section.refused]
    show("\n".join([*_lines_of(paths), *map(plain, refused)]))
    own = [cell for cell in found if not wanted or cell.key in wanted]
    return ExitStatus.FAILED if refused or unknown else _status_of(own)


def report_of(folders: Sequence[Path], order: ReportOrder = ReportOrder([])) -> ExitStatus:  # noqa: B008
    """Write the report of the results in ``folders``. The report has no failures: only a run has these.

    The report of one folder goes into that folder. The report of several goes below the folder of
    comparisons. If two folders contain the same model, the report appends the folder to the model's name.

    Raises:
        UserError: A folder has no results.
        CellFailure: A file cannot be written.
    """
    unreadable = list[str]()
    cells = read_folders(folders, unreadable.append)
    place = folders[0] if len(folders) == 1 else place_of(folders)
    if {cell.root for cell in cells} == {place}:
        with results_in(place):
            return make_report(None, order)
    ranks = Ranks(order.sort_by)
    unknown = _unknown_columns(cells, ranks)
    unreadable += unknown
    sections = sections_of()
    for section in sections:
        section.compare_folders(folders)
    try:
        with held(place / ".report.lock"):
            over_steps = curves([cell.result for cell in cells if cell.result])
            _print(cells, unreadable, (), {}, ranks, over_steps)
            paths = write_tables(place, cells, unreadable, ranks, over_steps)
            for section in sections:
                section.read(cells, unreadable.append)
            found = Found(sections, over_steps, unreadable)
            paths += write_site(place, cells, found, ranks, order.report_mb)
    except OSError as error:
        raise _not_written(error, place) from error
    show("\n".join(_lines_of(paths)))
    return ExitStatus.FAILED if unknown else _status_of(cells)


def _lines_of(paths: Iterable[Path]) -> list[str]:
    """Return a line for each of ``paths``; pages come first."""
    return [f"report: {path}" for path in sorted(paths, key=lambda path: path.suffix != ".html")]


def _unknown_columns(cells: Iterable[CellReport], ranks: Ranks) -> list[str]:
    """Return a line for each name of --sort_by that matches no column."""
    if not ranks.sort_by:
        return []
    board = grid([cell.result for cell in cells if cell.result], ranks)
    known = f"columns are {', '.join(board.labels)}" if board.labels else "there is no result"
    return [f"--sort_by: no benchmark or column is called '{word}'; {known}" for word in board.mean.unknown]


def _status_of(cells: Iterable[CellReport]) -> ExitStatus:
    return ExitStatus.FAILED if any(cell.is_invalid for cell in cells) else ExitStatus.COMPLETE


def place_of(folders: Sequence[Path]) -> Path:
    """Return the folder for the report of several ``folders``; for two, --compare uses the same folder."""
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
    sections: Sequence[Section],
    ranks: Ranks,
    over_steps: Sequence[Curve],
    megabytes: float = REPORT_MB,
) -> list[Path]:
    """Write leaderboard, sections, site and ``report.html``, and return the paths of the files to open.

    ``unreadable`` has the lines about files that could not be read. Raises OSError or CellFailure if a file
    cannot be written.
    """
    root = output_root()
    shutil.rmtree(root / THUMBNAILS, ignore_errors=True)  # older versions stored all thumbnails there
    # the numbers first: else they would wait for thousands of thumbnails, and be lost if these fail
    tables = write_tables(root, cells, unreadable, ranks, over_steps)
    lines = list(unreadable)
    for section in sections:
        section.update(cells, lines.append)
    for line in lines[len(unreadable) :]:
        show(plain(line))
    found = Found(sections, over_steps, lines)
    return [*tables, *write_site(root, cells, found, ranks, megabytes)]


def write_tables(
    place: Path,
    cells: Sequence[CellReport],
    unreadable: Sequence[str],
    ranks: Ranks,
    over_steps: Sequence[Curve],
) -> list[Path]:
    """Write the leaderboard of ``cells`` into ``place`` in all formats, and return the paths."""
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
    """Return why cells have no score from the run of ``plan``, by key; empty without a plan."""
    if plan is None:
        return {}
    failed, steps = dict[str, str](), defaultdict[str, list[str]](list)
    for job in reversed(plan.jobs):
        for key in job.owed:
            steps[key].append(job.step)
    for key in keys:
        # the first failed step is the cause of all later failures
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
        # a cell that failed in this run may have an older score: it stays in the files but is not printed
        cell._replace(result=None, problem=failed[cell.key]) if cell.key in failed else cell
        for cell in cells
        if not wanted or cell.key in wanted
    ]
    width = shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns
    results = [cell.result for cell in listed if cell.result]
    if results or not listed:
        show(format_table(results, width, ranks) if results or not wanted else "This run has no results.")
    boards_here = {(*by_name(one.model)[:1], board_of(one)) for one in results}
    # a curve has all steps of a training run, not only the steps of this run of the command
    if text := curve_tables([curve for curve in over_steps if (curve.run, curve.board) in boards_here]):
        show(text)
    # a cell with several evaluators is in the list several times: print its line once
    without = [cell for cell in listed if not cell.result]
    for line in dict.fromkeys(f"{cell.key}: {cell.problem}" for cell in without):
        show(plain(line))
    for key in wanted:
        # the run's table already shows cells that failed before they had a file
        if key not in failed and all(cell.key != key for cell in cells):
            show(f"{key}: nothing in {output_root()}")
    lines = {cell.problem for cell in without}
    for line in unreadable:
        if line not in lines:
            show(plain(line))


def write_comparisons(
    cells: Sequence[CellReport], tell: Tell, settings: BenchmarkSettings | None = None
) -> list[Path]:
    """Write the comparisons of benchmarks that have :meth:`Benchmark.compare`, and return their folders.

    A comparison covers models with the same evaluator and items whose result is not withheld. ``settings``
    configure the benchmarks. ``tell`` gets a line for each comparison that fails.

    Raises:
        OSError, CellFailure: A file cannot be written.
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
            if folder not in found:  # its models were removed
                shutil.rmtree(folder, ignore_errors=True)
        folders += found
    return folders


def _compared(
    benchmark: Benchmark, measured: Sequence[tuple[CellReport, Result]], tell: Tell
) -> Iterator[Path]:
    for how, alike in grouped(measured, lambda one: _how(one[1])).items():
        # reversed, so that the latest of several results of a model wins
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
    """Return how ``result`` was measured: evaluator, version, treatment, limit and rewriter, as one text."""
    limit = f" limit {result.limit}" if result.limit else ""
    limit += f" asked {result.coverage.asked}" if result.coverage.unasked else ""
    rewriter = Cell(result.model, result.benchmark).rewriter
    prompts = f" prompts {rewriter}" if rewriter else ""
    return f"{result.evaluator.id} version {result.benchmark_version} {result.treatment}{limit}{prompts}"


if __name__ == "__main__":
    run_main(main)
