"""The summary of one or several models in the rows of AISBench's summarizer."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.oneig.editions import Edition
from benchmarks.oneig.metric import TOTAL
from imageevalkit.cell.results import Metric
from imageevalkit.text_width import columns_of

_HEADER = ("dataset", "version", "metric", "mode")
_MODE = "gen"
_NONE = "-"


class _Row(NamedTuple):
    """``metric`` is our name of what AISBench calls ``shown`` of ``dataset``; a part of another row has no version."""

    dataset: str
    shown: str
    metric: str
    factor: float = 100.0
    has_version: bool = True


class Column(NamedTuple):
    """One model's metrics under its name."""

    name: str
    metrics: Mapping[str, Metric]


def summary_files(version: str, columns: Sequence[Column], edition: Edition) -> dict[str, str]:
    """``summary.csv``, ``summary.md`` and ``summary.txt``: "accuracy" on a scale of 100, all with 2 decimals."""
    table = summary_table(version, columns, edition)
    return {"summary.csv": _csv(table), "summary.md": _markdown(table), "summary.txt": aligned(table)}


def summary_table(version: str, columns: Sequence[Column], edition: Edition) -> list[list[str]]:
    """The header and a row for each metric of ``edition``; "-" where a model has no value."""
    table = [[*_HEADER, *(column.name for column in columns)]]
    for row in _rows(edition):
        values = [_shown(column.metrics.get(row.metric), row.factor) for column in columns]
        table.append([row.dataset, version if row.has_version else _NONE, row.shown, _MODE, *values])
    return table


def _rows(edition: Edition) -> list[_Row]:
    return [
        _Row("oneig_alignment", "accuracy", "alignment"),
        _Row("oneig_text", "accuracy", "text"),
        *(_Row("oneig_text", part, f"text/{part}", 1.0) for part in ("ED", "CR", "WAC")),
        _Row("oneig_reasoning", "accuracy", "reasoning"),
        _Row("oneig_style", "accuracy", "style"),
        _Row("oneig_diversity", "accuracy", "diversity"),
        _Row("oneig_total", "accuracy", TOTAL, has_version=False),
        *(
            _Row(f"oneig_diversity_{name}", "accuracy", f"diversity/{name}", has_version=False)
            for name in edition.sizes
        ),
    ]


def _shown(metric: Metric | None, factor: float) -> str:
    return _NONE if metric is None or metric.value is None else f"{factor * metric.value:.2f}"


def _csv(table: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    return text.getvalue()


def _markdown(table: Sequence[Sequence[str]]) -> str:
    header, *rows = ([cell.replace("|", "\\|") for cell in row] for row in table)
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def aligned(table: Sequence[Sequence[str]]) -> str:
    """The columns of ``table`` two spaces apart."""
    widths = [max(map(columns_of, column)) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - columns_of(cell)) for cell, width in zip(row, widths, strict=True))
        for row in table
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)
