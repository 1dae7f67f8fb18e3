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
    groups,
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


def share_covered(draw: Draw, mean: float, prompts: int, runs: int = 600) -> float:
    """Returns the share of runs of ``prompts`` scores whose interval contains the ``mean``."""
    rng = random.Random(prompts)
    found = (bounds([(draw(rng), 1.0) for _ in range(prompts)]) for _ in range(runs))
    return sum(low <= mean <= high for low, high in found) / runs


def rarely(share: float, draw: Draw) -> Draw:
    """The ceiling, but for a ``share`` of the prompts."""
    return lambda rng: draw(rng) if rng.random() < share else 1.0


NEAR_THE_CEILING: dict[str, tuple[Draw, float]] = {
    "a little below": (lambda rng: rng.betavariate(20, 1), 20 / 21),
    "skewed": (lambda rng: rng.betavariate(5, 0.5), 5 / 5.5),
    "one of five fails a little": (rarely(0.2, lambda rng: rng.betavariate(8, 2)), 1 - 0.2 * 0.2),
    "one of ten fails a little": (rarely(0.1, lambda rng: rng.betavariate(8, 2)), 1 - 0.1 * 0.2),
    "one of five fails somehow": (rarely(0.2, random.Random.random), 0.9),
    "one of ten fails somehow": (rarely(0.1, random.Random.random), 0.95),
    "right or wrong": (lambda rng: float(rng.random() < 0.95), 0.95),
    "four images of a prompt": (lambda rng: sum(rng.random() < 0.95 for _ in range(4)) / 4, 0.95),
    "four images as hard as their prompt": (
        lambda rng: (
            sum([(p := rng.betavariate(9, 1)) > rng.random(), *(p > rng.random() for _ in range(3))]) / 4
        ),
        0.9,
    ),
}


@pytest.mark.parametrize("name", NEAR_THE_CEILING)
def test_an_interval_holds_the_mean_near_the_ceiling(name: str) -> None:
    draw, mean = NEAR_THE_CEILING[name]
    covered = {prompts: share_covered(draw, mean, prompts) for prompts in (10, 16, 24)}
    assert min(covered.values()) > 0.91, covered
    assert statistics.fmean(covered.values()) > 0.925
    # the same at the floor
    low, high = bounds([(score, 1) for score in (0.9, 0.95, *[1.0] * 14)])
    assert bounds([(1 - score, 1) for score in (0.9, 0.95, *[1.0] * 14)]) == pytest.approx(
        (1 - high, 1 - low)
    )


def test_all_or_nothing_is_wilsons_interval() -> None:
    # statsmodels 0.15: proportion_confint(right, count, method="wilson"); tests/unit/test_statistics.py has it of more
    for count, right, low, high in (
        (10, 10, 0.722467, 1.0),
        (24, 23, 0.797572, 0.992606),
        (16, 4, 0.101822, 0.494983),
    ):
        assert bounds([(float(k < right), 1) for k in range(count)]) == pytest.approx((low, high), abs=1e-5)


def test_scores_that_are_all_one_tell_nothing_of_how_they_vary() -> None:
    low, high = bounds([(1.0, 1)] * 24)
    assert (low, high) == (pytest.approx(0.862, abs=0.001), 1.0)
    assert bounds([(0.0, 1)] * 24) == (0.0, pytest.approx(1 - low))
    # sums of 0.1 differ in their last bits
    low, high = bounds([(0.1 * k, k) for k in (1, 2, 4, 8)] * 10)
    assert low < 0.06 and high > 0.15


def test_what_is_nearly_all_or_nothing_is_nearly_wilsons_interval() -> None:
    exact = bounds([(float(k < 4), 1) for k in range(16)])
    assert bounds([(0.999 * (k < 4) + 0.0005, 1) for k in range(16)]) == pytest.approx(exact, abs=0.002)


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


def test_strata_add_up_as_their_variances_do() -> None:
    strata = [Stratum(share, [(v, 1) for v in noise(200, seed)]) for seed, share in enumerate((0.7, 0.3))]
    error = math.sqrt(
        sum(s.share**2 * statistics.variance(t for t, _ in s.parts) / len(s.parts) for s in strata)
    )
    low, high = interval_of_sum(strata) or (0.0, 0.0)
    assert high - low == pytest.approx(2 * 1.968 * error, rel=0.005)


def test_a_stratum_at_the_ceiling_widens_the_whole() -> None:
    known, perfect = [(v, 1.0) for v in noise(400)], [(1.0, 1.0)] * 12
    low, high = interval_of_sum([Stratum(0.5, known), Stratum(0.5, perfect)]) or (0.0, 0.0)
    alone = bounds(known)
    assert high - low > (alone[1] - alone[0]) * 2
    both = interval_of_sum([Stratum(0.5, perfect), Stratum(0.5, perfect)])
    assert both and both[1] == 1.0 and bounds(perfect)[0] < both[0] < 0.9


