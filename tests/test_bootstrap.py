"""Intervals of means over prompts."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from imageevalkit.bootstrap import interval, percentiles, resampled


def noise(count: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.5, 0.2) for _ in range(count)]


def test_interval_of_a_mean_is_that_of_the_closed_form() -> None:
    values = noise(400)
    low, high = interval([(value, 1) for value in values]) or (0.0, 0.0)
    assert low < statistics.fmean(values) < high
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    # twice the units in each prompt say nothing new
    assert interval([(2 * value, 2) for value in values]) == pytest.approx((low, high))


def test_interval_of_a_ratio_of_sums_is_that_of_the_closed_form() -> None:
    parts = [(value * weight, weight) for weight, value in enumerate(noise(300), start=5)]
    total, weight = map(sum, zip(*parts, strict=True))
    low, high = interval(parts) or (0.0, 0.0)
    assert low < total / weight < high
    residuals = sum((t - total / weight * w) ** 2 for t, w in parts) / (len(parts) - 1) / len(parts)
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(residuals) * len(parts) / weight, rel=0.1)


def test_strata_with_their_own_seeds_add_up_and_with_equal_seeds_would_not() -> None:
    strata = [[(value, 1) for value in noise(200, seed)] for seed in range(2)]
    width = math.sqrt(sum(statistics.variance(t for t, _ in s) / len(s) for s in strata))

    def of_sum(*seeds: str) -> float:
        drawn = [resampled(sorted(s), seed) or [] for s, seed in zip(strata, seeds, strict=True)]
        low, high = percentiles([sum(draw) for draw in zip(*drawn, strict=True)]) or (0.0, 0.0)
        return high - low

    assert of_sum("a", "b") == pytest.approx(2 * 1.96 * width, rel=0.1)
    assert of_sum("a", "a") > 2 * 1.96 * width * 1.2


def test_few_or_unanimous_prompts_have_no_interval() -> None:
    assert interval([(k / 10, 1) for k in range(9)]) is None
    assert interval([(k / 10, 1) for k in range(10)]) is not None
    assert interval([(1.0, 1)] * 50) is None
    # sums of 0.1 differ in their last bits
    assert interval([(0.1 * k, k) for k in (1, 2, 4, 8)] * 10) is None
    assert percentiles(None) is None


def test_a_seed_gives_the_same_interval_again_and_another_seed_another() -> None:
    parts = [(value, 1) for value in noise(50)]
    assert interval(parts) == interval(parts) != interval(parts, 1)
    assert interval(parts, 1) == pytest.approx(interval(parts), abs=0.02)
