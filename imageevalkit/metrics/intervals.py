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


def interval(parts: Sequence[Part], top: float = 1.0) -> tuple[float, float] | None:
    """The 95 % interval of Σ total / Σ weight, ``(low, high)``, on a scale from 0 to ``top``.

    Each of ``parts`` is one prompt, whatever it is a sum of: units of a prompt are not independent. None for fewer than
    10 prompts, of which an interval says little.

    It is Wilson's score interval with the variance of the scores in the place of the binomial one, and Student's t: the
    means μ that a test with the variance φ · μ · (top - μ) does not refuse. φ is as the scores have it, 1 where each is
    all or nothing (of a ratio as in Cochran, "Sampling Techniques", section 6.4). Scores that are all one tell nothing
    of how they vary, and count as all or nothing. Unlike a percentile bootstrap it holds where few prompts are near an
    end of the scale, and their scores skewed.
    """
    return interval_of_sum([Stratum(1.0, parts)], top)


def interval_of_sum(strata: Sequence[Stratum], top: float = 1.0) -> tuple[float, float] | None:
    """The :func:`interval` of Σ share · mean over ``strata`` drawn apart, with shares that add up to 1.

    None where one of them has fewer than 10 prompts. The variances of the means add up (Cochran, section 5.3), with
    Satterthwaite's degrees of freedom.
    """
    if any(len(stratum.parts) < _FEWEST_PROMPTS for stratum in strata):
        return None
    scores = [total / weight for stratum in strata for total, weight in stratum.parts]
    # a similarity below 0, or an edit distance beyond what changes a score, widens the scale
    bottom, top = min(0.0, *scores), max(top, *scores)
    means = [_mean(stratum.parts, bottom, top - bottom) for stratum in strata]
    value = math.fsum(stratum.share * mean.value for stratum, mean in zip(strata, means, strict=True))
    middle = math.fsum(stratum.share * mean.middle for stratum, mean in zip(strata, means, strict=True))
    variances = [stratum.share**2 * mean.variance for stratum, mean in zip(strata, means, strict=True)]
    variance = math.fsum(variances)
    freedom = variance**2 / math.fsum(
        v**2 / (len(s.parts) - 1) for v, s in zip(variances, strata, strict=True)
    )
    low, high = _wilson(value, variance / (middle * (1 - middle)), freedom)
    return bottom + (top - bottom) * low, bottom + (top - bottom) * high


class _Mean(NamedTuple):
    """A mean's ``value`` on a scale of 1, the ``middle`` of its interval, and the ``variance`` of such a mean.

    The middle is at no end of the scale, where all values are one and would vary in nothing.
    """

    value: float
    middle: float
    variance: float


def _mean(parts: Sequence[Part], bottom: float, span: float) -> _Mean:
    whole = math.fsum(weight for _, weight in parts)
    # sums may be off in their last bits
    value = min(1.0, max(0.0, (math.fsum(total for total, _ in parts) / whole - bottom) / span))
    away = (((total - bottom * weight) / span - value * weight) / whole for total, weight in parts)
    variance = len(parts) / (len(parts) - 1) * math.fsum(one**2 for one in away)
    if variance > _NO_VARIANCE:
        spread = variance / (value * (1 - value))
    else:
        spread = math.fsum((weight / whole) ** 2 for _, weight in parts)
    low, high = _wilson(value, spread, len(parts) - 1)
    middle = (low + high) / 2
    return _Mean(value, middle, spread * middle * (1 - middle))


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
