"""Writes and reads the files of relations.

``result.json`` and ``relationship_codes.csv`` have the official format. ``certainty.json`` has everything
else, with a hash of the inputs. matplotlib draws the map of relations (DTM) and scatter plots as PNG and SVG.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from imageevalkit.common.images import reduced
from imageevalkit.extras.relations.recognition import Points
from imageevalkit.extras.relations.relations import (
    KINDS,
    NONE,
    TILT,
    Pair,
    Relations,
    Settings,
    reversed_code,
)
from imageevalkit.store.jsonl import Reader, parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCHEMA = "imageevalkit.relations/1"
CERTAINTY = "certainty.json"
OFFICIAL = ("result.json", "relationship_codes.csv")
PICTURES = ("dtm.png", "dtm.svg", "scatter.png", "scatter.svg", "scatter.webp")

_RELATIONS, _SETTINGS = Reader(Relations), Reader(Settings)
_CODES = {str(code) for code in KINDS}


def texts(relations: Relations) -> dict[str, str]:
    """Returns the text files by name. The last one is written last: it shows that all files are complete."""
    record = {"schema": SCHEMA, **asdict(relations)}
    return {
        "result.json": json.dumps(official_result(relations), indent=4) + "\n",
        "relationship_codes.csv": official_table(relations),
        CERTAINTY: json.dumps(record, indent=1, ensure_ascii=False) + "\n",
    }


def read(folder: Path) -> Relations | None:
    """Returns the relations recorded in ``folder``; None if a file is damaged or missing."""
    with contextlib.suppress(OSError, ValueError):
        raw = parse((folder / CERTAINTY).read_bytes())
        found = _RELATIONS.read(raw)
        is_whole = all((folder / name).is_file() for name in (*OFFICIAL, *PICTURES))
        if raw.get("schema") == SCHEMA and is_whole and _is_understood(found):
            return found
    return None


def _is_understood(found: Relations) -> bool:
    """Whether this version has the settings and codes. Raises ValueError for an invalid setting."""
    _SETTINGS.read(found.settings)
    codes = {code for pair in found.pairs for code in (str(pair.code), *pair.codes)}
    names = {name for pair in found.pairs for name in (pair.first, pair.second)}
    return (
        found.settings.keys() <= {each.name for each in fields(Settings)}
        and codes <= _CODES
        and found.means.keys() == names
    )


def official_result(relations: Relations) -> dict[str, Any]:
    """Returns the content of ``result.json``. Only the diagonal of the matrix (pairs × pairs) has values.

    An undefined correlation is null, because JSON has no NaN. The texts of ``insights`` are our own.
    """
    codes, insights = dict[str, int](), list[dict[str, Any]]()
    for one, other in combinations(relations.dimensions, 2):
        pair = relations.pair(one, other)
        code = pair.code_of(one) if pair else NONE
        codes |= {f"{one}_{other}": code, f"{other}_{one}": reversed_code(code)}
        insights.append(_insight(one, other, code, pair))
    size = len(relations.pairs)
    matrix: list[list[float | None]] = [[0.0] * size for _ in range(size)]
    for n, pair in enumerate(relations.pairs):
        matrix[n][n] = pair.correlation
    return {
        "metrics": [pair.name for pair in relations.pairs],
        "correlation_matrix": matrix,
        "quadrant_analysis": {},
        "relationship_codes": codes,
        "insights": insights,
    }


def official_table(relations: Relations) -> str:
    """Returns ``relationship_codes.csv``: codes above the diagonal, means on it, pairs' means below it."""
    names = relations.dimensions
    rows = [["", *names], *([row, *(_field(relations, row, column) for column in names)] for row in names)]
    return "".join(",".join(row) + "\n" for row in rows)


def _field(relations: Relations, row: str, column: str) -> str:
    if row == column:
        return f"{relations.means[row]:.3f}"
    pair = relations.pair(row, column)
    if column > row:
        return str(pair.code_of(row) if pair else NONE)
    return f"[{pair.mean_of(row):.3f}-{pair.mean_of(column):.3f}]" if pair else "NULL"


