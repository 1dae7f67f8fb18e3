"""What result files can decide: as scipy does, and in simulated benchmarks with a known truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from imageevalkit.extras.compare.power import power_of
from imageevalkit.metrics import mean, weighted
from imageevalkit.report.comparison import (
    Measured,
    compare,
    compare_all,
    score_interval,
    significant_pairs,
    smallest_difference,
)
from imageevalkit.report.ranks import compact_groups, rank_groups
from imageevalkit.store.results import Metric, Score

Random = np.random.Generator


def measured(name: str, values: Sequence[float] | np.ndarray, images: int = 1, **options: Any) -> Measured:
    """The mean of ``values``, so many images of each prompt."""
    scores = [Score({"x": float(v)}, {"prompt": n // images}).of_item(f"{n}") for n, v in enumerate(values)]
    return Measured(name, mean(scores, "x", cluster="prompt" if images > 1 else None, **options))


def silent(one: Measured) -> Measured:
    """The same, of a file that does not say what each item gives."""
    metric = one.metric
    return one._replace(metric=Metric(metric.value, metric.n, metric.interval, metric.scale))


def right_or_wrong(count: int, right: int, better: int, worse: int) -> tuple[Measured, Measured]:
    """Two models: ``right`` of the second, of which the first has ``worse`` wrong, and ``better`` others right."""
    second = np.arange(count) < right
    first = second.copy()
    first[:worse], first[right : right + better] = False, True
    return measured("first", first), measured("second", second)


# ---- agreement with scipy


@pytest.mark.parametrize(("count", "right"), [(10, 0), (200, 77), (1000, 990)])
def test_an_interval_of_right_or_wrong_is_that_of_scipy(count: int, right: int) -> None:
    found = measured("m", [float(n < right) for n in range(count)]).metric.interval
    assert found == pytest.approx(stats.binomtest(right, count).proportion_ci(method="wilson"), abs=1e-9)


def test_an_interval_of_many_scores_is_that_of_scipy() -> None:
    values = np.random.default_rng(1).beta(6, 4, 2000)
    found = measured("m", values).metric.interval
    assert found == pytest.approx(stats.ttest_1samp(values, 0).confidence_interval(), abs=2e-4)


@pytest.mark.parametrize(("better", "worse"), [(28, 8), (0, 5), (0, 0)])
def test_right_or_wrong_is_tested_as_scipy_does(better: int, worse: int) -> None:
    found = compare(*right_or_wrong(200, 120, better, worse))
    expected = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert found.p == pytest.approx(expected, rel=1e-12)
    assert found.difference == pytest.approx((better - worse) / 200, abs=1e-12)
    assert found.test == f"McNemar's exact test on 200 prompts: {better} better, {worse} worse"


def test_few_prompts_are_tested_as_scipy_does() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.random((2, 12))
    found = compare(measured("a", a), measured("b", b))

    def difference(x: np.ndarray, y: np.ndarray, axis: int) -> Any:
        return x.mean(axis) - y.mean(axis)

    expected = stats.permutation_test((a, b), difference, permutation_type="samples", n_resamples=2**12)
    assert (found.difference, found.p) == pytest.approx((a.mean() - b.mean(), expected.pvalue), rel=1e-9)
    assert found.test.startswith("exact permutation test on 12 prompts")


@pytest.mark.parametrize("shift", [0.0, 0.04])
def test_many_prompts_are_tested_as_scipy_does(shift: float) -> None:
    rng = np.random.default_rng(3)
    a = rng.beta(4, 2, 300)
    b = np.clip(a - shift + rng.normal(0, 0.2, 300), 0, 1)
    found = compare(measured("a", a), measured("b", b))
    expected = stats.permutation_test(
        (a - b,),
        lambda d, axis: d.sum(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=9_999,
        rng=np.random.default_rng(4),
    )
    assert found.p is not None
    assert found.p == pytest.approx(expected.pvalue, abs=4 * math.sqrt(max(found.p, 1e-4) / 2_000))
    assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=0.03)
    assert found.p == compare(measured("a", a), measured("b", b)).p, "the same each time"


def test_an_interval_of_a_difference_is_that_of_a_t_test() -> None:
    rng = np.random.default_rng(6)
    a = rng.beta(5, 4, 400)
    b = np.clip(a + rng.normal(0.01, 0.1, 400), 0, 1)
    found = compare(measured("a", a), measured("b", b))
    assert found.interval == pytest.approx(stats.ttest_rel(a, b).confidence_interval(), abs=6e-4)
    assert found.spread == pytest.approx((a - b).std(ddof=1), rel=1e-9)


def test_two_means_without_items_are_compared_as_of_different_prompts() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.beta(5, 4, 400), rng.beta(5, 4, 300) + 0.01
    found = compare(silent(measured("a", a)), measured("b", b, top=1.1))
    assert not found.paired
    assert found.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, abs=0.01)
    assert found.test == "Welch's t-test of two means: the files of a have no values of items"
    nothing = compare(Measured("a", Metric(0.5, 8)), Measured("b", Metric(0.4, 8)))
    assert (nothing.p, nothing.interval, nothing.is_significant) == (None, None, False)
    assert nothing.test.startswith("no test: ")


def test_holm_corrects_for_the_number_of_pairs() -> None:
    rng = np.random.default_rng(8)
    base = rng.random(300)
    column = [measured(f"m{n}", np.clip(base + rng.normal(0.01 * n, 0.1, 300), 0, 1)) for n in range(5)]
    found = compare_all(column)
    assert [(one.first, one.second) for one in found[:5]] == [
        *(("m0", f"m{n}") for n in range(1, 5)),
        ("m1", "m2"),
    ]
    least, expected = 0.0, dict[tuple[str, str], float]()
    for rank, one in enumerate(sorted(found, key=lambda one: one.p or 0)):
        least = max(least, min(1.0, (one.p or 0) * (len(found) - rank)))
        expected[one.first, one.second] = least
    assert [one.adjusted for one in found] == pytest.approx(
        [expected[one.first, one.second] for one in found]
    )
    assert [one.is_significant for one in found] == [(one.adjusted or 0) <= 0.05 for one in found]
    assert len({one.is_significant for one in found}) == 2


# ---- what is compared


def test_a_sum_of_means_is_compared_by_group() -> None:
    rng = np.random.default_rng(9)
    kinds, weights = [n % 3 for n in range(90)], {0: 0.5, 1: 0.3, 2: 0.2}

    def model(name: str, values: np.ndarray) -> Measured:
        scores = [
            Score({"x": float(v)}, {"kind": kind}).of_item(str(n))
            for n, (v, kind) in enumerate(zip(values, kinds, strict=True))
        ]
        return Measured(name, weighted(scores, "x", "kind", weights, percent=True))

    a = rng.random(90)
    b = np.clip(a - 0.05 + rng.normal(0, 0.05, 90), 0, 1)
    one, other = model("a", a), model("b", b)
    found = compare(one, other)
    assert one.metric.value is not None and other.metric.value is not None
    assert found.difference == pytest.approx(one.metric.value - other.metric.value)
    share = np.array([weights[kind] for kind in kinds]) / 30 * 100
    given = share * (a - b)
    assert found.p == pytest.approx(stats.ttest_1samp(given, 0).pvalue, abs=1e-3)
    assert found.n == 90 and found.interval is not None
    assert found.interval[0] < found.difference < found.interval[1]


def test_images_of_a_prompt_are_one() -> None:
    rng = np.random.default_rng(10)
    hard = rng.beta(2, 2, 50)
    a, b = (np.repeat(hard, 4) > rng.random(200) for _ in range(2))
    found = compare(measured("a", a, 4), measured("b", b, 4))
    assert found.n == 50
    a_of, b_of = a.reshape(50, 4).mean(1), b.reshape(50, 4).mean(1)
    assert found.p == pytest.approx(stats.ttest_rel(a_of, b_of).pvalue, abs=0.1)


def test_only_prompts_that_both_have_are_compared() -> None:
    one, other = measured("a", [1.0] * 30), measured("b", [0.0] * 5 + [1.0] * 35)
    found = compare(one, other)
    assert found.n == 30 and found.difference == pytest.approx(5 / 30)
    assert found.test.endswith("; of the 30 prompts that both have")
    strangers = other.metric.parts[30:]
    apart = compare(one, other._replace(metric=Metric(1.0, 10, (0.7, 1.0), parts=strangers)))
    assert not apart.paired and "no prompts in common" in apart.test
    with pytest.raises(ValueError, match="a has no value to compare"):
        compare(Measured("a", Metric(None, 0)), other)


# ---- simulated benchmarks


def test_a_planted_difference_is_found_by_pairs_and_by_nothing_else() -> None:
    """2 % of 1,000 prompts, of two models that mostly fail at the same ones: paired, it is found nearly always."""
    rng = np.random.default_rng(12)
    paired, apart = [], []
    for _ in range(20):
        second = rng.random(1000) < 0.8
        first = second ^ (rng.random(1000) < np.where(second, 0.005, 0.12))  # 0.8 - 0.004 + 0.024
        one, other = measured("first", first), measured("second", second)
        paired.append((compare(one, other).p or 0) < 0.05)
        apart.append((compare(silent(one), silent(other)).p or 0) < 0.05)
    assert sum(paired) >= 18
    assert sum(apart) <= 6
    found = compare(*right_or_wrong(1000, 800, 28, 8))
    assert found.difference == pytest.approx(0.02) and found.p == pytest.approx(0.0012, abs=1e-4)
    assert found.interval is not None and found.interval[0] > 0
    assert compare(*map(silent, right_or_wrong(1000, 800, 28, 8))).p == pytest.approx(0.26, abs=0.01)


def pair_of(kind: str, rng: Random, p: float, d: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of two models, prompts × images; the first is better by ``d`` in truth."""
    hard = rng.beta(2 * p, 2 - 2 * p, count)[:, None]
    if kind == "grades":
        first, second = rng.beta(15 * hard + 1e-9, 15 - 15 * hard + 1e-9, (2, count, 1))
        return np.asarray(first + d * (1 - first) / (1 - p)), np.asarray(second)
    images = 4 if kind == "four images" else 1
    first, second = (rng.random((count, images)) < hard for _ in range(2))
    return (first | (rng.random((count, images)) < d / (1 - p))).astype(float), second.astype(float)


