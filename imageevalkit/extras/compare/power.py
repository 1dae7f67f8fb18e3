"""Power of a benchmark: the smallest difference that it detects, and the images that a difference needs."""

from __future__ import annotations

import math
from typing import NamedTuple

from imageevalkit.report.comparison import LEVEL, POWER, Measured, compare, influence


class Power(NamedTuple):
    """The power of a test on ``prompts`` prompts with ``images`` images, on the scale of the metric.

    ``smallest`` is the difference that a test with p < 0.05 detects with a probability of 80 %. If
    ``paired``, the difference is between two models on the same prompts, else between one model and a fixed
    value. Prompts are independent units; ``spread`` is the standard deviation of one prompt's contribution.
    """

    smallest: float
    prompts: int
    images: int
    spread: float
    paired: bool

    def images_for(self, difference: float) -> int:
        """Returns the number of images that detects ``difference``, with as many images per prompt as now.

        Raises ValueError if ``difference`` is 0."""
        if not difference:
            raise ValueError("no number of images shows a difference of 0")
        if not self.spread:
            return self.images
        from statsmodels.stats.power import TTestPower

        effect = abs(difference) / self.spread
        # statsmodels finds no root far from its start. Student's t needs 2 or 3 more than the normal one.
        normal = (2.8016 / effect) ** 2
        needed = normal if normal > 1e5 else 2.0
        if normal <= 1e5:
            power = TTestPower()
            needed = max(2.0, normal)
            while power.power(effect, needed, LEVEL) < POWER:
                needed += 1
        return math.ceil(math.ceil(needed) * self.images / self.prompts)


def power_of(first: Measured, second: Measured | None = None) -> Power | None:
    """Returns the power by the scores of one model, or by the differences of two models.

    Returns None if there are fewer than two prompts, or if the files have neither item values nor an
    interval. A t-test (statsmodels' ``TTestPower``) has the same power as the permutation test of
    :func:`compare` (Lehmann and Romano, "Testing Statistical Hypotheses", section 15.2).
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