def _insight(one: str, other: str, code: int, pair: Pair | None) -> dict[str, Any]:
    dominant, other_one = (one, other) if code == TILT else (other, one)
    description, suggestion = {
        "synergy": (
            f"Where {one} is high, {other} often is too.",
            "The two can be raised together.",
        ),
        "bottleneck": (
            f"{one} and {other} are often low in the same images.",
            "Look for a cause that holds both back.",
        ),
        "dominance": (
            f"{dominant} dominates {other_one}: most images lie on its side of the regression line.",
            f"Raise {other_one} where {dominant} is good already.",
        ),
        "tradeoff": (
            f"{one} and {other} do not rise together.",
            "Choose images, prompts or settings that balance the two.",
        ),
        "undefined": (
            f"{one} and {other} show none of the four relations.",
            "Look at the scatter of the pair.",
        ),
    }[KINDS[code].type]
    if pair is None:
        description, suggestion = f"No item is scored for both {one} and {other}.", "None."
    return {
        "type": KINDS[code].type,
        "metrics": [one, other],
        "description": description,
        "suggestion": suggestion,
    }


# ---- pictures

_INK, _MUTED, _RULE = "#1a2130", "#5c6779", "#d5dae2"
_REGIONS = (("Synergy", "#00cc44"), ("Bottleneck", "#9933ff"), ("Trade-off", "#f2b705"))
_DPI = {"dtm": 160, "scatter": 110}
MOST_ON_PAGE = 220_000
"""The most bytes of a scatter plot in the HTML report: 300 KB as base64."""
_SIDES = (2400, 2000, 1700, 1400, 1200, 1000, 800)
_SIDE = 0.82
"""The side of a field of the map, in inches."""
_NOTHING: Mapping[str, Any] = {"facecolor": "white", "edgecolor": _RULE, "hatch": "////", "linewidth": 0}


def draw(relations: Relations, points: Mapping[tuple[str, str], Points], title: str) -> dict[str, bytes]:
    """Returns the pictures by file name, with a small scatter plot for the HTML report.

    ``points`` has the points of each pair by its two names."""
    import matplotlib

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it logs every font it tries
    style = {
        "font.family": _fonts(),
        "font.size": 10,
        "text.color": _INK,
        "axes.edgecolor": _RULE,
        "axes.labelcolor": _INK,
        "xtick.color": _MUTED,
        "ytick.color": _MUTED,
        "text.parse_math": False,  # a name with two dollar signs is no formula
        "svg.hashsalt": "imageevalkit",  # a fixed salt, so that the same picture is the same file
    }
    with matplotlib.rc_context(style):
        figures = {"dtm": _map(relations, title), "scatter": _scatter(relations, points, title)}
        drawn = {
            f"{name}.{kind}": _saved(figure, kind, _DPI[name])
            for name, figure in figures.items()
            for kind in ("png", "svg")
        }
    return {**drawn, "scatter.webp": _for_page(drawn["scatter.png"])}


def _fonts() -> list[str]:
    """Returns the font names: DejaVu, and Noto for Chinese names if the driver's environment has it."""
    from matplotlib import font_manager

    try:
        from pylopdf_fonts_zh_cn import sans_path
    except ImportError:
        return ["DejaVu Sans"]
    font_manager.fontManager.addfont(str(sans_path()))
    return ["DejaVu Sans", font_manager.FontProperties(fname=str(sans_path())).get_name()]


def _saved(figure: Figure, kind: str, dpi: int) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=dpi, facecolor="white", metadata=metadata)
    return buffer.getvalue()


def _for_page(png: bytes) -> bytes:
    """Returns the picture as WebP, in the largest size of at most :data:`MOST_ON_PAGE` bytes."""
    return next(
        small
        for side in _SIDES
        if len(small := reduced(png, side, quality=70)) <= MOST_ON_PAGE or side == _SIDES[-1]
    )