@pytest.mark.parametrize("p", [0.05, 0.5])
@pytest.mark.parametrize("count", [10, 200])
@pytest.mark.parametrize("kind", ["right or wrong", "grades", "four images", "even grades"])
def test_an_interval_of_a_difference_holds_the_truth(kind: str, count: int, p: float) -> None:
    """In 93-97 % of runs, where what differs is as much as four prompts of all or nothing. Where less is, most runs are
    alike: one interval holds the truth in all of them, another in hardly any (Brown, Cai and DasGupta 2001). There the
    bound is 93 % alone."""
    runs = 200
    rng, held, differing = np.random.default_rng([count, round(100 * p), len(kind)]), 0, 0.0
    for _ in range(runs):
        if kind == "even grades":
            given = 0.02 + rng.normal(0, 0.1, count)
        else:
            first, second = pair_of(kind, rng, p, 0.02, count)
            given = (first - second).mean(1)
        up, down = given.clip(0).mean(), (-given).clip(0).mean()
        low, high = score_interval(up, down, given.var(ddof=1) / count, 1 / count, count - 1)
        held += low <= 0.02 <= high
        differing += np.abs(given).sum() / runs
    slack = 2.5 * math.sqrt(0.95 * 0.05 / runs)
    most = 0.97 if differing >= 4 or kind == "even grades" else 1.0
    assert 0.93 - slack <= held / runs <= most + slack, held / runs


