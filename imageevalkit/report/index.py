"""The part "index" of the site: all results with their figures, and all other data except items."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from imageevalkit import __version__, registry
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.metrics import grouped
from imageevalkit.report import parts
from imageevalkit.report.cell_parts import Summary
from imageevalkit.report.collect import CellReport, natural, text_of
from imageevalkit.report.comparison import Measured, compare_all, smallest_difference
from imageevalkit.report.curves import Curve
from imageevalkit.report.leaderboard import (
    Board,
    Figure,
    Grid,
    Ranks,
    board_of,
    boards,
    grid,
    headline_of,
    shown,
)
from imageevalkit.report.sections import Section
from imageevalkit.store.cell import Cell, by_name
from imageevalkit.store.results import Metric, Result

_MISSING = ("unparsed", "judge_failed", "refused", "failed", "blank", "corrupt", "unasked")
"""The kinds of missing items in the order of the page's bar: first the judge's failures, then the model's."""
_MOST_PAIRED = 12  # models of a board whose pairs are all tested with intervals, in about a second


class Built(NamedTuple):
    """A cell in the site: the name of the ``folder`` of its parts, and their summary.

    A cell without items has neither."""

    report: CellReport
    folder: str = ""
    summary: Summary | None = None


class Found(NamedTuple):
    """Everything to show beside the cells. ``unreadable`` has a line for each unreadable file."""

    sections: Sequence[Section]
    over_steps: Sequence[Curve]
    unreadable: Sequence[str]


def index_of(
    built: Sequence[Built],
    prompts: Mapping[str, int],
    found: Found,
    ranks: Ranks,
    place: Path,
) -> parts.Index:
    """Return the index for a page in a folder of ``place``. ``prompts`` counts prompts by benchmark."""
    cells = [one.report for one in built]
    results = [cell.result for cell in cells if cell.result]
    board = grid(results, ranks)
    by_board = boards(results)
    numbers = {one: n for n, one in enumerate(by_board)}
    figures = dict[int, dict[str, parts.Figure]]()
    for members in by_board.values():
        for result, of_result in _figures(members, ranks):
            figures[id(result)] = of_result
    roots = list(dict.fromkeys(cell.root for cell in cells))
    names = sorted(dict.fromkeys(cell.cell.benchmark for cell in cells), key=natural)
    made = [_cell(one, numbers, figures, roots.index(one.report.root)) for one in built]
    hrefs = [quote(os.fsencode(os.path.relpath(root, place / "page"))) for root in roots]
    index = parts.Index(
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        version=__version__,
        roots=hrefs,
        cells=made,
        boards=[_board(one, members, by_board) for one, members in by_board.items()],
        benchmarks=[
            parts.Benchmark(
                name,
                _title(name),
                _task(name),
                [n for n, cell in enumerate(made) if cell.benchmark == name and cell.folder],
                prompts.get(name, 0),
            )
            for name in names
        ],
        models=_models(cells, board),
        mean=parts.Mean(board.mean.of, board.mean.left_out),
        curves=[_curve(curve, numbers, built) for curve in found.over_steps],
        relations=[],
        kinds={},
        comparisons=[],
        votes=None,
        unreadable=list(found.unreadable),
    )
    for section in found.sections:
        index = section.fill(index, cells, place)
    return index


def _curve(curve: Curve, numbers: Mapping[Board, int], built: Sequence[Built]) -> parts.Curve:
    places = {id(one.report.result): n for n, one in enumerate(built) if one.report.result}
    points = [
        parts.Point(
            point.step,
            places[id(point.result)],
            point.to_previous.is_significant if point.to_previous else None,
        )
        for point in curve.points
    ]
    return parts.Curve(curve.run, numbers[curve.board], curve.metric, points)


def one_up(index: parts.Index) -> parts.Index:
    """Return ``index`` for a page in the folder above: all paths lose one level."""

    def href(path: str) -> str:
        return path.removeprefix("../") if path != ".." else "."

    def links(those: Sequence[parts.Link]) -> list[parts.Link]:
        return [parts.Link(one.name, href(one.href)) for one in those]

    return replace(
        index,
        roots=[href(root) for root in index.roots],
        relations=[replace(one, files=links(one.files)) for one in index.relations],
        comparisons=links(index.comparisons),
    )


def _figures(members: Sequence[Result], ranks: Ranks) -> list[tuple[Result, dict[str, parts.Figure]]]:
    """Return the figures of each result of a board, by metric.

    Only headline metrics have a best and groups: among dozens of others, some would differ by chance."""
    alone = {result.model: result for result in members}  # the last of several results of a model counts
    headline = [name for name in headline_of(members) if name]
    marked = dict[tuple[int, str], Figure]()
    for name in headline:
        column = ranks.mark([shown(alone[model], name) for model in sorted(alone)])
        marked |= {(id(figure.result), name): figure for figure in column}
    found = []
    for result in members:
        names = dict.fromkeys([*headline, *result.metrics]) if result.headline else ()
        of_result = {name: marked.get((id(result), name)) or shown(result, name) for name in names}
        found.append((result, {name: _figure(figure) for name, figure in of_result.items()}))
    return found


def _figure(figure: Figure) -> parts.Figure:
    metric = figure.metric or Metric(None, 0)
    low, high = metric.interval or (None, None)
    return parts.Figure(
        figure.value,
        figure.text,
        figure.interval,
        low,
        high,
        metric.n,
        metric.scale,
        figure.best,
        figure.group,
        figure.remark,
        figure.result.drift if figure.drift else "",
        figure.no_interval,
    )


