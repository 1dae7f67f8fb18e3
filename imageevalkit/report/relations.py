"""Relations of the metrics of each cell: found where its scores are new, else as on record."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from imageevalkit import registry
from imageevalkit.atomic import write_atomic
from imageevalkit.cell.jsonl import Tell
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.relations import Relations, Scored, Settings, files, key_of
from imageevalkit.report.collect import STALE, CellReport, ItemView


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
        try:
            if relations := _relations(report, asked):
                found[cell.key] = relations
        except UserError as error:
            reason = f"{cell.key}: no relations: {error}"
            if cell.key in asked.cells:  # a slip of the pen costs no relations that are there
                asked.refused.append(reason)
            else:
                tell(reason)
                shutil.rmtree(cell.relations, ignore_errors=True)  # of other scores
    return found


def recorded_relations(cells: Sequence[CellReport]) -> dict[str, Relations]:
    """Those on record, by the key of the cell."""
    found = ((cell, files.read(cell.folder / cell.cell.relations.name)) for cell in cells if cell.is_latest)
    return {cell.key: relations for cell, relations in found if relations}


def _relations(report: CellReport, asked: Asked) -> Relations | None:
    """Those of a cell; None where it has none. Raises UserError: they cannot be told."""
    cell, result = report.cell, report.result
    if not result or not (report.is_latest and report.recorded) or result.withheld.startswith(STALE):
        return None
    before, is_wanted = files.read(cell.relations), cell.key in asked.cells
    wish = asked.metrics.get(cell.benchmark) if is_wanted else None
    wish = wish or (before.metrics if before and before.asked else None)
    declared = () if wish else _declared(report)
    if not wish and len(declared) < 2:
        return None
    items = report.items()
    metrics = wish or _own(declared, items)
    if len(metrics) < 2:
        return None
    given = dict(asked.settings) if is_wanted and asked.settings else before.settings if before else {}
    settings, evaluator = Settings(**given), result.evaluator.id
    scored = [
        Scored(item.id, item.prompt_sha256 or item.prompt or item.id, item.values)
        for item in items
        if item.values
    ]
    made_of = key_of(metrics, settings, evaluator, scored), bool(wish), len(scored), result.limit
    if before and (before.key, before.asked, before.items, before.limit) == made_of:
        return before
    # a second for those who have no relations
    from imageevalkit.relations.files import draw
    from imageevalkit.relations.recognition import find_relations

    relations, points = find_relations(scored, metrics, settings, evaluator, bool(wish))
    relations = replace(relations, limit=result.limit)
    pictures = draw(relations, points, f"{cell.model} on {cell.benchmark}")
    # the last of the texts says that all are there
    contents: dict[str, bytes | str] = {**pictures, **files.texts(relations)}
    for name, content in contents.items():
        write_atomic(cell.relations / name, content)
    return relations


def _declared(report: CellReport) -> Sequence[str]:
    """The metrics that its benchmark relates."""
    try:
        cls = registry.benchmark_class(report.cell.benchmark)
    except CellFailure:  # whoever evaluates it is told
        cls = None
    return cls.relations if cls else ()


def _own(declared: Sequence[str], items: Sequence[ItemView]) -> Sequence[str]:
    """Those that items have, which next time may be more."""
    there = {name for item in items for name in item.values}
    return [name for name in declared if name in there]