def test_equal_models_seldom_differ_significantly() -> None:
    rng = np.random.default_rng(13)
    told = 0
    for _ in range(120):
        first, second = pair_of("four images", rng, 0.8, 0.0, 20)
        told += (compare(measured("a", first.ravel(), 4), measured("b", second.ravel(), 4)).p or 1) < 0.05
    assert told / 120 < 0.1


# ---- rank groups


def test_models_that_cannot_be_told_apart_share_a_letter() -> None:
    rng = np.random.default_rng(14)
    base = rng.random(400) * 0.6 + 0.2
    column = [
        measured(name, np.clip(base + shift + rng.normal(0, 0.05, 400), 0, 1))
        for name, shift in (("low", -0.1), ("top", 0.1), ("next", 0.099), ("mid", 0.05))
    ]
    assert rank_groups(column) == ["c", "a", "a", "b"]
    assert rank_groups([measured("a", [1.0] * 20), measured("b", [1.0] * 20)]) == ["a", "a"]
    assert rank_groups([Measured("a", Metric(1.0, 5)), Measured("b", Metric(0.5, 5))]) == ["", ""]


@pytest.mark.parametrize(
    ("count", "told", "expected"),
    [
        (3, [], [{0, 1, 2}]),
        (3, [(0, 2)], [{0, 1}, {1, 2}]),
        (4, [(0, 2), (0, 3), (1, 3)], [{0, 1}, {1, 2}, {2, 3}]),
        (3, [(0, 1), (0, 2), (1, 2)], [{0}, {1}, {2}]),
        (4, [(0, 1), (2, 3)], [{0, 2}, {0, 3}, {1, 2}, {1, 3}]),
    ],
)
def test_letters_are_the_largest_groups(
    count: int, told: list[tuple[int, int]], expected: list[set[int]]
) -> None:
    assert sorted(map(sorted, compact_groups(count, told))) == sorted(map(sorted, expected))