def _map(relations: Relations, title: str) -> Figure:
    """Returns the map. Above the diagonal: relations. On it: pooled means. Below: means of the pair."""
    from matplotlib.figure import Figure

    names = relations.dimensions
    longest = max(cell_len(name) for name in names)
    left, top = 0.5 + 0.085 * longest, 0.75 + 0.06 * longest
    legend = left + len(names) * _SIDE + max(0.4, 0.06 * longest)
    width, height = legend + 3.1, max(top + len(names) * _SIDE + 0.3, top + 5.2)
    figure = Figure(figsize=(width, height))
    canvas = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))  # in inches, from the top
    canvas.set_axis_off()
    canvas.text(0.3, 0.35, title, weight="bold", size=12, va="center", wrap=True)
    for n, name in enumerate(names):
        x, y = left + n * _SIDE, top + n * _SIDE
        canvas.text(x + _SIDE / 2, top - 0.1, name, va="bottom", rotation=40, rotation_mode="anchor")
        canvas.text(left - 0.12, y + _SIDE / 2, name, ha="right", va="center")
        _box(canvas, x, y, _SIDE, facecolor="#e9edf3", edgecolor="white", linewidth=2)
        _middle(canvas, x, y, f"{relations.means[name]:.2f}", weight="bold")
        for m, other in enumerate(names[:n]):
            row, column = top + m * _SIDE, left + m * _SIDE
            if pair := relations.pair(name, other):
                _relation(canvas, x, row, pair, other)
                _means(canvas, column, y, pair, name, other)
            else:
                _box(canvas, x, row, _SIDE, **_NOTHING)
                _box(canvas, column, y, _SIDE, **_NOTHING)
    _legend(canvas, legend, top + 0.15, relations)
    return figure


