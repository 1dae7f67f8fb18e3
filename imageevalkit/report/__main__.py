"""``python -m imageevalkit.report``: write the leaderboard and the gallery of everything in ``output/``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import REPORTS, output_root
from imageevalkit.errors import CellFailure, ExitStatus, UserError, run_main, show
from imageevalkit.jobs import USABLE, cell_of, load_plan, read_outcome
from imageevalkit.locks import open_lock, take_lock
from imageevalkit.report.collect import CellReport, collect
from imageevalkit.report.comparisons import write_comparisons
from imageevalkit.report.html import render
from imageevalkit.report.leaderboard import csv_text, markdown_text
from imageevalkit.report.relations import Asked, update_relations
from imageevalkit.report.table import format_table
from imageevalkit.text import plain

_WIDTH_OF_A_PIPE = 120


def main(argv: Sequence[str] | None = None) -> ExitStatus:
    """Write every report file and print the table; status 0 says that this is done, of all that can be read,
    and 1 that relations which the run asks for cannot be told.

    What cannot be read is one line each, here and in the files.

    Raises:
        CellFailure: a report file cannot be written.
    """
    parser = argparse.ArgumentParser(prog="python -m imageevalkit.report", description=__doc__)
    parser.add_argument("--cells", default="", help='print only these: "model/benchmark;model2/benchmark"')
    parser.add_argument("--relations", default="{}", help="JSON: the metrics by benchmark, and the settings")
    parser.add_argument(
        "--run_folder", type=Path, help="the run just ended: cells that failed in it show no score"
    )
    args = parser.parse_args(argv)
    wanted = [key.strip() for key in args.cells.split(";") if key.strip()]
    asked = Asked(wanted, **json.loads(args.relations))
    try:
        with _only_writer():
            unreadable: list[str] = []
            found = collect(unreadable.append)
            failed = _failures(args.run_folder, {*wanted, *(cell.cell.key for cell in found)})
            # only a run knows why there is no score
            cells = [
                cell if cell.result else cell._replace(problem=failed.get(cell.cell.key, cell.problem))
                for cell in found
            ]
            _print(cells, unreadable, wanted, failed)  # first: a full disk must not hide the scores
            paths = write_reports(cells, unreadable, asked)
            paths += write_comparisons(cells, lambda line: show(plain(line)))
    except OSError as error:
        reason = error.strerror or error
        where = error.filename2 or error.filename or output_root()
        raise CellFailure(f"the report cannot be written: {where}: {reason}") from error
    # what failed is the last word
    show("\n".join([*(f"report: {path}" for path in paths), *map(plain, asked.refused)]))
    return ExitStatus.FAILED if asked.refused else ExitStatus.COMPLETE


def write_reports(cells: Sequence[CellReport], unreadable: Sequence[str], asked: Asked) -> list[Path]:
    """Write ``report.html``, ``leaderboard.md`` and ``leaderboard.csv``, and relations, and return the paths of the
    three.

    ``unreadable`` are the lines about what is not among ``cells``.

    Raises:
        OSError, CellFailure: one cannot be written.
    """
    root = output_root()
    # the numbers first: they must not wait for thousands of thumbnails, nor be lost with them
    write_atomic(root / "leaderboard.csv", csv_text(cells))
    write_atomic(root / "leaderboard.md", markdown_text(cells, unreadable))
    relations = update_relations(cells, asked, lambda line: show(plain(line)))
    write_atomic(root / "report.html", render(cells, unreadable=unreadable, relations=relations))
    return [root / name for name in REPORTS]


@contextlib.contextmanager
def _only_writer() -> Iterator[None]:
    """Let two runs that end at once write their reports one after the other, not into one another's."""
    root = output_root()
    root.mkdir(parents=True, exist_ok=True)
    path = root / ".report.lock"
    with os.fdopen(open_lock(path), "wb") as lock:
        take_lock(lock.fileno(), path, wait=True)
        yield


def _failures(run_folder: Path | None, keys: Iterable[str]) -> dict[str, str]:
    """Why cells have no score of the run in ``run_folder``, by key; empty when no run is meant."""
    if run_folder is None:
        return {}
    failed = {}
    for key in keys:
        for stage in (
            "evaluate",
            "adopt",
            "generate",
            "rewrite",
        ):  # the first of them that failed is the cause
            outcome = read_outcome(run_folder, cell_of(key), stage)
            if outcome and outcome.state not in USABLE:
                failed[key] = f"{outcome.state} in this run: {outcome.message}"
    with contextlib.suppress(UserError):  # then no launcher of ours made the run
        blocked = load_plan(run_folder / "plan.json").blocked
        failed |= {key: f"blocked in this run: {reason}" for key, reason in blocked.items()}
    return failed


def _print(
    cells: Sequence[CellReport], unreadable: Sequence[str], wanted: Sequence[str], failed: Mapping[str, str]
) -> None:
    listed = [
        # an older score of a cell that failed now is still in the files, but it is not this run's answer
        cell._replace(result=None, problem=failed[cell.cell.key]) if cell.cell.key in failed else cell
        for cell in cells
        if not wanted or cell.cell.key in wanted
    ]
    width = shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns
    results = [cell.result for cell in listed if cell.result]
    if results or not listed:
        show(format_table(results, width))
    # a cell with the results of several evaluators is listed once for each
    without = [cell for cell in listed if not cell.result]
    for line in dict.fromkeys(f"{cell.cell.key}: {cell.problem}" for cell in without):
        show(plain(line))
    for key in wanted:
        # of a cell that failed before it had a file the table of the run tells all
        if key not in failed and all(cell.cell.key != key for cell in cells):
            show(f"{key}: nothing in {output_root()}")
    told = {cell.problem for cell in without}
    for line in unreadable:
        if line not in told:
            show(plain(line))


if __name__ == "__main__":
    run_main(main)