def test_groups_are_those_of_the_test_of_all_pairs() -> None:
    """Grades and right-or-wrong scores; few prompts, different prompts, noise, and no items."""
    rng = np.random.default_rng(20)
    for prompts, count in ((12, 6), (40, 12)):
        base = rng.random(prompts)
        grades = np.clip(base + rng.normal(0, 0.1, (count, prompts)) - 0.04 * np.arange(count)[:, None], 0, 1)
        column = [measured(f"m{n}", own[: prompts - n % 3]) for n, own in enumerate(grades)]
        column[1] = silent(column[1])
        column[2] = column[2]._replace(noise=0.05)
        for one in (column, [measured(f"m{n}", own > 0.5) for n, own in enumerate(grades)]):
            pairs = combinations(range(count), 2)
            told = {pair for pair, found in zip(pairs, compare_all(one), strict=True) if found.is_significant}
            assert {*(significant_pairs(one) or ())} == told
            assert told or prompts == 12
    assert significant_pairs([Measured("a", Metric(1.0, 5)), Measured("b", Metric(0.5, 5))]) is None


# ---- power


def test_the_smallest_difference_has_a_power_of_80_percent() -> None:
    rng = np.random.default_rng(15)
    a = rng.beta(5, 3, 250)
    b = np.clip(a + rng.normal(0, 0.1, 250), 0, 1)
    power = power_of(measured("a", a), measured("b", b))
    assert power is not None and power.paired
    effect = power.smallest / (a - b).std(ddof=1) * math.sqrt(250)
    critical = stats.t.ppf(0.975, 249)
    assert stats.nct.sf(critical, 249, effect) + stats.nct.cdf(-critical, 249, effect) == pytest.approx(
        0.8, abs=1e-6
    )
    assert smallest_difference(measured("a", a), measured("b", b)) == pytest.approx(power.smallest, rel=1e-3)
    # a test of what the judge alone makes, which has half the variance in each
    noisy = measured("a", a)._replace(noise=0.1)
    of_noise = (1.95996 + 0.84162) * math.sqrt(2) * 0.1
    assert smallest_difference(noisy, measured("b", b)) == pytest.approx(of_noise, rel=1e-3)
    # as many as there are show the smallest difference, and four times as many half of it
    assert power.images_for(power.smallest) == pytest.approx(250, abs=1)
    assert power.images_for(power.smallest / 2) == pytest.approx(1000, abs=6)
    assert power.images_for(0.00001) > 10**8
    alone = power_of(measured("a", a))
    assert alone is not None and alone.spread == pytest.approx(a.std(ddof=1)) and not alone.paired
    assert alone.smallest > power.smallest
    with pytest.raises(ValueError, match="a difference of 0"):
        power.images_for(0)


def test_a_difference_of_that_size_is_told_in_four_of_five() -> None:
    rng = np.random.default_rng(17)

    def draw(shift: float) -> tuple[Measured, Measured]:
        a = rng.beta(5, 3, 100) * 0.8
        return measured("a", a + shift), measured("b", np.clip(a + rng.normal(0, 0.05, 100), 0, 1))

    power = power_of(*draw(0.0))
    assert power is not None
    told = sum((compare(*draw(power.smallest)).p or 1) < 0.05 for _ in range(60))
    assert 0.65 < told / 60 < 0.95
