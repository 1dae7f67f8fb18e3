"""Which of two models is better, told as soon as the items so far settle it, however often one looks.

Items come in a random order that is the same for both models. Of each it is known how much more the first model got
for it than the second, from -1 to 1 of the scale. A bet on "the first is not better" gains with each item where it is;
under that hypothesis nobody's capital is ever expected to grow, so that it reaches 1 / α at any time with a probability
of at most α (Ville 1939). Bets are those of Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting" (Journal of the Royal Statistical Society B 86, 2024): capital Π (1 + λ · (x - m)), here the mean over a grid
of λ, which needs no guess of how far the models differ.

A verdict needs two such bets, each at α / 2 for either model:

* that the mean over all items of this benchmark is not above 0: items are drawn without replacement, so that after a
  sum S of n of N items the next one is expected at m = -S / (N - n) at most (section 5 there). It bounds how often
  a verdict is another than that of a run of all items.
* that the models are equal on prompts of this kind: m = 0. Of equal models one is ahead on the N prompts there are, by
  chance; that is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from imageevalkit.statistics.comparison import LEVEL

if TYPE_CHECKING:
    import numpy as np

_BETS = (0.01, 6.0, 20)  # λ, from and to, and how many; the best is near mean / variance of the differences
_AT_RISK = 0.95  # of the capital, at most
_PRIOR = 20.0  # items' worth of belief that groups are as large as their shares


class Verdict(NamedTuple):
    """Whether it is settled which of two is better: ``first_is_better`` after so many ``items`` of the order; None: it
    is not. ``evidence`` is how far it has come, where ``needed`` settles it: the smaller capital of both bets."""

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
    """What the ``differences`` (first - second, of a scale of 1) of the first items of the order say of all ``total``.

    The mean that is tested is Σ share · mean of a group; ``groups`` (the number of each item's) are all 0 by default,
    which is the plain mean. How large groups are is taken from the items before: exact bounds are those of the plain
    mean, with groups they hold as far as the first items show how large each is (``perf/sequential.py`` has figures).
    NaN is an item that one of the models has no score of: it counts as the worst that it may be, for either verdict.
    ``tests``: so many verdicts are asked for at once, and α = 0.05 is of all together.

    Raises ValueError: a difference is beyond the scale.
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
    # the first one stands, whatever comes after it
    if settled := {int(places[0]): sign for sign, places in reached.items() if len(places)}:
        place = min(settled)
        sign = settled[place]
        evidence = math.exp(min(float(capitals[sign][place]), 700.0))
        return Verdict(sign > 0, place + 1, evidence, math.exp(needed))
    most = max((float(capital[-1]) for capital in capitals.values() if len(capital)), default=0.0)
    return Verdict(None, len(differences), math.exp(most), math.exp(needed))


def log_capital(given: np.ndarray, total: float, groups: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The logarithm of the capital of who bets that the mean of what is ``given`` is above 0, after each item: of the
    smaller of both bets, and of each the most so far."""
    import numpy as np

    known = ~np.isnan(given)
    of_group = (groups[:, None] == np.arange(len(shares))) & known[:, None]
    # of an item only what is known before it
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
    """The sums of all rows before each."""
    import numpy as np

    found: np.ndarray = np.cumsum(rows, axis=0) - rows
    return found


def _log_mean_capital(x: np.ndarray, mean: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Of bets against a ``mean``, of each item given those before; items are from -``bound`` to ``bound``."""
    import numpy as np

    risk = bound + mean  # of a bet of 1
    # below 0 all that is left cannot be as bad as the hypothesis has it
    refuted = np.maximum.accumulate(risk <= 1e-12)
    most = _AT_RISK / np.where(refuted, 1.0, risk)
    low, high, count = _BETS
    bets = np.minimum(np.geomspace(low, high, count)[:, None], most)
    capital = np.cumsum(np.log1p(bets * np.where(refuted, 0.0, x - mean)), axis=1)
    found: np.ndarray = np.where(refuted, np.inf, np.logaddexp.reduce(capital, axis=0) - math.log(count))
    return found
