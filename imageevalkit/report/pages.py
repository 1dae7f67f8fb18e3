"""``report.html`` and ``leaderboard.md``, of their templates.

The page is one file with everything in it, that opens from ``file://`` and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from imageevalkit.cell import COMPARISONS, Cell, by_name, output_root
from imageevalkit.cell.results import Metric, Result
from imageevalkit.relations import KINDS, Relations
from imageevalkit.report import gallery
from imageevalkit.report.collect import CellReport
from imageevalkit.report.curves import COLUMNS, CURVE_NOTE, Curve, curves
from imageevalkit.report.leaderboard import (
    COVERAGE_COLUMNS,
    DRIFT_NOTE,
    GROUP_NOTE,
    ORDER_NOTE,
    Board,
    Figure,
    Ranks,
    boards,
    format_interval,
    format_value,
    grid,
    headline_of,
    shown,
)
from imageevalkit.text import plain

COMPARISON_PAGE = "comparison.html"
"""The page of ``--compare``, in a folder of its own below that of comparisons."""
_TEMPLATES = Path(__file__).parent / "templates"
# Order of the bar: what counts first, then what is missing, from the judge's faults to the model's.
_SEGMENTS = ("judged", "unparsed", "judge_failed", "refused", "failed", "blank", "corrupt", "unasked")
_MD_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_|<>[]#~"})


def markdown_text(
    cells: Sequence[CellReport],
    unreadable: Sequence[str] = (),
    ranks: Ranks | None = None,
    over_steps: Sequence[Curve] | None = None,
) -> str:
    """``leaderboard.md``: headline scores, notes and coverage of every cell, their curves ``over_steps`` (None: found
    here), cells without a result, and what is ``unreadable``."""
    found = _of_both(cells, unreadable, ranks or Ranks(), over_steps)
    template = _template("leaderboard.md.j2", finalize=_markdown, keep_trailing_newline=True)
    return template.render(found, columns=COVERAGE_COLUMNS)


def render(
    cells: Sequence[CellReport],
    budget: int = gallery.BUDGET,
    unreadable: Sequence[str] = (),
    relations: Mapping[str, Relations] = MappingProxyType({}),
    ranks: Ranks | None = None,
    over_steps: Sequence[Curve] | None = None,
) -> str:
    """The whole page for ``cells``, with the ``relations`` of each by its key, their curves ``over_steps`` (None: they
    are found here), and what was ``unreadable``."""
    pages = gallery.galleries(cells)
    estimate = gallery.fit(pages, None, budget)
    estimated = [gallery.cut(page, estimate) for page in pages]
    shown = gallery.shown(gallery.originals(estimated))
    extent = gallery.fit(estimated, shown.thumbs, budget)
    cut = [gallery.cut(page, extent) for page in estimated]
    data = [gallery.page_data(small, whole, shown) for small, whole in zip(cut, pages, strict=True)]
    ranks = ranks or Ranks()
    found = _of_both(cells, unreadable, ranks, over_steps)
    root = output_root()
    compared = sorted((root / COMPARISONS).glob(f"*/{COMPARISON_PAGE}"))
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    return _template("report.html.j2", autoescape=True).render(
        found,
        style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        galleries=[(page.benchmark, Markup(text)) for page, text in zip(cut, data, strict=True)],
        models={cell.cell.model for cell in cells},
        benchmarks={cell.cell.benchmark for cell in cells},
        cells=len(cells),
        sections=[_section(*board, relations, ranks) for board in boards(found["results"]).items()],
        kinds=KINDS,
        segments=_SEGMENTS,
        comparisons=[(path.parent.name, quote(path.relative_to(root).as_posix())) for path in compared],
    )


def comparison_page(**found: Any) -> str:
    """``comparison.html`` of what :mod:`imageevalkit.comparing` found, in the look of the report."""
    style = Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))
    return _template("comparison.html.j2", autoescape=True).render(found, style=style)


def _of_both(
    cells: Sequence[CellReport], unreadable: Sequence[str], ranks: Ranks, over_steps: Sequence[Curve] | None
) -> dict[str, Any]:
    """What both templates show."""
    results = [cell.result for cell in cells if cell.result]
    return {
        "curves": curves(results) if over_steps is None else over_steps,
        "curve_note": CURVE_NOTE,
        "curve_columns": COLUMNS,
        "board": grid(results, ranks),
        "order_note": ORDER_NOTE,
        "group_note": GROUP_NOTE,
        "drift_note": DRIFT_NOTE if any(result.drift for result in results) else "",
        "results": results,
        "withheld": [result for result in results if not result.headline],
        "without": [cell for cell in cells if not cell.result],
        "unreadable": unreadable,
    }


def _template(name: str, **options: Any) -> Template:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    environment.filters |= {
        "plain": _plain,
        "outcomes": _outcomes,
        "whisker": whisker,
        "curve": curve_picture,
        "words": lambda text: text.replace("_", " "),
        # a label may break there, so that a column is not as wide as its name
        "heading": lambda label: label.replace("/", "/\u200b").replace("@", "\u200b@"),
    }
    return environment.get_template(name)


def _markdown(value: Any) -> str:
    """``value`` as Markdown that shows exactly it, on one line."""
    return plain(str(value)).translate(_MD_SPECIAL)


def _section(
    board: Board, members: Sequence[Result], relations: Mapping[str, Relations], ranks: Ranks
) -> dict[str, Any]:
    """What the page says of one board: its members and every metric of theirs, headline first.

    Only headline metrics have a best: of dozens of others some would differ by chance.
    """
    members = sorted(members, key=lambda r: (by_name(r.model), r.model))
    headline = [name for name in headline_of(members) if name]
    names = dict.fromkeys([*headline, *(name for result in members for name in result.metrics)])
    figures = {name: [shown(result, name) for result in members] for name in names}
    rows = [
        (name, name in headline, ranks.mark(row) if name in headline else row)
        for name, row in figures.items()
    ]
    of_models = [(cell, relations.get(cell.key)) for cell in (Cell(r.model, r.benchmark) for r in members)]
    return {
        "board": board,
        "results": members,
        "metrics": rows,
        "official": members[0].evaluator.official,
        "maps": [_map(cell, one) for cell, one in of_models if one and one.evaluator == board.evaluator],
    }


def _map(cell: Cell, relations: Relations) -> dict[str, Any]:
    """The relations of one model; ``folder`` is where their files are, quoted. ``scatter`` is the picture of every
    pair, WebP in base64: the page may be sent without its files.

    Raises OSError: that cannot be read.
    """
    return {
        "model": cell.model,
        "relations": relations,
        "folder": quote(os.fsencode(f"{cell.key}/{cell.relations.name}")),
        "scatter": base64.b64encode((cell.relations / "scatter.webp").read_bytes()).decode(),
    }


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
    ).format(_spoken(metric, metric.value), interval, _place(metric.value, metric.scale))


_WIDTH, _HEIGHT, _LEFT, _BELOW = 640, 180, 64, 24  # of a curve, and of what its axes take


def curve_picture(curve: Curve) -> Markup:
    """The scores of ``curve`` over its steps, in a band of their 95 % intervals, from the lowest to the highest."""
    points = curve.points
    bands = [point.metric.interval or (point.value, point.value) for point in points]
    low, high = min(band[0] for band in bands), max(band[1] for band in bands)
    first, last = points[0].step, points[-1].step

    def x(step: int) -> str:
        return f"{_LEFT + (_WIDTH - _LEFT - 12) * (step - first) / (last - first):.1f}"

    def y(value: float) -> str:
        share = (value - low) / (high - low) if high > low else 0.5
        return f"{_HEIGHT - _BELOW - (_HEIGHT - _BELOW - 12) * share:.1f}"

    there = [f"{x(point.step)},{y(band[1])}" for point, band in zip(points, bands, strict=True)]
    back = [f"{x(point.step)},{y(band[0])}" for point, band in zip(points, bands, strict=True)]
    circle = Markup('<circle cx="{}" cy="{}" r="3"><title>step {}: {}</title></circle>')
    tick = Markup('<text x="{}" y="{}" class="{}">{}</text>')
    steps = {first: "start", last: "end"} | (
        {curve.best.step: "middle"} if curve.best.step not in (first, last) else {}
    )
    return Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH,
        _HEIGHT,
        f"{curve.label}: {format_value(points[0].value, curve.scale)} at step {first}, "
        f"{format_value(points[-1].value, curve.scale)} at step {last}",
        Markup("").join(
            [
                Markup('<polygon points="{}"/>').format(" ".join([*there, *reversed(back)])),
                Markup('<polyline points="{}"/>').format(
                    " ".join(f"{x(p.step)},{y(p.value)}" for p in points)
                ),
                *(circle.format(x(p.step), y(p.value), p.step, _spoken(p.metric, p.value)) for p in points),
                *(tick.format(x(step), _HEIGHT - 4, place, step) for step, place in steps.items()),
                *(
                    tick.format(_LEFT - 8, y(end), "end", format_value(end, curve.scale))
                    for end in {low, high}
                ),
            ]
        ),
    )


def _place(value: float, scale: float) -> str:
    return f"{2 + 140 * min(max(value / scale, 0.0), 1.0):.2f}" if scale else "2"


def _spoken(metric: Metric, value: float) -> str:
    interval = f", 95 % interval {format_interval(metric)}" if metric.interval else ""
    return f"{format_value(value, metric.scale)} of {metric.scale:g}{interval}"


def _outcomes(cell: CellReport) -> str:
    """What became of a cell's items so far: ``40 generated, 2 refused``."""
    counts = Counter(item.outcome for item in cell.items)
    return ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())) or "no items recorded"


def _plain(value: Any) -> str:
    """A provenance value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
