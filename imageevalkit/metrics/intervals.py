"""How far a mean over prompts would move with other prompts of the same kind: standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

_FEWEST_PROMPTS = 10
# of a mean on a scale of 1: less is what sums are off in their last bits
_NO_VARIANCE = 1e-18
_NORMAL = NormalDist().inv_cdf(0.975)

Part = tuple[float, float]
"""What one prompt gives to a mean Σ total / Σ weight: its total, and its weight above 0, such as a number of units."""


class Stratum(NamedTuple):
    """Prompts whose mean goes into a sum of means with ``share``."""

    share: float
    parts: Sequence[Part]


def interval_of_sum(strata: Sequence[Stratum], top: float = 1.0) -> tuple[float, float] | None:
    """The 95 % interval, ``(low, high)``, of Σ share · (Σ total / Σ weight) over ``strata`` drawn apart.

    The scale is from 0 to ``top``, the shares add up to 1. Each part is one prompt, whatever it is a sum of: units of a
    prompt are not independent. None where a stratum has fewer than 10, of which an interval says little.

    It is Wilson's score interval with the variance of the scores in the place of the binomial one, and Student's t: the
    means μ that a test with the variance φ · μ · (top - μ) does not refuse. φ is as the scores have it, 1 where each is
    all or nothing (of a ratio as in Cochran, "Sampling Techniques", section 6.4). Scores that are all one tell nothing
    of how they vary, and count as all or nothing. Unlike a percentile bootstrap it holds where few prompts are near an
    end of the scale, and their scores skewed. The variances of strata add up (Cochran, section 5.3), with
    Satterthwaite's degrees of freedom.
    """
    if any(len(stratum.parts) < _FEWEST_PROMPTS for stratum in strata):
        return None
    scores = [total / weight for stratum in strata for total, weight in stratum.parts]
    # a similarity below 0, or an edit distance beyond what changes a score, widens the scale
    bottom, top = min(0.0, *scores), max(top, *scores)
    values, middles, variances, terms = list[float](), list[float](), list[float](), list[float]()
    for share, parts in strata:
        value, middle, variance = _mean(parts, bottom, top - bottom)
        values.append(share * value)
        middles.append(share * middle)
        variances.append(share**2 * variance)
        terms.append(variances[-1] ** 2 / (len(parts) - 1))
    middle, variance = math.fsum(middles), math.fsum(variances)
    freedom = variance**2 / math.fsum(terms)
    low, high = _wilson(math.fsum(values), variance / (middle * (1 - middle)), freedom)
    return bottom + (top - bottom) * low, bottom + (top - bottom) * high


def _mean(parts: Sequence[Part], bottom: float, span: float) -> tuple[float, float, float]:
    """A mean on a scale of 1, the middle of its interval, and the variance of a mean in that middle."""
    whole = math.fsum(weight for _, weight in parts)
    # sums may be off in their last bits
    value = min(1.0, max(0.0, (math.fsum(total for total, _ in parts) / whole - bottom) / span))
    away = (((total - bottom * weight) / span - value * weight) / whole for total, weight in parts)
    variance = len(parts) / (len(parts) - 1) * math.fsum(one**2 for one in away)
    if variance > _NO_VARIANCE:
        spread = variance / (value * (1 - value))
    else:
        spread = math.fsum((weight / whole) ** 2 for _, weight in parts)
    # the middle is at no end of the scale, where all values are one and would vary in nothing
    low, high = _wilson(value, spread, len(parts) - 1)
    middle = (low + high) / 2
    return value, middle, spread * middle * (1 - middle)


def _wilson(value: float, spread: float, freedom: float) -> tuple[float, float]:
    """All μ with (value - μ)² ≤ t² · spread · μ · (1 - μ), within 0-1."""
    q = _student(freedom) ** 2 * spread
    root = math.sqrt(q * q + 4 * q * value * (1 - value))
    low, high = ((2 * value + q + sign * root) / (2 + 2 * q) for sign in (-1, 1))
    return max(0.0, min(value, low)), min(1.0, max(value, high))  # up to the last bit


def _student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, to 0.001 from 5 degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    z = _NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