def _box(canvas: Axes, x: float, y: float, side: float, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    canvas.add_patch(Rectangle((x, y), side, side, **style))


def _middle(canvas: Axes, x: float, y: float, text: str, down: float = 0.5, **style: Any) -> None:
    canvas.text(x + _SIDE / 2, y + down * _SIDE, text, ha="center", va="center", **style)


def _relation(canvas: Axes, x: float, y: float, pair: Pair, row: str) -> None:
    kind, alpha = KINDS[pair.code_of(row)], pair.opacity
    _box(canvas, x, y, _SIDE, facecolor=kind.colour, alpha=alpha, linewidth=0)
    _box(canvas, x, y, _SIDE, facecolor="none", edgecolor="white", linewidth=2)
    ink = kind.ink if alpha > 0.7 else _INK
    sure = f"n {pair.n}" if pair.certainty is None else f"{pair.certainty:.0%}"
    _middle(canvas, x, y, kind.mark, 0.4, color=ink, size=13, weight="bold")
    _middle(canvas, x, y, sure, 0.75, color=ink, size=7.5)


def _means(canvas: Axes, x: float, y: float, pair: Pair, row: str, column: str) -> None:
    _box(canvas, x, y, _SIDE, facecolor="none", edgecolor=_RULE, linewidth=0.6, zorder=0)
    means = f"{pair.mean_of(row):.2f}\n{pair.mean_of(column):.2f}"
    _middle(canvas, x, y, means, color=_MUTED, size=8, linespacing=1.35)


def _legend(canvas: Axes, x: float, y: float, relations: Relations) -> None:
    for kind in KINDS.values():
        _box(canvas, x, y - 0.15, 0.3, facecolor=kind.colour, linewidth=0)
        canvas.text(x + 0.15, y, kind.mark, ha="center", va="center", color=kind.ink, weight="bold", size=11)
        canvas.text(x + 0.42, y, kind.label, va="center", size=9.5)
        y += 0.38
    _box(canvas, x, y - 0.15, 0.3, **{**_NOTHING, "linewidth": 0.5})
    canvas.text(x + 0.42, y, "No items of this pair", va="center", size=9.5)
    remarks = [
        f"%: how many of {relations.resamples:,} resamples",
        "have the relation; paler is less certain.",
        "n: items, of too few prompts to resample.",
        "Diagonal: mean of the metric. Below it:",
        "means of row and column in the pair.",
        "",
        *_thresholds(relations),
    ]
    style: dict[str, Any] = {"va": "top", "size": 8.5, "color": _MUTED, "linespacing": 1.5}
    canvas.text(x, y + 0.4, "\n".join(remarks), **style)


def _thresholds(relations: Relations) -> list[str]:
    limits = relations.thresholds
    return [
        f"Synergy: both > {limits['synergy']:g} in {limits['synergy_density']:.0%} or more",
        f"Bottleneck: both < {limits['bottleneck']:g} in {limits['bottleneck_density']:.0%} or more",
        f"Tilt: > {1 / limits['dominance_ratio']:.4g} : 1 beside the line",
        f"Dispersion: {relations.correlation} < {limits['tradeoff_corr']:g}",
    ]


def _scatter(relations: Relations, points: Mapping[tuple[str, str], Points], title: str) -> Figure:
    """Returns a panel for each pair: the points over the three regions, and their dashed regression line."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    columns = min(len(relations.pairs), max(2, math.ceil(math.sqrt(len(relations.pairs)))))
    rows = math.ceil(len(relations.pairs) / columns)
    figure = Figure(figsize=(max(2.9 * columns, 5.8), 3.1 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, pair in zip(panels, relations.pairs, strict=False):
        _panel(panel, relations, pair, points[pair.first, pair.second])
    for panel in panels[len(relations.pairs) :]:
        panel.set_visible(False)
    figure.suptitle(title, weight="bold", size=12, wrap=True)
    handles = [Patch(facecolor=colour, alpha=0.25, label=f"{name} region") for name, colour in _REGIONS]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _panel(panel: Axes, relations: Relations, pair: Pair, points: Points) -> None:
    import numpy
    from matplotlib.patches import Rectangle

    high, low = relations.thresholds["synergy"], relations.thresholds["bottleneck"]
    (_, green), (_, violet), (_, amber) = _REGIONS
    for corner, side, colour in (((0, 0), 1, amber), ((high, high), 1 - high, green), ((0, 0), low, violet)):
        panel.add_patch(Rectangle(corner, side, side, facecolor="white", linewidth=0))
        panel.add_patch(Rectangle(corner, side, side, facecolor=colour, alpha=0.16, linewidth=0))
    # rasterized, because an SVG with thousands of circles would have megabytes
    places, times = numpy.unique(numpy.stack([points.x, points.y]), axis=1, return_counts=True)
    style: dict[str, Any] = {"color": "#24406e", "alpha": 0.45, "linewidths": 0, "rasterized": True}
    x, y = places
    panel.scatter(x, y, s=9 * times**0.75, **style, zorder=2)  # larger circles for points at the same place
    if numpy.ptp(points.x) > 0:
        slope, at_zero = numpy.polyfit(points.x, points.y, 1)
        ends = numpy.array([points.x.min(), points.x.max()])
        panel.plot(ends, slope * ends + at_zero, "--", color="#d02b2b", linewidth=1.4, zorder=3)
    panel.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=pair.first, ylabel=pair.second, aspect="equal")
    panel.set(xticks=[0, low, high, 1], yticks=[0, low, high, 1])
    panel.tick_params(labelsize=7.5, length=2)
    kind = KINDS[pair.code].name.partition("-")[0]
    sure = "" if pair.certainty is None else f" {pair.certainty:.0%}"
    if kind == "tilt":
        kind = f"tilt to {pair.first if pair.code > 0 else pair.second}"
    rho = "–" if pair.correlation is None else f"{round(pair.correlation, 2) + 0:.2f}"
    panel.set_title(f"{kind}{sure}   n {pair.n}, {relations.correlation} {rho}", size=8.5, color=_INK)
