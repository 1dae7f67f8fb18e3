"""How far a mean over prompts would move with other prompts of the same kind: bootstrap, standard library only."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Callable, Sequence
from operator import itemgetter

_RESAMPLES = 1000
_FEWEST_PROMPTS = 10

Part = tuple[float, float]
"""What one prompt gives to a mean Σ total / Σ weight: its total and its weight, such as the number of its units."""


def interval(parts: Sequence[Part], seed: int | str = 0) -> tuple[float, float] | None:
    """The 95 % percentile interval of Σ total / Σ weight, ``(low, high)``; None as :func:`percentiles` says.

    Each of ``parts`` is one prompt, whatever it is a sum of: units of a prompt are not independent (cluster
    bootstrap, Field & Welsh 2007). The order of ``parts`` decides the last digits, as the seed does.
    """
    return percentiles(resampled(parts, seed))


def resampled(parts: Sequence[Part], seed: int | str = 0) -> list[float] | None:
    """Σ total / Σ weight of prompts drawn anew with replacement, 1000 times.

    None for fewer than 10 prompts, of which that says little. ``seed`` tells strata apart whose means are added,
    draw by draw: equal seeds would draw alike in both.
    """
    if len(parts) < _FEWEST_PROMPTS:
        return None
    totals, weights = zip(*parts, strict=True)
    if len({total / weight for total, weight in parts}) == 1:
        # sums of different prompts would differ in their last bits
        return [totals[0] / weights[0]] * _RESAMPLES
    draws = _draws(len(parts), seed)
    if len(set(weights)) == 1:
        whole = len(parts) * weights[0]
        return [sum(draw(totals)) / whole for draw in draws]
    return [sum(draw(totals)) / sum(draw(weights)) for draw in draws]


def percentiles(means: Sequence[float] | None) -> tuple[float, float] | None:
    """The 95 % percentile interval of bootstrap ``means``; None where all are one, of which it would say ±0."""
    if means is None or min(means) == max(means):
        return None
    cuts = statistics.quantiles(means, n=40, method="inclusive")
    return cuts[0], cuts[-1]


# drawing takes longer than adding, and a benchmark has many means over the same number of prompts
@functools.lru_cache(maxsize=4)
def _draws(count: int, seed: int | str) -> list[Callable[[Sequence[float]], tuple[float, ...]]]:
    """Takers of ``count`` of as many values, with replacement."""
    rng, numbers = random.Random(seed), list(range(count))
    return [itemgetter(*rng.choices(numbers, k=count)) for _ in range(_RESAMPLES)]
