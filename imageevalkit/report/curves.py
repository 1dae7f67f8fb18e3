"""Curves of scores over the steps of a training run, with a test of each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len

from imageevalkit.metrics import grouped
from imageevalkit.report.comparison import Comparison, Measured, adjust, compare
from imageevalkit.report.leaderboard import (
    DRIFT,
    Board,
    boards,
    format_interval,
    format_value,
    headline_of,
    shown,
)
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Metric, Result

CURVE_NOTE = (
    "Each step is compared with the previous step and with the best one, by prompt where item scores exist. "
    "p has Holm's correction over the steps of a curve. The score of the best step is biased upwards, because it was "
    "chosen as the highest."
)
NOT_SIGNIFICANT = ("not significant", "within the judge's noise")
COLUMNS = ("step", "score", "95 % interval", "n", "to the step before", "to the best")


class Point(NamedTuple):
    """The score of the checkpoint at ``step``.

    ``to_previous`` compares it with the step before (None for the first step), ``to_best`` with the step of
    the highest score (None for that step). In both, ``adjusted`` is p by Holm's method over the steps of the
    curve.
    """

    step: int
    result: Result
    metric: Metric
    to_previous: Comparison | None
    to_best: Comparison | None

    @property
    def value(self) -> float:
        assert self.metric.value is not None
        return self.metric.value


class Curve(NamedTuple):
    """A headline ``metric`` of at least two checkpoints of one ``run``, by step.

    All points are on one board and cover all items or the same number of items, so that they may be
    compared."""

    run: str
    board: Board
    metric: str
    points: Sequence[Point]
    label: str
    """``run on longtext/en@ppocr-v4``."""

    @property
    def best(self) -> Point:
        """The point with the highest value; the earliest of equal ones."""
        return max(self.points, key=lambda point: point.value)

    @property
    def scale(self) -> float:
        """The top of the range of its values."""
        return max(point.metric.scale for point in self.points)

    def rows(self) -> list[list[str]]:
        """The texts of :data:`COLUMNS` for each step."""
        return [
            [
                f"{point.step}{' *' * (point is self.best)}",
                format_value(point.value, point.metric.scale) + DRIFT * bool(point.result.drift),
                format_interval(point.metric),
                str(point.metric.n),
                _comparison_text(point.to_previous, point.metric.scale),
                _comparison_text(point.to_best, point.metric.scale),
            ]
            for point in self.points
        ]


def curves(results: Iterable[Result]) -> list[Curve]:
    """Return the curves in ``results`` by board, metric and run, without withheld or missing scores."""
    found, by_board = list[Curve](), boards(results)
    versions = {(board.benchmark, board.version) for board in by_board}
    for board, members in by_board.items():
        several = sum(benchmark == board.benchmark for benchmark, _ in versions) > 1
        for metric in headline_of(members):
            points = list[tuple[int, Result, Metric]]()
            for result in members:
                checkpoint = Cell(result.model, result.benchmark).checkpoint
                scored = shown(result, metric).metric
                if checkpoint and scored:
                    points.append((checkpoint.step, result, scored))
            for (run, *_), of_run in grouped(points, lambda one: _joins(one[1])).items():
                # the last of several results of one model counts, as on the board
                alone = {step: (result, scored) for step, result, scored in of_run}
                if len(alone) > 1:
                    label = f"{run} on {board.label(metric, with_version=several)}"
                    found.append(Curve(run, board, metric, _points(metric, alone), label))
    return found


def _joins(result: Result) -> tuple[str, bool, int, int, str]:
    """Return the key of a curve on a board: the run and the coverage of the benchmark."""
    checkpoint, coverage = Cell(result.model, result.benchmark).checkpoint, result.coverage
    treatment = "" if coverage.complete else result.treatment
    return (
        checkpoint.run if checkpoint else "",
        coverage.complete,
        coverage.judged,
        coverage.expected,
        treatment,
    )


def _points(name: str, scored: dict[int, tuple[Result, Metric]]) -> list[Point]:
    steps = sorted(scored)
    measured = {
        step: Measured(str(step), metric, result.noise_of(name)) for step, (result, metric) in scored.items()
    }
    best = max(steps, key=lambda step: measured[step].metric.value or 0.0)
    others = [step for step in steps if step != best]
    before = adjust([compare(measured[step], measured[last]) for last, step in pairwise(steps)])
    to_best = adjust([compare(measured[step], measured[best]) for step in others])
    previous, of_best = dict(zip(steps[1:], before, strict=True)), dict(zip(others, to_best, strict=True))
    return [Point(step, *scored[step], previous.get(step), of_best.get(step)) for step in steps]


def _comparison_text(found: Comparison | None, scale: float) -> str:
    """Return a comparison as text, such as ``+0.0120 [0.0030, 0.0210] p 0.003``; empty for None.

    If it is not significant, the text ends with a word of :data:`NOT_SIGNIFICANT`."""
    if found is None:
        return ""
    sign = "" if found.difference < 0 else "+"
    text = f"{sign}{format_value(found.difference, scale)}"
    if found.interval:
        low, high = (format_value(end, scale) for end in found.interval)
        text += f" [{low}, {high}]"
    p = found.p if found.adjusted is None else found.adjusted
    if p is None:
        return f"{text} not tested"
    return f"{text} p {'< 0.001' if p < 0.001 else f'{p:.3f}'}" + (
        "" if found.is_significant else f", {NOT_SIGNIFICANT[found.within_noise]}"
    )


def curve_tables(found: Sequence[Curve]) -> str:
    """Return the curves as tables for a terminal, with ``*`` at the highest score; empty without curves."""
    lines = list[str]()
    for curve in found:
        rows = [[curve.label, *COLUMNS[1:]], *([f"  step {row[0]}", *row[1:]] for row in curve.rows())]
        widths = [max(cell_len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        for row in rows:
            cells = (text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        lines.append("")
    return "\n".join([*lines, CURVE_NOTE]) if lines else ""
