"""Means of scores, as data to the last digit, and the intervals of means over prompts."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from imageevalkit.metrics import (
    Part,
    Stratum,
    arithmetic_mean,
    geometric_mean,
    interval_of_sum,
    mean,
    mean_by,
    points,
    total,
    weighted,
    weighted_sum,
)
from imageevalkit.store.results import Metric, Score

Draw = Callable[[random.Random], float]


def noise(count: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.5, 0.1) for _ in range(count)]


def interval(parts: Sequence[Part], top: float = 1.0) -> tuple[float, float] | None:
    return interval_of_sum([Stratum(1.0, parts)], top)


def bounds(parts: Sequence[Part], top: float = 1.0) -> tuple[float, float]:
    found = interval(parts, top)
    assert found
    return found


def share_covered(draw: Draw, mean: float, prompts: int, runs: int = 300) -> float:
    """Returns the share of runs of ``prompts`` scores whose interval contains the ``mean``."""
    rng = random.Random(prompts)
    found = (bounds([(draw(rng), 1.0) for _ in range(prompts)]) for _ in range(runs))
    return sum(low <= mean <= high for low, high in found) / runs


NEAR_THE_CEILING: dict[str, tuple[Draw, float]] = {
    "skewed": (lambda rng: rng.betavariate(5, 0.5), 5 / 5.5),
    "right or wrong": (lambda rng: float(rng.random() < 0.95), 0.95),
}


@pytest.mark.parametrize("name", NEAR_THE_CEILING)
def test_an_interval_holds_the_mean_near_the_ceiling(name: str) -> None:
    draw, mean = NEAR_THE_CEILING[name]
    covered = {prompts: share_covered(draw, mean, prompts) for prompts in (10, 16, 24)}
    assert min(covered.values()) > 0.9, covered
    assert statistics.fmean(covered.values()) > 0.92
    # the same at the floor
    low, high = bounds([(score, 1) for score in (0.9, 0.95, *[1.0] * 14)])
    assert bounds([(1 - score, 1) for score in (0.9, 0.95, *[1.0] * 14)]) == pytest.approx(
        (1 - high, 1 - low)
    )


def test_a_prompt_in_two_strata_is_one() -> None:
    values = noise(60)
    parts = [(value, 1.0) for value in values]
    alone = bounds(parts)
    half = Stratum(0.5, parts, range(60))
    assert interval_of_sum([half, half]) == pytest.approx(alone, rel=1e-3)
    # of other prompts the variance is half as large, of opposite ones there is less
    other = Stratum(0.5, parts, range(60, 120))
    low, high = interval_of_sum([half, other]) or (0, 0)
    assert high - low == pytest.approx((alone[1] - alone[0]) / math.sqrt(2), rel=0.02)
    opposite = Stratum(0.5, [(1 - value, 1.0) for value in values], range(60))
    low_of_opposite, high_of_opposite = interval_of_sum([half, opposite]) or (0, 0)
    assert 0 < high_of_opposite - low_of_opposite < high - low


def test_interval_of_a_mean_is_that_of_the_closed_form() -> None:
    values = noise(400)
    low, high = bounds([(value, 1) for value in values])
    assert low < statistics.fmean(values) < high
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert high - low == pytest.approx(2 * 1.966 * error, rel=0.003)
    # twice the units in each prompt say nothing new
    assert interval([(2 * value, 2) for value in values]) == pytest.approx((low, high))
    assert interval([(100 * value, 1) for value in values], 100) == pytest.approx((100 * low, 100 * high))


def test_interval_of_a_ratio_of_sums_is_that_of_the_closed_form() -> None:
    parts = [(value * weight, weight) for weight, value in enumerate(noise(300), start=5)]
    total, weight = map(sum, zip(*parts, strict=True))
    low, high = bounds(parts)
    assert low < total / weight < high
    residuals = sum((t - total / weight * w) ** 2 for t, w in parts) / (len(parts) - 1) / len(parts)
    error = math.sqrt(residuals) * len(parts) / weight
    assert high - low == pytest.approx(2 * 1.968 * error, rel=0.005)
    shuffled = random.Random(1).sample(parts, len(parts))
    assert interval(shuffled) == (low, high), "to the last digit"


def test_few_prompts_have_no_interval() -> None:
    assert interval([(k / 10, 1) for k in range(9)]) is None
    assert interval([(k / 10, 1) for k in range(10)]) is not None
    assert interval_of_sum([Stratum(0.5, [(k / 10, 1) for k in range(n)]) for n in (9, 30)]) is None


def of(name: str, *values: float, **keys: Any) -> list[Score]:
    """Scores of as many items, alike in their ``keys``."""
    made = [Score({name: value}, keys) for value in values]
    return [score.of_item(f"{keys} {number}") for number, score in enumerate(made)]


def read(*counts: tuple[int, int], **keys: Any) -> list[Score]:
    """Images with so many units of a text that are right, of so many."""
    made = [Score({"match": match, "total": total}, keys) for match, total in counts]
    return [score.of_item(f"{keys} {number}") for number, score in enumerate(made)]


def with_points(item: str, *values: float, skill: str = "object", **keys: Any) -> Score:
    return Score({}, keys, points=[Score({"p": value}, {"skill": skill}) for value in values]).of_item(item)


THREE_SKILLS = [
    with_points("a", 0.5, 1, skill="count", size=3),
    with_points("b", 0, skill="object", size=4),
    with_points("c", 1, skill="count", size=4),
]
MIXED = [*of("x", 1, 0, kind="b"), *of("x", 0.5, kind="a"), *of("x", 7, kind=None)]
RATIOS = [*read((1, 2), (0, 1), kind="b", lang="en"), *read((3, 4), kind="a", lang="zh")]

# the published counts of right answers of Nano Banana Pro on WISE Verified, and their weights
WISE = {
    "culture": (359, 400, 0.4),
    "time": (98, 120, 0.12),
    "space": (112, 120, 0.12),
    "biology": (98, 120, 0.12),
    "physics": (104, 120, 0.12),
    "chemistry": (105, 120, 0.12),
}
WEIGHTS = {name: weight for name, (_, _, weight) in WISE.items()}
WISE_SCORES = [
    score
    for name, (right, count, _) in WISE.items()
    for score in of("wiscore", *([1.0] * right + [0.0] * (count - right)), category=name)
]

METRICS: dict[str, tuple[Callable[[], Metric], Metric]] = {
    "no scores": (lambda: mean([], "x"), Metric(None, 0)),
    "no scores in percent": (lambda: mean([], "x", top=2.0, percent=True), Metric(None, 0, scale=200.0)),
    "a mean": (lambda: mean(of("x", 1, 0, 0.5), "x"), Metric(0.5, 3)),
    "summed from left to right": (lambda: mean(of("x", *[0.1] * 9), "x"), Metric(0.09999999999999999, 9)),
    "percent of the quotient": (
        lambda: mean(of("x", 0.8, 0.8, 0.8), "x", percent=True),
        Metric(80.00000000000001, 3, scale=100.0),
    ),
    "points of items": (lambda: mean(points(THREE_SKILLS), "p"), Metric(0.625, 3)),
    "a micro average": (lambda: mean(read((1, 2), (0, 1), (3, 5)), "match", weight="total"), Metric(0.5, 3)),
    "of no weight": (lambda: mean(read((0, 0), (0, 0)), "match", weight="total"), Metric(None, 2)),
    "a sum": (lambda: total(of("x", 2, 1, 2), "x", top=2.0), Metric(5, 3, scale=6.0)),
    "a sum of nothing": (lambda: total([], "x"), Metric(None, 0, scale=0.0)),
    "weighted": (
        lambda: weighted(of("x", 1, 0, kind="a") + of("x", 1, kind="b"), "x", "kind", {"b": 0.25, "a": 0.75}),
        Metric(0.625, 3),
    ),
    "weighted without a group": (
        lambda: weighted(of("x", 1, 0, kind="a"), "x", "kind", {"a": 0.5, "b": 0.5}),
        Metric(None, 2),
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_to_the_last_digit(name: str) -> None:
    metric, expected = METRICS[name]
    assert metric() == expected


GROUPS: dict[str, tuple[Callable[[], dict[str, Metric]], dict[str, Metric]]] = {
    "as they appear, without those of no group": (
        lambda: mean_by(MIXED, "x", "kind"),
        {"b": Metric(0.5, 2), "a": Metric(0.5, 1)},
    ),
    "in an order that names others too": (
        lambda: mean_by(MIXED, "x", "kind", prefix="kind/", order=["c", "a"], percent=True),
        {"kind/a": Metric(50.0, 1, scale=100.0), "kind/b": Metric(50.0, 2, scale=100.0)},
    ),
    "ratios by two keys": (
        lambda: mean_by(RATIOS, "match", ("lang", "kind"), weight="total"),
        {"en/b": Metric(1 / 3, 2), "zh/a": Metric(0.75, 1)},
    ),
    "points by their own key": (
        lambda: mean_by(points(THREE_SKILLS), "p", "skill", order=["object"]),
        {"object": Metric(0.0, 1), "count": Metric(2.5 / 3, 2)},
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_metrics_by_group(name: str) -> None:
    by_group, expected = GROUPS[name]
    assert list(by_group().items()) == list(expected.items())


def test_a_weighted_mean_of_published_counts() -> None:
    found = weighted(WISE_SCORES, "wiscore", "category", WEIGHTS)
    assert found.value == 0.8759999999999999 and found.n == 1000
    strata = [
        Stratum(weight, [(1.0, 1.0)] * right + [(0.0, 1.0)] * (count - right))
        for right, count, weight in WISE.values()
    ]
    assert found.interval == interval_of_sum(strata)
    without = weighted(
        [score for score in WISE_SCORES if score.keys["category"] != "time"], "wiscore", "category", WEIGHTS
    )
    assert without == Metric(None, 880)
    assert weighted_sum({"a": 400, "b": 100}, {"a": 0.4, "b": 0.1}) == 170.0
    assert weighted_sum({"a": 400, "b": None}, {"a": 0.4, "b": 0.1}) is None


def test_the_interval_is_over_items_or_clusters() -> None:
    values = noise(40)
    assert mean(of("x", *values), "x").interval == interval([(value, 1) for value in values])
    assert mean(of("x", *values), "x", interval=False) == Metric(mean(of("x", *values), "x").value, 40)
    # two images of each prompt, two points of each item
    prompts = [(a + b, 2) for a, b in zip(values[::2], values[1::2], strict=True)]
    images = [
        Score({"x": value}, {"prompt": number // 2}, item=str(number)) for number, value in enumerate(values)
    ]
    assert mean(images, "x", cluster="prompt").interval == interval(prompts)
    assert mean(images, "x", cluster=["prompt"]) == mean(
        images, "x", cluster=lambda score: score.keys["prompt"]
    )
    items = [with_points(str(n), *values[n : n + 2]) for n in range(0, 40, 2)]
    found = mean(points(items), "p", percent=True)
    low, high = bounds(prompts)
    assert found.n == 20 and found.interval == (100 * low, 100 * high)
    nameless = [Score({}, points=item.points) for item in items]
    assert mean(points(nameless), "p", percent=True) == found


@pytest.mark.parametrize(
    ("values", "arithmetic", "geometric"),
    [
        ([0.5], 0.5, 0.5),
        ([0.5, 0.0, 1.0], 0.5, 0.0),
        ([0.2, 0.9, 0.7], 0.6, 0.5013297934964584),
        ([0.1] * 10, 0.09999999999999999, 0.1),
    ],
)
def test_means_of_numbers(values: list[float], arithmetic: float, geometric: float) -> None:
    assert arithmetic_mean(iter(values)) == arithmetic
    # the last digit of a logarithm is the machine's
    assert geometric_mean(iter(values)) == pytest.approx(geometric, rel=1e-14, abs=0)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a value that a score lacks": (
        lambda: mean(of("x", 1), "y"),
        "the score of '{} 0' has no value 'y', only: x",
    ),
    "a group without weight": (
        lambda: weighted(of("x", 1, kind="b"), "x", "kind", {"a": 1.0}),
        "no weight is given for the scores of 'b'",
    ),
    "a mean of nothing": (lambda: arithmetic_mean([]), "there is no mean of no values"),
    "a geometric mean of less": (lambda: geometric_mean([1, -0.5]), "of no negative value, but one is -0.5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mean_says_why(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