def test_scores_beyond_the_scale_widen_it() -> None:
    # a cosine may be below 0, an edit distance above where it changes a score
    low, high = bounds([(-0.1 if k % 2 else 0.02, 1) for k in range(20)])
    assert -0.1 <= low < -0.04 < high < 0.1
    low, high = bounds([(float(k), 1) for k in range(0, 400, 20)], 100)
    assert 100 < low < 190 < high < 300


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
    "of a function": (
        lambda: mean(of("x", 1, 0, 0.5), lambda score: score.values["x"] * 2, top=2.0),
        Metric(1.0, 3, scale=2.0),
    ),
    "of those with a value": (
        lambda: mean(of("x", 1, 0, 0.5), lambda score: score.values["x"] or None),
        Metric(0.75, 2),
    ),
    "summed from left to right": (lambda: mean(of("x", *[0.1] * 9), "x"), Metric(0.09999999999999999, 9)),
    "percent of the quotient": (
        lambda: mean(of("x", 0.8, 0.8, 0.8), "x", percent=True),
        Metric(80.00000000000001, 3, scale=100.0),
    ),
    "scores without an item": (lambda: mean([Score({"x": 1}), Score({"x": 0})], "x"), Metric(0.5, 2)),
    "points of items": (lambda: mean(points(THREE_SKILLS), "p"), Metric(0.625, 3)),
    "a micro average": (lambda: mean(read((1, 2), (0, 1), (3, 5)), "match", weight="total"), Metric(0.5, 3)),
    "of no weight": (lambda: mean(read((0, 0), (0, 0)), "match", weight="total"), Metric(None, 2)),
    "a sum": (lambda: total(of("x", 2, 1, 2), "x", top=2.0), Metric(5, 3, scale=6.0)),
    "a sum of nothing": (lambda: total([], "x"), Metric(None, 0, scale=0.0)),
    "weighted": (
        lambda: weighted(of("x", 1, 0, kind="a") + of("x", 1, kind="b"), "x", "kind", {"b": 0.25, "a": 0.75}),
        Metric(0.625, 3),
    ),
    "weighted in percent": (
        lambda: weighted(of("x", 2, 0, kind="a"), "x", "kind", {"a": 1.0}, top=2.0, percent=True),
        Metric(100.0, 2, scale=200.0),
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


def test_a_cluster_is_summed_before_all() -> None:
    scores = [
        *of("x", 0.3, prompt=1),
        *of("x", 0.2, prompt=2),
        *of("x", 0.5, prompt=1),
        *of("x", 0.2, prompt=2),
    ]
    assert mean(scores, "x", cluster="prompt").value == 0.30000000000000004
    assert mean([Score({"x": x}) for x in (0.3, 0.2, 0.5, 0.2)], "x").value == 0.3


GROUPS: dict[str, tuple[Callable[[], dict[str, Metric]], dict[str, Metric]]] = {
    "as they appear, without those of no group": (
        lambda: mean_by(MIXED, "x", "kind"),
        {"b": Metric(0.5, 2), "a": Metric(0.5, 1)},
    ),
    "in an order that names others too": (
        lambda: mean_by(MIXED, "x", "kind", prefix="kind/", order=["c", "a"], percent=True),
        {"kind/a": Metric(50.0, 1, scale=100.0), "kind/b": Metric(50.0, 2, scale=100.0)},
    ),
    "by a function": (
        lambda: mean_by(MIXED, "x", lambda score: score.values["x"] > 0.5),
        {"True": Metric(4.0, 2), "False": Metric(0.25, 2)},
    ),
    "none of whose scores has a value": (
        lambda: mean_by(MIXED[:1], lambda score: None, "kind"),
        {"b": Metric(None, 0)},
    ),
    "ratios by two keys": (
        lambda: mean_by(RATIOS, "match", ("lang", "kind"), weight="total"),
        {"en/b": Metric(1 / 3, 2), "zh/a": Metric(0.75, 1)},
    ),
    "points by their own key": (
        lambda: mean_by(points(THREE_SKILLS), "p", "skill", order=["object"]),
        {"object": Metric(0.0, 1), "count": Metric(2.5 / 3, 2)},
    ),
    "points by that of their item": (
        lambda: mean_by(points(THREE_SKILLS), "p", "size"),
        {"3": Metric(0.75, 1), "4": Metric(0.5, 2)},
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_metrics_by_group(name: str) -> None:
    by_group, expected = GROUPS[name]
    assert list(by_group().items()) == list(expected.items())


def test_groups_are_scores_by_key() -> None:
    assert groups(MIXED, "kind", ["a"]) == {"a": MIXED[2:3], "b": MIXED[:2]}
    assert list(groups(RATIOS, ["kind", "lang"])) == [("b", "en"), ("a", "zh")]
    assert groups([Score({}, {"kind": "a", "lang": None})], ["kind", "lang"]) == {}


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


def test_what_weighs_nothing_is_in_no_interval() -> None:
    known = [(count % 4, 4) for count in range(12)]
    assert mean(read(*known, (0, 0)), "match", weight="total").interval == interval(known)
    assert mean(read(*known[:9], *[(0, 0)] * 9), "match", weight="total").interval is None


@pytest.mark.parametrize(
    ("values", "arithmetic", "geometric"),
    [
        ([0.5], 0.5, 0.5),
        ([4, 1], 2.5, 2.0),
        ([0.5, 0.0, 1.0], 0.5, 0.0),
        ([0.2, 0.9, 0.7], 0.6, 0.5013297934964584),
        ([True, False], 0.5, 0.0),
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
    "a key that a score lacks": (
        lambda: groups(of("x", 1), "kind"),
        "the score of '{} 0' has no key 'kind', only: none",
    ),
    "a group without weight": (
        lambda: weighted(of("x", 1, kind="b"), "x", "kind", {"a": 1.0}),
        "no weight is given for the scores of 'b'",
    ),
    "weights of more than 1": (
        lambda: weighted(of("x", 1, kind="a"), "x", "kind", {"a": 1.0, "b": 0.5}),
        "the weights add up to 1.5, not to 1",
    ),
    "a mean of nothing": (lambda: arithmetic_mean([]), "there is no mean of no values"),
    "a geometric mean of nothing": (lambda: geometric_mean([]), "there is no mean of no values"),
    "a geometric mean of less": (lambda: geometric_mean([1, -0.5]), "of no negative value, but one is -0.5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mean_says_why(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
