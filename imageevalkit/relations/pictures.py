"""The map of relations (DTM) and the scatter of every pair, as PNG and SVG. matplotlib draws them, without a screen."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from imageevalkit.relations.recognition import Points
from imageevalkit.relations.rules import KINDS, Pair, Relations

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MUTED, _RULE = "#1a2130", "#5c6779", "#d5dae2"
_REGIONS = (("Synergy", "#00cc44"), ("Bottleneck", "#9933ff"), ("Trade-off", "#f2b705"))
_DPI = {"dtm": 160, "scatter": 110}
_PALEST = 0.3
"""Opacity of a relation that no resample has."""


def draw(relations: Relations, points: Mapping[str, Points], title: str) -> dict[str, bytes]:
    """The four pictures by file name; ``points`` are those of each pair by its name."""
    import matplotlib

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells of each font it tries
    style = {
        "font.family": _fonts(),
        "font.size": 10,
        "text.color": _INK,
        "axes.edgecolor": _RULE,
        "axes.labelcolor": _INK,
        "xtick.color": _MUTED,
        "ytick.color": _MUTED,
        "text.parse_math": False,  # a name may hold two dollars
        "svg.hashsalt": "imageevalkit",  # the same picture, the same file
    }
    with matplotlib.rc_context(style):
        figures = {"dtm": _map(relations, title), "scatter": _scatter(relations, points, title)}
        return {
            f"{name}.{kind}": _saved(figure, kind, _DPI[name])
            for name, figure in figures.items()
            for kind in ("png", "svg")
        }


def _fonts() -> list[str]:
    """DejaVu, and Noto for Chinese names where the driver's environment has it."""
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


def opacity(pair: Pair) -> float:
    """That of the field of a pair: the less certain, the paler; whole where nothing is known of that."""
    return 1.0 if pair.certainty is None else _PALEST + (1 - _PALEST) * pair.certainty


