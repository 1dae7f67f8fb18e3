"""Intervals of means over prompts."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from imageevalkit.metrics.intervals import Part, Stratum, interval, interval_of_sum

Draw = Callable[[random.Random], float]


def noise(count: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.5, 0.1) for _ in range(count)]


def bounds(parts: Sequence[Part], top: float = 1.0) -> tuple[float, float]:
    found = interval(parts, top)
    assert found
    return found


def share_covered(draw: Draw, mean: float, prompts: int, runs: int = 3000) -> float:
    """Of so many runs of ``prompts`` scores, how many intervals hold the ``mean``."""
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
    for prompts in (10, 16, 24):
        assert share_covered(draw, mean, prompts) > 0.91, f"{prompts} prompts"
    covered = statistics.fmean(share_covered(draw, mean, prompts) for prompts in (10, 16, 24))
    assert covered > 0.925
    # the same at the floor
    low, high = bounds([(score, 1) for score in (0.9, 0.95, *[1.0] * 14)])
    assert bounds([(1 - score, 1) for score in (0.9, 0.95, *[1.0] * 14)]) == pytest.approx(
        (1 - high, 1 - low)
    )


def test_all_or_nothing_is_wilsons_interval_with_students_t() -> None:
    # Wilson 1927: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    for count, right, t in ((10, 10, 2.2622), (24, 23, 2.0687), (16, 4, 2.1314)):
        p, n = right / count, count if right == count else count - 1  # the variance has n - 1
        middle, half = p + t * t / (2 * n), t * math.sqrt(p * (1 - p) / n + t * t / (4 * n * n))
        expected = [(middle + sign * half) / (1 + t * t / n) for sign in (-1, 1)]
        assert bounds([(float(k < right), 1) for k in range(count)]) == pytest.approx(expected, abs=2e-4)


def test_scores_that_are_all_one_tell_nothing_of_how_they_vary() -> None:
    low, high = bounds([(1.0, 1)] * 24)
    assert (low, high) == (pytest.approx(0.849, abs=0.001), 1.0)
    assert bounds([(0.0, 1)] * 24) == (0.0, pytest.approx(1 - low))
    # sums of 0.1 differ in their last bits
    low, high = bounds([(0.1 * k, k) for k in (1, 2, 4, 8)] * 10)
    assert low < 0.06 and high > 0.15


def test_interval_of_a_mean_is_that_of_the_closed_form() -> None:
    values = noise(400)
    low, high = bounds([(value, 1) for value in values])
    assert low < statistics.fmean(values) < high
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert high - low == pytest.approx(2 * 1.966 * error, rel=0.001)
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
    assert high - low == pytest.approx(2 * 1.968 * error, rel=0.001)
    shuffled = random.Random(1).sample(parts, len(parts))
    assert interval(shuffled) == (low, high), "to the last digit"


def test_strata_add_up_as_their_variances_do() -> None:
    strata = [Stratum(share, [(v, 1) for v in noise(200, seed)]) for seed, share in enumerate((0.7, 0.3))]
    error = math.sqrt(
        sum(s.share**2 * statistics.variance(t for t, _ in s.parts) / len(s.parts) for s in strata)
    )
    low, high = interval_of_sum(strata) or (0.0, 0.0)
    assert high - low == pytest.approx(2 * 1.968 * error, rel=0.003)
    whole = [(value, 1.0) for value in noise(200)]
    assert interval_of_sum([Stratum(1.0, whole)]) == interval(whole)


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
