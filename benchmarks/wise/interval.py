"""How far a mean over prompts would move with other prompts of the same categories."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

_RESAMPLES = 1000
_FEWEST_PROMPTS = 10


def resampled_means(values: Sequence[float], seed: str) -> list[float] | None:
    """Means of ``values`` drawn anew with replacement; None for fewer than 10, of which that says little.

    ``seed`` tells groups apart whose means are added: equal seeds would draw alike in both. The same ``values``
    in any order give the same means.
    """
    if len(values) < _FEWEST_PROMPTS:
        return None
    drawn_from, rng = sorted(values), random.Random(seed)
    return [statistics.fmean(rng.choices(drawn_from, k=len(drawn_from))) for _ in range(_RESAMPLES)]


def interval(means: Sequence[float] | None) -> tuple[float, float] | None:
    """The 95 % percentile interval of bootstrap ``means``; None where all are one, of which it would say ±0."""
    if means is None or min(means) == max(means):
        return None
    cuts = statistics.quantiles(means, n=40, method="inclusive")
    return cuts[0], cuts[-1]
