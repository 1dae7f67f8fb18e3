"""Relations of the metrics of each cell: found where its scores are new, else as on record; and what the page shows."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from imageevalkit import registry
from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell
from imageevalkit.cell.jsonl import Tell
from imageevalkit.cell.results import Result
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.relations import files
from imageevalkit.relations.rules import KINDS, NONE, Pair, Relations, Scored, Settings, key_of
from imageevalkit.report.collect import STALE, CellReport


@dataclass
class Asked:
    """What the user asks of the cells of this run, by key: metrics by benchmark, and settings that are not the default.

    ``refused`` says of cells why that could not be done.
    """

    cells: Sequence[str] = ()
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


def update_relations(cells: Sequence[CellReport], asked: Asked, tell: Tell) -> dict[str, Relations]:
    """The relations by the key of the cell, with their files written where scores or wishes are new.

    A cell has relations where the user asks, where files of an earlier run are, and where its benchmark has
    :attr:`~imageevalkit.benchmark.contract.Benchmark.relations`. What cannot be told is one line each.

    Raises:
        OSError, CellFailure: a file cannot be written.
    """
    found = {}
    for report in cells:
        cell = report.cell
        # without items it is the result of another evaluator, or nothing can be read
        if not report.result or not report.items or report.result.withheld.startswith(STALE):
            continue
        before = files.read(cell.relations)
        is_wanted = cell.key in asked.cells
        wish = (asked.metrics.get(cell.benchmark) if is_wanted else None) or (
            before.metrics if before and before.asked else None
        )
        metrics = wish or _own(report)
        if len(metrics) < 2:
            continue
        try:
            given = (
                dict(asked.settings) if is_wanted and asked.settings else before.settings if before else {}
            )
            found[cell.key] = _relations(
                report, report.result, metrics, Settings(**given), before, bool(wish)
            )
        except UserError as error:
            reason = f"{cell.key}: no relations: {error}"
            if is_wanted:  # a slip of the pen costs no relations that are there
                asked.refused.append(reason)
            else:
                tell(reason)
                shutil.rmtree(cell.relations, ignore_errors=True)  # of other scores
    return found


def _own(report: CellReport) -> Sequence[str]:
    """The metrics of its benchmark that its items have, which next time may be more."""
    try:
        cls = registry.benchmark_class(report.cell.benchmark)
    except CellFailure:  # whoever evaluates it is told
        cls = None
    there = {name for item in report.items for name in item.values}
    return [name for name in cls.relations if name in there] if cls else []


def _relations(
    report: CellReport,
    result: Result,
    metrics: Sequence[str],
    settings: Settings,
    before: Relations | None,
    asked: bool,
) -> Relations:
    scored = [
        Scored(item.id, item.prompt_sha256 or item.prompt or item.id, item.values)
        for item in report.items
        if item.values
    ]
    evaluator = result.evaluator.id
    key = key_of(metrics, settings, evaluator, scored)
    made_of = key, asked, len(scored), result.limit
    if before and (before.key, before.asked, before.items, before.limit) == made_of:
        return before
    # a second for those who have no relations
    from imageevalkit.relations.pictures import draw
    from imageevalkit.relations.recognition import find_relations

    relations, points = find_relations(scored, metrics, settings, evaluator, asked)
    relations = replace(relations, limit=result.limit)
    pictures = draw(relations, points, f"{report.cell.model} on {report.cell.benchmark}")
    # the last of the texts says that all are there
    contents: dict[str, bytes | str] = {**pictures, **files.texts(relations)}
    for name, content in contents.items():
        write_atomic(report.cell.relations / name, content)
    return relations


# ---- the page


class Field(NamedTuple):
    """A field of the map: a relation with its mark, or, on and below the diagonal, means.

    ``style`` is a class of the style sheet, ``sure`` the opacity of a relation in percent; ``words`` tell all, for a
    reader who points at it.
    """

    style: str
    text: str
    words: str
    mark: str = ""
    sure: int = 100


class Row(NamedTuple):
    """One pair in words, for the table below the map; ``note`` is what to know of the relation."""

    pair: Pair
    relation: str
    note: str
    certainty: str
    otherwise: str


class Map(NamedTuple):
    """The relations of one model as the page shows them; ``folder`` is where the files are, quoted.

    ``scatter`` is the picture of every pair, WebP in base64: the page may be sent without its files.
    """

    model: str
    relations: Relations
    folder: str
    scatter: str
    fields: list[list[Field | None]]
    rows: list[Row]


def map_of(cell: Cell, relations: Relations) -> Map:
    """What the page shows; a field is None where no item has both metrics.

    Raises OSError: its scatter cannot be read.
    """
    names = relations.dimensions
    fields = [[_field(relations, row, column) for column in names] for row in names]
    folder = quote(os.fsencode(f"{cell.key}/{cell.relations.name}"))
    scatter = base64.b64encode((cell.relations / "scatter.webp").read_bytes()).decode()
    return Map(cell.model, relations, folder, scatter, fields, [_row(pair) for pair in relations.pairs])


def _field(relations: Relations, row: str, column: str) -> Field | None:
    if row == column:
        mean = f"{relations.means[row]:.2f}"
        return Field("own", mean, f"{row}: mean {mean}")
    pair = relations.pair(row, column)
    if pair is None:
        return None
    if column < row:
        means = f"{pair.mean_of(row):.2f} {pair.mean_of(column):.2f}"
        return Field("both", means, f"means of {row} and {column} in {pair.n} items")
    kind, sure = KINDS[pair.code_of(row)], "too few prompts to resample"
    if pair.certainty is not None:
        sure = f"in {pair.certainty:.0%} of resamples"
    words = f"{row} × {column}: {relation_of(pair)}, {sure}, {pair.n} items"
    words += f"; {_LINE}" * pair.is_line
    if pair.certainty is None:
        return Field(f"field {kind.name} pale", f"n {pair.n}", words, kind.mark, 30)
    # on a faded colour the ink of the page is read best: on a dark page sooner
    faded = " pale" if pair.certainty < 0.55 else " paler" if pair.certainty < 0.75 else ""
    shown = round(30 + 70 * pair.certainty)
    return Field(f"field {kind.name}{faded}", f"{pair.certainty:.0%}", words, kind.mark, shown)


def relation_of(pair: Pair, code: int | None = None) -> str:
    """The relation of ``pair``, or another, in words: "tilt: IQ-R dominates TA-S"."""
    code = pair.code if code is None else code
    name = KINDS[code].name.partition("-")[0]
    if code == NONE:
        return "no relation"
    one, other = (pair.first, pair.second) if code > 0 else (pair.second, pair.first)
    return f"{name}: {one} dominates {other}" if name == "tilt" else name


_LINE = "all points lie on the line, which counts as below"


def _row(pair: Pair) -> Row:
    others = {code: share for code, share in pair.codes.items() if int(code) != pair.code}
    code = max(others, key=lambda one: others[one], default="")
    certainty = "too few prompts" if pair.certainty is None else _percent(pair.certainty)
    otherwise = f"{relation_of(pair, int(code))} {_percent(others[code])}" if code else ""
    return Row(pair, relation_of(pair), _LINE if pair.is_line else "", certainty, otherwise)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
