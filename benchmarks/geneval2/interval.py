"""How far a mean over prompts would move with other prompts."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from benchmarks.geneval2.analysis import Part

_RESAMPLES = 1000
_FEWEST_PROMPTS = 10


def interval(parts: Sequence[Part], seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile interval of Σ total / Σ weight by bootstrap, ``(low, high)``.

    Prompts are drawn, not atoms: the atoms of one image are not independent. None for fewer than 10 prompts, of
    which resampling says little, and where every prompt has the same mean, of which it would say ±0. The same
    ``parts`` in any order give the same interval.
    """
    if len(parts) < _FEWEST_PROMPTS or len({part.total / part.weight for part in parts}) == 1:
        return None
    drawn_from = sorted(parts)
    rng = random.Random(seed)
    means = []
    for _ in range(_RESAMPLES):
        totals, weights = zip(*rng.choices(drawn_from, k=len(drawn_from)), strict=True)
        means.append(sum(totals) / sum(weights))
    cuts = statistics.quantiles(means, n=40, method="inclusive")
    return cuts[0], cuts[-1]
