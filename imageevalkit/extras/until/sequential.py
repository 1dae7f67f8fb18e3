"""A sequential test of which of two models is better. The verdict stays valid however often it is computed.

Items come in a random order that is the same for both models. Each item has a difference x of the two models'
scores, from -1 to 1 of the scale. A bet against the hypothesis "the first model is not better" gains capital
with each item on which the first model is better. Under the hypothesis the expected capital never grows, so
it reaches 1 / α at any time with a probability of at most α (Ville 1939). Waudby-Smith and Ramdas define the
bets ("Estimating means of bounded random variables by betting", Journal of the Royal Statistical Society B
86, 2024). The capital is Π (1 + λ · (x - m)). Here it is the mean over a grid of λ, which needs no guess of
the size of the difference.

A verdict for either model needs two bets, each at α / 2, against these hypotheses:

* The mean over all items of this benchmark is not above 0. Items are drawn without replacement. After a sum S
  of n of N items, the expectation of the next item is at most m = -S / (N - n) (section 5 there). This bet
  bounds how often a verdict differs from the verdict of all items.
* The models are equal on prompts of this kind: m = 0. Of two equal models, one is ahead on the N prompts by
  chance; this bet avoids a verdict then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from imageevalkit.report.comparison import LEVEL

if TYPE_CHECKING:
    import numpy as np

_BETS = (0.01, 6.0, 20)  # first, last and number of λ; the best λ is near mean / variance of the differences
_AT_RISK = 0.95  # the largest share of the capital in a bet
_PRIOR = 20.0  # the weight, in items, of the assumption that groups are as large as their shares


class Verdict(NamedTuple):
    """The verdict on two models after ``items`` items; ``first_is_better`` is None if it is not settled.

    ``evidence`` is the smaller capital of the two bets. A capital of ``needed`` settles the verdict."""

    first_is_better: bool | None
    items: int
    evidence: float
    needed: float


def verdict(
    differences: np.ndarray,
    total: float,
    groups: np.ndarray | None = None,
    shares: Sequence[float] = (1.0,),
    tests: int = 1,
) -> Verdict:
    """Return the verdict on ``total`` items from the ``differences`` of the first items in random order.

    The tested mean is Σ share · mean of a group. By default all items are in group 0, which gives the plain
    mean. The sizes of groups are estimated from the items before. So the bounds are exact for the plain mean;
    with groups they depend on that estimate (measured by ``tests/unit/test_until.py``).

    ``differences`` are first - second on a scale of 1; NaN (a model has no score) counts as the worst case
    for either verdict. ``groups`` has the number of each item's group. ``tests`` verdicts share α = 0.05.
    Raises ValueError if a difference is beyond the scale.
    """
    import numpy as np

    if np.nanmax(np.abs(differences), initial=0.0) > 1 + 1e-9:
        raise ValueError("a score is beyond its scale")
    needed = math.log(2 * tests / LEVEL)
    kinds = np.zeros(len(differences), int) if groups is None else groups
    capitals = {
        sign: log_capital(sign * differences, total, kinds, np.asarray(shares, float)) for sign in (1, -1)
    }
    reached = {sign: np.flatnonzero(capital >= needed) for sign, capital in capitals.items()}
    # the first verdict is final: later items do not change it
    if settled := {int(places[0]): sign for sign, places in reached.items() if len(places)}:
        place = min(settled)
        sign = settled[place]
        evidence = math.exp(min(float(capitals[sign][place]), 700.0))
        return Verdict(sign > 0, place + 1, evidence, math.exp(needed))
    most = max((float(capital[-1]) for capital in capitals.values() if len(capital)), default=0.0)
    return Verdict(None, len(differences), math.exp(most), math.exp(needed))


def log_capital(given: np.ndarray, total: float, groups: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the log capital after each item of a bet that the mean of ``given`` is above 0.

    It is the smaller of the two bets' capitals, each taken at its maximum so far."""
    import numpy as np

    known = ~np.isnan(given)
    of_group = (groups[:, None] == np.arange(len(shares))) & known[:, None]
    # a bet on an item may use only the items before it, else the bound does not hold
    counts, sums = (
        _before(each) for each in (of_group.astype(float), of_group * np.where(known, given, 0)[:, None])
    )
    weights = (shares * (counts.sum(1, keepdims=True) + _PRIOR)) / (counts + _PRIOR * shares)
    bound = weights.max(1)
    x = np.where(known, weights[np.arange(len(given)), groups] * np.where(known, given, 0), -bound)
    lost = _before(~known[:, None])[:, 0]
    so_far = (weights * sums).sum(1) - bound * lost
    left: np.ndarray = total - np.arange(len(given))
    of_all = _log_mean_capital(x, -so_far / left, bound)
    of_kind = _log_mean_capital(x, np.zeros(len(given)), bound)
    found: np.ndarray = np.minimum(np.maximum.accumulate(of_all), np.maximum.accumulate(of_kind))
    return found


def _before(rows: np.ndarray) -> np.ndarray:
    """Return for each row the sum of all rows before it."""
    import numpy as np

    found: np.ndarray = np.cumsum(rows, axis=0) - rows
    return found


def _log_mean_capital(x: np.ndarray, mean: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return the log of the mean capital of all bets against ``mean``, the expectation of each item ``x``.

    Items are between -``bound`` and ``bound``."""
    import numpy as np

    risk = bound + mean  # the largest loss of a bet of λ = 1
    # at 0 or below, the items left cannot be as low as the hypothesis demands: it is refuted
    refuted = np.maximum.accumulate(risk <= 1e-12)
    most = _AT_RISK / np.where(refuted, 1.0, risk)
    low, high, count = _BETS
    bets = np.minimum(np.geomspace(low, high, count)[:, None], most)
    capital = np.cumsum(np.log1p(bets * np.where(refuted, 0.0, x - mean)), axis=1)
    found: np.ndarray = np.where(refuted, np.inf, np.logaddexp.reduce(capital, axis=0) - math.log(count))
    return found
