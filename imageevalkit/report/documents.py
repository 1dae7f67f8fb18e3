"""Write the leaderboard for spreadsheets and papers: ``leaderboard.xlsx`` and ``leaderboard.tex``."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from imageevalkit.common.text import plain
from imageevalkit.report.collect import CellReport
from imageevalkit.report.leaderboard import (
    CSV_COLUMNS,
    DRIFT_NOTE,
    GROUP_NOTE,
    Figure,
    Ranks,
    grid,
    no_interval_notes,
    table_rows,
)
from imageevalkit.store.results import Result

SHEETS = ("leaderboard", "metrics")
"""The sheets of ``leaderboard.xlsx``: the leaderboard as shown, and the rows of ``leaderboard.csv``."""
_ALWAYS = datetime(2000, 1, 1)
_LONGEST = 32_767  # Excel's limit of characters in a cell
_WIDEST = 60  # the largest width of a column, in characters
_NOTE = (
    "Bold: the best, and models not significantly worse. Higher is better. Intervals are 95 %. "
    "Results of different evaluators, versions or item counts have separate columns."
)
_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"\ensuremath{\pm}",
    "–": "--",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}
# LaTeX turns these pairs into other signs: ?` and !`, -- and ---, quotes
_LIGATURE = re.compile(r"(?<=[?!])`|(?<=-)-|(?<=[`'])[`']")


def workbook(cells: Iterable[CellReport], ranks: Ranks) -> bytes:
    """Return ``leaderboard.xlsx``. Texts never become formulas and are cut at Excel's limit.

    A withheld result has no values."""
    import xlsxwriter  # here, because the import takes a tenth of a second

    cells = list(cells)
    results = [cell.result for cell in cells if cell.result]
    buffer = io.BytesIO()
    with xlsxwriter.Workbook(buffer, {"in_memory": True}) as book:
        book.set_properties({"created": _ALWAYS})  # a fixed time, so that equal results give equal bytes
        formats = {
            (scale, bold): book.add_format({"num_format": "0.0000" if scale else "0.00", "bold": bold})
            for scale in (True, False)
            for bold in (True, False)
        }
        head = book.add_format({"bold": True, "text_wrap": True, "valign": "top", "bottom": 1})
        board, metrics = (book.add_worksheet(name) for name in SHEETS)
        _fill(board, _as_shown(results, ranks, formats), head)
        rows = [[row.get(name) for name in CSV_COLUMNS] for row in table_rows(cells, ranks)]
        _fill(metrics, [list(CSV_COLUMNS), *rows], head)
    return buffer.getvalue()


def _as_shown(
    results: Sequence[Result], ranks: Ranks, formats: Mapping[tuple[bool, bool], Any]
) -> list[list[Any]]:
    """Return the rows of the leaderboard sheet; a number is a pair of value and format."""
    board = grid(results, ranks)
    of_label = ("95 % low", "95 % high", "group", "remark")
    head = [board.mean_label] * bool(board.mean_label)
    table: list[list[Any]] = [["model", *head, *(n for label in board.labels for n in (label, *of_label))]]
    for model, figures in zip(board.models, board.rows, strict=True):
        mean = board.mean.values.get(model)
        row: list[Any] = [
            model,
            *((None if mean is None else 100 * mean, formats[False, False]) for _ in head),
        ]
        for figure in figures:
            row += _figure(figure, formats) if figure else [None] * (1 + len(of_label))
        table.append(row)
    return [*table, [], [f"{board.mean.note} {_NOTE} {GROUP_NOTE}"]]


def _figure(figure: Figure, formats: Mapping[tuple[bool, bool], Any]) -> list[Any]:
    metric = figure.metric
    if metric is None or metric.value is None:
        return [figure.text, None, None, None, None]
    shown = formats[metric.scale <= 1, figure.best]
    low, high = metric.interval or (None, None)
    plainly = formats[metric.scale <= 1, False]
    no_interval = figure.no_interval and f"no interval: {figure.no_interval}"
    remark = "; ".join(filter(None, (figure.remark, figure.result.drift, no_interval)))
    return [(metric.value, shown), (low, plainly), (high, plainly), figure.group, remark]


def _fill(sheet: Any, table: Sequence[Sequence[Any]], head: Any) -> None:
    widths = dict[int, int]()
    for y, row in enumerate(table):
        for x, cell in enumerate(row):
            value, shown = cell if isinstance(cell, tuple) else (cell, None)
            if isinstance(value, int | float):
                sheet.write_number(y, x, value, shown)
            elif value:
                # not sheet.write(): it takes "=1+1" for a formula and an address for a link
                sheet.write_string(y, x, plain(str(value))[:_LONGEST], head if y == 0 else shown)
                if len(row) > 1:
                    widths[x] = max(widths.get(x, 0), len(str(value)))
    for x, width in widths.items():
        sheet.set_column(x, x, min(width, _WIDEST) + 1)
    sheet.freeze_panes(1, 1)
    if table and len(table[0]) > 1:
        sheet.autofilter(0, 0, len(table) - 1 if all(table) else len(table) - 3, len(table[0]) - 1)


def tex_text(cells: Iterable[CellReport], ranks: Ranks) -> str:
    """Return ``leaderboard.tex``: the leaderboard as a booktabs table, for ``\\input``."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: tex(str(value)),
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
    results = [cell.result for cell in cells if cell.result]
    board = grid(results, ranks)
    notes = [board.mean.note, _NOTE, *[DRIFT_NOTE] * any(result.drift for result in results)]
    notes += [f"{line}." for line in no_interval_notes(results)]
    return environment.get_template("leaderboard.tex.j2").render(board=board, note=" ".join(notes))


def tex(text: str) -> str:
    """Return LaTeX that shows ``text`` exactly, on one line."""
    broken = _LIGATURE.sub(lambda found: f"\0{found[0]}", plain(text))
    return "".join(_TEX.get(char, char) for char in broken).replace("\0", "{}")
