"""Relations between the metrics of each cell: computed if its scores are new, else read from its files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imageevalkit import registry
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.extras.relations import files
from imageevalkit.extras.relations.relations import Relations, Scored, Settings, key_of
from imageevalkit.report.collect import STALE, CellReport, ItemView
from imageevalkit.store.jsonl import Tell


def update_relations(
    cells: Sequence[CellReport], keys: Sequence[str], asked: Mapping[str, Any], tell: Tell, refuse: Tell
) -> dict[str, Relations]:
    """Return the relations by the key of the cell, and write their files if scores or options are new.

    ``keys`` are the cells of this run. ``asked`` has the user's options for them: ``relations`` (metrics by
    benchmark) and ``relations_kwargs`` (changed settings). ``refuse`` gets a line for each of these cells
    whose relations cannot be computed, ``tell`` for each other cell.

    A cell has relations if the user asks for them, if it has files of an earlier run, or if its benchmark has
    :attr:`~imageevalkit.benchmark.contract.Benchmark.relations`. Each failure gets one line.

    Raises:
        OSError, CellFailure: A file cannot be written.
    """
    found = {}
    for report in cells:
        cell = report.cell
        try:
            if relations := _relations(report, asked if cell.key in keys else {}):
                found[cell.key] = relations
        except UserError as error:
            reason = f"{cell.key}: no relations: {error}"
            if cell.key in keys:  # a typing error must not delete existing relations
                refuse(reason)
            else:
                tell(reason)
                shutil.rmtree(cell.relations, ignore_errors=True)  # they belong to older scores
    return found


def recorded_relations(cells: Sequence[CellReport]) -> dict[str, Relations]:
    """Read the relations from the files of all cells, by the key of the cell."""
    found = ((cell, files.read(cell.folder / cell.cell.relations.name)) for cell in cells if cell.is_latest)
    return {cell.key: relations for cell, relations in found if relations}


def _relations(report: CellReport, asked: Mapping[str, Any]) -> Relations | None:
    """Return the relations of a cell, or None if it has none. Raises UserError if they cannot be computed."""
    cell, result = report.cell, report.result
    if not result or not (report.is_latest and report.recorded) or result.withheld.startswith(STALE):
        return None
    before = files.read(cell.relations)
    wish = asked.get("relations", {}).get(cell.benchmark)
    wish = wish or (before.metrics if before and before.asked else None)
    declared = () if wish else _declared(report)
    if not wish and len(declared) < 2:
        return None
    items = report.items()
    metrics = wish or _own(declared, items)
    if len(metrics) < 2:
        return None
    given = dict(asked.get("relations_kwargs") or (before.settings if before else {}))
    settings, evaluator = Settings(**given), result.evaluator.id
    scored = [
        Scored(item.id, item.prompt_sha256 or item.prompt or item.id, item.values)
        for item in items
        if item.values
    ]
    made_of = key_of(metrics, settings, evaluator, scored), bool(wish), len(scored), result.limit
    if before and (before.key, before.asked, before.items, before.limit) == made_of:
        return before
    # imported here, because the imports take a second
    from imageevalkit.extras.relations.files import draw
    from imageevalkit.extras.relations.recognition import find_relations

    relations, points = find_relations(scored, metrics, settings, evaluator, bool(wish))
    relations = replace(relations, limit=result.limit)
    pictures = draw(relations, points, f"{cell.model} on {cell.benchmark}")
    # the last text is written last: its existence shows that all other files exist
    contents: dict[str, bytes | str] = {**pictures, **files.texts(relations)}
    for name, content in contents.items():
        write_atomic(cell.relations / name, content)
    return relations


def _declared(report: CellReport) -> Sequence[str]:
    """Return the metrics that the benchmark of the cell declares in ``relations``."""
    try:
        cls = registry.benchmark_class(report.cell.benchmark)
    except CellFailure:  # a broken benchmark is reported when it is evaluated
        cls = None
    return cls.relations if cls else ()


def _own(declared: Sequence[str], items: Sequence[ItemView]) -> Sequence[str]:
    """Return the declared metrics that items have values of."""
    there = {name for item in items for name in item.values}
    return [name for name in declared if name in there]
