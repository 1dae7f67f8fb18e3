"""``report.html``: one file with everything in it, that opens from ``file://`` and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from imageevalkit.cell import Cell
from imageevalkit.cell.results import Coverage, Metric, Result
from imageevalkit.relations.rules import KINDS, Relations
from imageevalkit.report import gallery, thumbnails
from imageevalkit.report.collect import CellReport
from imageevalkit.report.leaderboard import (
    ORDER_NOTE,
    Board,
    Figure,
    boards,
    format_interval,
    format_value,
    grid,
    headline_of,
    mark_best,
    shown,
)
from imageevalkit.report.relations import map_of

_TEMPLATES = Path(__file__).parent / "templates"
# Order of the bar: what counts first, then what is missing, from the judge's faults to the model's.
SEGMENTS = ("judged", "unparsed", "judge_failed", "refused", "failed", "blank", "corrupt")


class Segment(NamedTuple):
    """One part of a coverage bar; ``start`` and ``share`` are percent of its width."""

    name: str
    items: int
    start: float
    share: float


def render(
    cells: Sequence[CellReport],
    budget: int = gallery.BUDGET,
    unreadable: Sequence[str] = (),
    relations: Mapping[str, Relations] = MappingProxyType({}),
) -> str:
    """The whole page for ``cells``, with the ``relations`` of each by its key, and what was ``unreadable``; thumbnails
    that are not cached yet are made."""
    pages = gallery.galleries(cells)
    estimate = gallery.fit(pages, None, budget)
    estimated = [gallery.cut(page, estimate) for page in pages]
    thumbs = thumbnails.make(gallery.originals(estimated))
    extent = gallery.fit(estimated, thumbs, budget)
    cut = [gallery.cut(page, extent) for page in estimated]
    data = [gallery.page_data(small, whole, thumbs) for small, whole in zip(cut, pages, strict=True)]
    results = [cell.result for cell in cells if cell.result]
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    return _environment().get_template("report.html.j2").render(
        style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        galleries=[(page.benchmark, Markup(text)) for page, text in zip(cut, data, strict=True)],
        models=sorted({cell.cell.model for cell in cells}),
        benchmarks=sorted({cell.cell.benchmark for cell in cells}),
        cells=len(cells),
        board=grid(results),
        order_note=ORDER_NOTE,
        sections=[_section(board, members, relations) for board, members in boards(results).items()],
        kinds=KINDS.values(),
        segments=SEGMENTS,
        withheld=[result for result in results if not result.headline],
        without=[(cell, _recorded(cell)) for cell in cells if not cell.result],
        unreadable=unreadable,
    )  # fmt: skip


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": _plain, "whisker": whisker, "words": lambda text: text.replace("_", " ")}
    environment.globals |= {"coverage_segments": coverage_segments, "headings": headings}
    return environment


def _section(board: Board, members: Sequence[Result], relations: Mapping[str, Relations]) -> dict[str, Any]:
    """What the page says of one board: its members and every metric of theirs, headline first."""
    members = sorted(members, key=lambda r: r.model)
    headline = [name for name in headline_of(members) if name]
    names = dict.fromkeys([*headline, *(name for result in members for name in result.metrics)])
    rows = [(name, name in headline, mark_best([shown(r, name) for r in members])) for name in names]
    of_models = [(cell, relations.get(cell.key)) for cell in (Cell(r.model, r.benchmark) for r in members)]
    maps = [map_of(cell, one) for cell, one in of_models if one and one.evaluator == board.evaluator]
    return {
        "board": board,
        "results": members,
        "metrics": rows,
        "official": members[0].evaluator.official,
        "maps": maps,
    }


def headings(labels: Iterable[str]) -> list[str]:
    """Labels that may break after ``/`` and before ``@``, so that a column is not as wide as its name."""
    return [label.replace("/", "/\u200b").replace("@", "\u200b@") for label in labels]


def coverage_segments(coverage: Coverage) -> list[Segment]:
    """The parts of a coverage bar that hold at least one item."""
    segments, start = [], 0.0
    for name in SEGMENTS:
        count = getattr(coverage, name)
        if count:
            share = 100 * count / coverage.expected
            segments.append(Segment(name, count, start, share))
            start += share
    return segments


def whisker(cell: Figure) -> Markup:
    """A number's place on its scale (0 to top), with its 95 % interval, as a small picture."""
    metric = cell.metric
    if metric is None or metric.value is None:
        return Markup("")
    interval = Markup("")
    if metric.interval:
        low, high = (_place(v, metric.scale) for v in metric.interval)
        interval = Markup('<path class="interval" d="M{} 6H{}M{} 1.5V10.5M{} 1.5V10.5"/>').format(
            low, high, low, high
        )
    return Markup(
        '<svg class="whisker" viewBox="0 0 144 12" role="img" aria-label="{}">'
        '<path class="axis" d="M2 6H142M2 3.5V8.5M142 3.5V8.5"/>{}<circle cx="{}" cy="6" r="2.2"/></svg>'
    ).format(_spoken(metric), interval, _place(metric.value, metric.scale))


def _place(value: float, scale: float) -> str:
    return f"{2 + 140 * min(max(value / scale, 0.0), 1.0):.2f}" if scale else "2"


def _spoken(metric: Metric) -> str:
    assert metric.value is not None
    interval = f", 95 % interval {format_interval(metric)}" if metric.interval else ""
    return f"{format_value(metric.value, metric.scale)} of {metric.scale:g}{interval}"


def _recorded(cell: CellReport) -> str:
    """What became of a cell's items so far: ``40 generated, 2 refused``."""
    counts: dict[str, int] = {}
    for item in cell.items:
        counts[item.outcome] = counts.get(item.outcome, 0) + 1
    return ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())) or "no items recorded"


def _plain(value: Any) -> str:
    """A provenance value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