def _board(board: Board, members: Sequence[Result], every: Mapping[Board, Any]) -> parts.Board:
    versions = {other.version for other in every if other.benchmark == board.benchmark}
    headline = [name for name in headline_of(members) if name]
    names = dict.fromkeys(name for result in members for name in result.metrics if name not in headline)
    of_group = grouped(names, lambda name: name.partition("/")[0] if "/" in name else "")
    return parts.Board(
        board.benchmark,
        board.version,
        board.evaluator,
        members[0].evaluator.official,
        board.limit,
        board.asked,
        board.rewriter,
        board.label("", with_version=len(versions) > 1),
        headline,
        [parts.Breakdown(name, of_group[name]) for name in sorted(of_group, key=lambda name: name != "")],
        {name: smallest for name in headline if (smallest := _smallest(members, name)) is not None},
        [test for name in headline for test in _tests(members, name)],
    )


def _measured(members: Sequence[Result], name: str) -> list[Measured]:
    """Return the models of a board with a value of the headline metric ``name``."""
    return [
        Measured(one.model, one.metrics[name], one.noise_of(name))
        for one in members
        if one.headline and name in one.metrics and one.metrics[name].value is not None
    ]


def _tests(members: Sequence[Result], name: str) -> list[parts.Test]:
    """Return the test of each pair of models by the headline metric ``name``; none if there are too many."""
    measured = _measured(members, name)
    if not 1 < len(measured) <= _MOST_PAIRED or len({one.name for one in measured}) < len(measured):
        return []
    found = []
    for one in compare_all(measured):
        # numpy's numbers are no JSON
        difference, p, low, high = (
            None if number is None else float(number)
            for number in (one.difference, one.adjusted, *(one.interval or (None, None)))
        )
        found.append(parts.Test(name, one.first, one.second, difference or 0.0, p, low, high))
    return found


def _smallest(members: Sequence[Result], name: str) -> float | None:
    """Return the smallest difference that the test of the two best models detects; None without two."""
    measured = [one for one in _measured(members, name) if one.metric.parts]
    if len(measured) < 2:
        return None
    best = sorted(measured, key=lambda one: -(one.metric.value or 0.0))[:2]
    return smallest_difference(*best)


def _cell(
    one: Built, numbers: Mapping[Board, int], figures: Mapping[int, dict[str, parts.Figure]], root: int
) -> parts.Cell:
    report, result = one.report, one.report.result
    summary = one.summary
    return parts.Cell(
        model=report.model,
        benchmark=report.cell.benchmark,
        board=numbers[board_of(result)] if result else None,
        problem=result.withheld if result else report.problem,
        withheld=bool(result and not result.headline),
        state=_state(result) if result else "",
        notes=list(result.notes) if result else [],
        coverage=_coverage(result) if result else None,
        figures=figures[id(result)] if result else {},
        treatment=result.treatment if result else "",
        evaluator=_texts(result.evaluator.details) if result else {},
        provenance=_texts(result.provenance) if result else {},
        cost=summary.cost if summary else parts.Cost(),
        failures=summary.failures if summary else [],
        folder=one.folder,
        root=root,
        path=quote(os.fsencode(report.cell.key)),
        outcomes=dict(report.outcomes),
        words=summary.words if summary else [],
    )


def _state(result: Result) -> str:
    if not result.headline:
        return shown(result, "").text.partition(" ")[0]
    return "" if result.coverage.complete else "partial" if result.coverage.lacks_nothing else "incomplete"


def _coverage(result: Result) -> parts.Coverage:
    found = result.coverage
    missing = {name: count for name in _MISSING if (count := getattr(found, name))}
    return parts.Coverage(found.expected, found.judged, missing, found.flat)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        str(name): value
        if isinstance(value, str)
        else text_of(json.dumps(value, ensure_ascii=False, sort_keys=True))
        for name, value in values.items()
    }


def _title(name: str) -> str:
    """Return the name of a benchmark as papers write it; of an unknown benchmark, its name."""
    with contextlib.suppress(UserError, CellFailure):  # a run reports a broken registry
        if cls := registry.benchmark_class(name):
            return vars(cls).get("title") or name  # a subclass with a name of its own is another benchmark
    return name


def _task(name: str) -> str:
    try:
        return registry.benchmark_tasks([name]).get(name, "t2i")
    except (UserError, CellFailure):  # a run reports a broken registry
        return "t2i"


def _models(cells: Sequence[CellReport], board: Grid) -> list[parts.Model]:
    """Return the models in the order of the leaderboard; variants with rewritten prompts follow them."""
    order = {model: n for n, model in enumerate(board.models)}
    names = dict.fromkeys(cell.model for cell in cells)

    def place(name: str) -> tuple[int, tuple[str, int], str]:
        raw = Cell(name, "").raw.model
        return order.get(raw, len(order)), by_name(raw), name

    return [_model(name, board.mean.values.get(name)) for name in sorted(names, key=place)]


def _model(name: str, overall: float | None) -> parts.Model:
    checkpoint = Cell(name, "").checkpoint
    if checkpoint is None:
        return parts.Model(name, overall)
    return parts.Model(name, overall, checkpoint.run, checkpoint.step)