def _map(relations: Relations, title: str) -> Figure:
    """Upper triangle: the relation of row and column. Diagonal: pooled means. Lower: both means within the pair."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    names, size = relations.dimensions, len(relations.dimensions)
    side = max(0.82 * size, 4.2)
    figure = Figure(figsize=(side + 3.9, side + 1.5))
    left, top = 1.1, 1.0  # inches
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, 1 - (top + side) / height, side / width, side / height))
    axes.set(xlim=(0, size), ylim=(size, 0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    for n, name in enumerate(names):
        axes.text(n + 0.5, -0.12, name, ha="left", va="bottom", rotation=40, rotation_mode="anchor")
        axes.text(-0.12, n + 0.5, name, ha="right", va="center")
        axes.add_patch(Rectangle((n, n), 1, 1, facecolor="#e9edf3", edgecolor="white", linewidth=2))
        axes.text(n + 0.5, n + 0.5, f"{relations.means[name]:.2f}", ha="center", va="center", weight="bold")
        for m, other in enumerate(names[n + 1 :], n + 1):
            _field(axes, n, m, relations.pair(name, other), name, other)
    _legend(figure, relations, 1 - (1.1 + 0.6) / width * 0, (left + side + 0.35) / width, height)
    figure.text(0.12 / width * 2, 1 - 0.3 / height, title, weight="bold", size=12, va="center")
    return figure


def _field(axes: Axes, row: int, column: int, pair: Pair | None, name: str, other: str) -> None:
    from matplotlib.patches import Rectangle

    if pair is None:
        for x, y in ((column, row), (row, column)):
            axes.add_patch(
                Rectangle((x, y), 1, 1, facecolor="white", edgecolor=_RULE, hatch="///", linewidth=0)
            )
        return
    kind = KINDS[pair.code_of(name)]
    alpha = opacity(pair)
    axes.add_patch(Rectangle((column, row), 1, 1, facecolor="white", edgecolor="white", linewidth=2))
    axes.add_patch(
        Rectangle((column, row), 1, 1, facecolor=kind.colour, alpha=alpha, edgecolor="white", linewidth=2)
    )
    ink = kind.ink if alpha > 0.7 else _INK
    known = pair.certainty is not None
    axes.text(
        column + 0.5,
        row + (0.4 if known else 0.5),
        kind.mark,
        ha="center",
        va="center",
        color=ink,
        size=13,
        weight="bold",
    )
    if known:
        axes.text(
            column + 0.5,
            row + 0.75,
            f"{pair.certainty:.0%}",
            ha="center",
            va="center",
            color=ink,
            size=7.5,
        )
    means = f"{pair.mean_of(other):.2f}\n{pair.mean_of(name):.2f}"
    axes.text(row + 0.5, column + 0.5, means, ha="center", va="center", color=_MUTED, size=8, linespacing=1.35)
    axes.add_patch(
        Rectangle((row, column), 1, 1, facecolor="none", edgecolor=_RULE, linewidth=0.6, zorder=0)
    )


def _legend(figure: Figure, relations: Relations, top: float, left: float, height: float) -> None:
    from matplotlib.patches import Rectangle

    width = figure.get_size_inches()[0]
    y = 1.15  # inches from the top
    for kind in KINDS.values():
        place = (left, 1 - (y + 0.15) / height)
        figure.add_artist(
            Rectangle(place, 0.3 / width, 0.3 / height, facecolor=kind.colour, edgecolor="none")
        )
        figure.text(
            left + 0.15 / width,
            1 - y / height,
            kind.mark,
            ha="center",
            va="center",
            color=kind.ink,
            weight="bold",
            size=11,
        )
        figure.text(left + 0.42 / width, 1 - y / height, kind.label, va="center", size=9.5)
        y += 0.38
    place = (left, 1 - (y + 0.15) / height)
    figure.add_artist(
        Rectangle(
            place,
            0.3 / width,
            0.3 / height,
            facecolor="white",
            edgecolor=_RULE,
            hatch="//////",
            linewidth=0.5,
        )
    )
    figure.text(left + 0.42 / width, 1 - y / height, "No items of this pair", va="center", size=9.5)
    figure.text(
        left,
        1 - (y + 0.4) / height,
        f"%: how many of {relations.resamples:,} resamples\nhave the relation; paler is less certain.\n"
        "Diagonal: mean of the metric.\nBelow it: means of row and column\nwithin the pair.\n\n"
        + "\n".join(_thresholds(relations)),
        va="top",
        size=8.5,
        color=_MUTED,
        linespacing=1.5,
    )


def _thresholds(relations: Relations) -> list[str]:
    limits = relations.thresholds
    return [
        f"Synergy: both > {limits['synergy']:g} in {limits['synergy_density']:.0%} or more",
        f"Bottleneck: both < {limits['bottleneck']:g} in {limits['bottleneck_density']:.0%} or more",
        f"Tilt: > {1 / limits['dominance_ratio']:.4g} : 1 beside the line",
        f"Dispersion: {relations.correlation} < {limits['tradeoff_corr']:g}",
    ]


def _scatter(relations: Relations, points: Mapping[str, Points], title: str) -> Figure:
    """A panel for each pair: its points over the three regions, with the line of all points dashed."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    columns = min(len(relations.pairs), max(2, math.ceil(math.sqrt(len(relations.pairs)))))
    rows = math.ceil(len(relations.pairs) / columns)
    figure = Figure(figsize=(max(2.9 * columns, 5.8), 3.1 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, pair in zip(panels, relations.pairs, strict=False):
        _panel(panel, relations, pair, points[pair.name])
    for panel in panels[len(relations.pairs) :]:
        panel.set_visible(False)
    figure.suptitle(title, weight="bold", size=12)
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
    # thousands of circles as a picture: an SVG of shapes would be megabytes
    panel.scatter(points.x, points.y, s=9, color="#24406e", alpha=0.45, linewidths=0, rasterized=True, zorder=2)
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
    rho = "–" if pair.correlation is None else f"{pair.correlation:.2f}"
    panel.set_title(f"{kind}{sure}   n {pair.n}, {relations.correlation} {rho}", size=8.5, color=_INK)
