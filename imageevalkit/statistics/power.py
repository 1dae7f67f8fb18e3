"""What a benchmark can show: the smallest difference, and how many images a given one needs."""

from __future__ import annotations

import math
from typing import NamedTuple

from imageevalkit.statistics.comparison import LEVEL, Measured, compare, influence

POWER = 0.8
"""The chance that a difference of that size is told."""


class Power(NamedTuple):
    """What so many prompts can show, on the scale of the metric.

    ``smallest`` is the difference that a test with p < 0.05 tells in 80 of 100 such benchmarks; of two models on the
    same prompts where ``paired``, else of one model from a fixed value. ``prompts`` are the independent units that were
    there, ``images`` all of them; ``spread`` is the standard deviation of what one prompt gives.
    """

    smallest: float
    prompts: int
    images: int
    spread: float
    paired: bool

    def images_for(self, difference: float) -> int:
        """How many images, with as many of a prompt as there are, would show ``difference``. Raises ValueError: it
        is 0."""
        if not difference:
            raise ValueError("no number of images shows a difference of 0")
        if not self.spread:
            return self.images
        from statsmodels.stats.power import TTestPower

        effect = abs(difference) / self.spread
        # Student's t needs 2 or 3 more than the normal distribution; statsmodels finds no root far from its start
        normal = (2.8016 / effect) ** 2
        needed = normal if normal > 1e5 else 2.0
        if normal <= 1e5:
            power = TTestPower()
            needed = max(2.0, normal)
            while power.power(effect, needed, LEVEL) < POWER:
                needed += 1
        return math.ceil(math.ceil(needed) * self.images / self.prompts)


def power_of(first: Measured, second: Measured | None = None) -> Power | None:
    """By the scores of one model, or what two have in common; None where the files say neither what items
    give nor an interval, or of fewer than two.

    As of a t-test (statsmodels' ``TTestPower``), which the permutation test of :func:`compare` equals in power
    (Lehmann and Romano, "Testing Statistical Hypotheses", section 15.2).
    """
    if second is not None:
        found = compare(first, second)
        spread, prompts, paired = found.spread, found.n, found.paired
    else:
        given = influence(first)
        prompts, paired = len(given), False
        spread = (
            math.sqrt(prompts) * math.sqrt(prompts / (prompts - 1) * math.fsum(given**2))
            if prompts > 1
            else None
        )
    if spread is None or prompts < 2:
        return None
    from statsmodels.stats.power import TTestPower

    effect = TTestPower().solve_power(nobs=prompts, alpha=LEVEL, power=POWER)
    parts = first.metric.parts
    per_prompt = len({part.item for part in parts}) / len({part.unit for part in parts}) if parts else 1.0
    return Power(float(effect) * spread, prompts, round(prompts * per_prompt), spread, paired)


_NORMAL = 1.959963984540054, 0.8416212335729143  # quantiles of the normal distribution for LEVEL and POWER
_FEWEST = 30


def smallest_difference(first: Measured, second: Measured) -> float | None:
    """``smallest`` of :func:`power_of` to 0.1 %, and not below what the judge's noise hides, in a thousandth of the
    time that it takes to load statsmodels; None too of fewer than 30 prompts.

    By the normal distribution, with half the square of its quantile for Student's t (Guenther 1981, The American
    Statistician 35).
    """
    found = compare(first, second)
    if found.spread is None or found.n < _FEWEST:
        return None
    level, power = _NORMAL
    by_items = found.spread / math.sqrt(found.n - level**2 / 2)
    return (level + power) * max(by_items, found.noise)
