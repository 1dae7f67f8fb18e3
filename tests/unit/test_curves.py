"""Scores over the steps of a run: which results join one curve, and what is told of each step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from imageevalkit.metrics import mean
from imageevalkit.report.comparison import LEVEL, Measured, compare
from imageevalkit.report.curves import Curve, curve_tables, curves
from imageevalkit.store.cell import output_root
from imageevalkit.store.results import Coverage, Evaluator, Metric, Result, Score
from tests.support.cells import PPOCR, QWEN, Made, write_cell
from tests.support.site import reported

N = 60


def result(step: int | None, right: Sequence[bool], evaluator: Evaluator = QWEN, **more: object) -> Result:
    """Returns a result of a right-or-wrong benchmark."""
    scores = [Score({"a": float(one)}).of_item(str(n)) for n, one in enumerate(right)]
    n = len(right)
    whole = Result(
        model="run" if step is None else f"run@{step}",
        benchmark="b",
        benchmark_version="1",
        evaluator=evaluator,
        coverage=Coverage(n, n, 0, 0, 0, 0, n, 0, 0),
        metrics={"a": mean(scores, "a")},
        headline=["a"],
        treatment="withhold",
        limit=None,
        provenance={},
    )
    return replace(whole, **more)  # type: ignore[arg-type]


def first(count: int) -> list[bool]:
    return [n < count for n in range(N)]


def only(results: Sequence[Result]) -> Curve:
    [curve] = curves(results)
    return curve


def test_steps_are_in_order_and_compared_with_the_one_before_and_the_best() -> None:
    curve = only([result(1000, first(52)), result(500, first(20)), result(2000, first(50))])
    assert (curve.run, curve.metric, curve.label) == ("run", "a", f"run on b/a@{QWEN.id}")
    assert [point.step for point in curve.points] == [500, 1000, 2000]
    assert curve.best.step == 1000
    start, top, end = curve.points
    assert start.to_previous is None
    assert top.to_best is None
    assert top.to_previous and end.to_previous and start.to_best and end.to_best
    assert top.to_previous.difference == pytest.approx(32 / N)
    assert top.to_previous.is_significant
    assert end.to_previous.difference == pytest.approx(-2 / N)
    assert not end.to_previous.is_significant
    # two questions of each kind are asked: Holm doubles the smaller p
    alone = compare(Measured("", top.metric), Measured("", start.metric))
    assert alone.p is not None
    assert top.to_previous.adjusted == pytest.approx(2 * alone.p)
    assert alone.p < LEVEL < 2 * 0.5


def test_only_results_that_were_measured_alike_join() -> None:
    base = [result(500, first(20)), result(1000, first(30))]
    half = Coverage(N, N, 0, 0, 0, 0, N - 5, 5, 0)
    others = [
        result(1500, first(30), PPOCR),
        result(1600, first(30), benchmark_version="2"),
        result(1700, first(30), benchmark="c"),
        result(1800, first(30), limit=N),
        result(1900, first(30), coverage=half, treatment="official"),
        result(2000, first(30), coverage=half, headline=[], withheld="incomplete: 5 unparsed"),
        result(2100, first(30), model="other@2100"),
        result(None, first(30)),
    ]
    assert [point.step for point in only([*base, *others]).points] == [500, 1000]
    assert curves([result(500, first(3))]) == []
    assert curve_tables([]) == ""


def test_the_report_shows_the_curve() -> None:
    for step, value in ((1000, 0.9), (500, 0.25), (1500, 0.75)):
        items = [Made(f"images/{n}", f"prompt {n}", value=value) for n in range(4)]
        write_cell(f"run@{step}", "b", items, {"accuracy": Metric(value, 4, (value - 0.1, value + 0.1))})
    site = reported()
    [curve] = site.index["curves"]
    assert (curve["run"], curve["metric"]) == ("run", "accuracy")
    assert [point["step"] for point in curve["points"]] == [500, 1000, 1500]
    figures = [site.index["cells"][point["cell"]]["figures"]["accuracy"] for point in curve["points"]]
    assert [one["value"] for one in figures] == [0.25, 0.9, 0.75]
    assert [one["low"] for one in figures] == pytest.approx([0.15, 0.8, 0.65])
    assert [point["told"] for point in curve["points"]] == [None, False, False]
    table = (output_root() / "leaderboard.md").read_text().partition("## By training step")[2]
    steps = [row.split("|")[1].strip() for row in table.splitlines() if re.match(r"\| [0-9]", row)]
    assert steps == ["500", "1000 \\*", "1500"]
