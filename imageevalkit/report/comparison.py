"""Compares two models on the same prompts: the difference, its interval, and its p.

The tests are paired by prompt (a cluster: all images of the prompt), so the difficulty of the prompts cancels
out. If the files lack the contribution of each prompt, two means with their intervals are compared as on
different prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from imageevalkit.metrics import FEWEST_PROMPTS, drawn_to_all_or_nothing, student
from imageevalkit.store.results import Metric

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.05
"""A difference with a smaller p is significant. Intervals have the confidence 1 - LEVEL."""
POWER = 0.8
"""The probability that a test detects the smallest difference of a benchmark."""
_FEWEST_FOR_POWER = 30
_FLIPS = 9_999
_AT_ONCE = 500  # flips: 500 × 5,000 prompts are 20 MB
_PAIRS_AT_ONCE = 5_000
_NUMBERS_AT_ONCE = 4_000_000  # pairs × prompts: 32 MB
_LAST_BITS = 1e-9  # share of a sum's size: its rounding error
_CLEAR = 0.1  # flips stop when p is clearly above this value (Besag and Clifford 1991)
_SEED = 20_260_101
_NORMAL = NormalDist().inv_cdf(1 - LEVEL / 2)
_EXACT = 13  # up to so many differing prompts, all 2¹³ sign flips are counted
_NOTHING = 1e-12  # share of the scale: smaller differences are rounding errors


class Measured(NamedTuple):
    """A ``metric`` of one result, with its parts if known, under the ``name`` that a comparison shows.

    ``noise`` is the standard error of the value due to the judge's randomness alone, on the metric's scale.
    If it is None (not measured), a comparison uses the other result's noise, scaled to this number of items.
    """

    name: str
    metric: Metric
    noise: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The ``difference`` ``first`` - ``second`` on the metric's scale, over the ``n`` prompts that both have.

    ``interval`` is its 95 % interval. ``p`` is the probability of a difference at least as large between
    equal models. Both are None if they are unknown. ``adjusted`` is p by Holm's method over all pairs of the
    comparison. ``test`` describes the test in words. ``spread`` is the standard deviation of one prompt's
    contribution, × ``n``: its square / n is the variance of the difference. ``noise`` is the standard error
    of the difference due to the judge's randomness alone; 0 if there is none or it is not known.
    """

    first: str
    second: str
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    n: int
    test: str
    paired: bool
    spread: float | None = None
    adjusted: float | None = None
    noise: float = 0.0

    @property
    def is_significant(self) -> bool:
        """Whether the two models differ significantly. All tables, pages and files use this property."""
        p = self.p if self.adjusted is None else self.adjusted
        return p is not None and p < LEVEL

    @property
    def within_noise(self) -> bool:
        """Whether the judge's noise alone explains the difference, even if the images were equal."""
        return self.noise > 0 and math.erfc(abs(self.difference) / self.noise / math.sqrt(2)) >= LEVEL


def compare(first: Measured, second: Measured) -> Comparison:
    """Compares two models by one metric. Raises ValueError if a model has no value.

    ``p`` comes from a permutation test that swaps the two models prompt by prompt. It flips the sign of each
    prompt's contribution to the difference (Fisher 1935). If few prompts differ, all flips are counted, else
    up to 9,999 random ones (counted as in Phipson and Smyth 2010). If no random flip is as extreme, p comes
    from a paired t-test. For means of right or wrong, McNemar's exact test gives the same p. A ratio of sums
    is linearized in its prompts about the mean of both models (Cochran, "Sampling Techniques", section 6.4).

    The variation between prompts already contains the judge's noise, because each prompt has its own replies.
    Adding the noise would count it twice, and replies that two results share cancel out. But the prompts may
    show too little noise if few differ or if they share replies. So the standard error of a difference d is
    at least N = √(noise² + noise²), the noise alone. p is at least 2 · Φ(-d / N), and the interval is at
    least as wide.

    The interval is Tango's score interval (1998, Statistics in Medicine 17, 891-908) of ups and downs. Its
    variance is the variance of the prompts' contributions, not of right or wrong, as in
    :func:`~imageevalkit.metrics.interval_of_sum`. For two means without prompts it combines their two
    intervals (Newcombe 1998, Statistics in Medicine 17, 873-890, method 10).
    """
    [found] = compare_all([first, second])
    return replace(found, adjusted=None)


def compare_all(column: Sequence[Measured], with_intervals: bool = True) -> list[Comparison]:
    """Returns :func:`compare` of each pair of ``column`` in order, with ``adjusted`` by Holm's method over all pairs.

    Raises ValueError if a model has no value."""
    tests = _Tests.of(column)
    pairs = combinations(column, 2)
    return adjust([_comparison(tests, n, *pair, with_intervals) for n, pair in enumerate(pairs)])


def significant_pairs(column: Sequence[Measured]) -> list[tuple[int, int]] | None:
    """Returns the pairs of ``column``, as indices, that differ significantly; None if no pair can be tested.

    The pairs have :attr:`Comparison.is_significant` in :func:`compare_all`. This function is faster, because it
    computes no intervals: 300 models have 44,850 pairs. Raises ValueError if a model has no value.
    """
    if len(column) < 2 and all(one.metric.value is not None for one in column):
        return None  # importing numpy and scipy would take a third of the time of a report on a single model
    import numpy as np

    tests = _Tests.of(column)
    if np.isnan(tests.p).all():
        return None
    significant = _holm(np.maximum(tests.p, tests.by_noise)) < LEVEL
    return list(zip(tests.first[significant].tolist(), tests.second[significant].tolist(), strict=True))


def adjust(found: Sequence[Comparison]) -> list[Comparison]:
    """Returns ``found`` with ``adjusted``: p by Holm's method over all of them (Holm 1979)."""
    import numpy as np

    adjusted = _holm(np.array([math.nan if one.p is None else one.p for one in found]))
    return [
        one if one.p is None else replace(one, adjusted=p)
        for one, p in zip(found, adjusted.tolist(), strict=True)
    ]


def _holm(p: np.ndarray) -> np.ndarray:
    """Returns ``p`` adjusted by Holm's method. NaN (a pair without a test) does not count and stays NaN."""
    import numpy as np

    # not statsmodels' multipletests: it runs a garbage collection, half a second per call in a report
    adjusted, known = p.copy(), np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(order), 0, -1) * p[order]))
    return adjusted


def influence(one: Measured) -> np.ndarray:
    """Returns each prompt's contribution to the deviation of the metric from its value.

    The array is empty if the files have no parts."""
    import numpy as np

    [table] = _tables([one])
    if table is None:
        return np.zeros(0)
    table = table.only(table.weight > 0)
    found: np.ndarray = table.away(table.means())[table.weight.any(0)]
    return found


def smallest_difference(first: Measured, second: Measured) -> float | None:
    """Returns the smallest difference that a test detects with a probability of :data:`POWER`, to 0.1 %.

    The value is at least the difference that the judge's noise hides; None if unknown or for fewer than 30
    prompts. The normal distribution avoids the slow import of statsmodels. Half the square of its quantile is
    the correction for Student's t (Guenther 1981, The American Statistician 35).
    """
    found = compare(first, second)
    if found.spread is None or found.n < _FEWEST_FOR_POWER:
        return None
    by_items = found.spread / math.sqrt(found.n - _NORMAL**2 / 2)
    return (_NORMAL + NormalDist().inv_cdf(POWER)) * max(by_items, found.noise)


# ---- contributions of prompts


class _Table(NamedTuple):
    """Totals and weights of a metric, groups × prompts, and the share of each group.

    Weight 0 means that the group has no such prompt."""

    total: np.ndarray
    weight: np.ndarray
    shares: np.ndarray

    def only(self, kept: np.ndarray) -> _Table:
        """Returns the table of the prompts ``kept`` in each group, without groups that are then empty."""
        rows = kept.any(1)
        return _Table((self.total * kept)[rows], (self.weight * kept)[rows], self.shares[rows])

    def means(self) -> np.ndarray:
        """Returns the mean of each group."""
        found: np.ndarray = self.total.sum(1) / self.weight.sum(1)
        return found

    def away(self, means: np.ndarray) -> np.ndarray:
        """Returns each prompt's contribution to Σ share · (mean - ``means``)."""
        found: np.ndarray = self.shares @ self.away_in_groups(means)
        return found

    def away_in_groups(self, means: np.ndarray) -> np.ndarray:
        """Returns each prompt's contribution to (mean - ``means``) of each group, groups × prompts."""
        found: np.ndarray = (self.total - means[:, None] * self.weight) / self.weight.sum(1)[:, None]
        return found

    def portions(self) -> np.ndarray:
        """Returns the weight of each prompt in the metric; the weights add up to the sum of the shares."""
        found: np.ndarray = self.shares @ (self.weight / self.weight.sum(1)[:, None])
        return found


class _Tests(NamedTuple):
    """The tests of all pairs of a column, in the order of ``itertools.combinations``.

    | field | for each pair |
    |---|---|
    | ``first``, ``second`` | the indices of the models |
    | ``p`` | NaN if there is no test |
    | ``noise`` | the standard error of the difference due to the judge's noise alone; 0 if unknown |
    | ``by_noise`` | the probability of the difference by noise alone, 2 · Φ(-difference / noise); 0 without |
    | ``paired``, ``n`` | whether both models have parts with common prompts; the number of common prompts |
    | ``whole`` | both models have the same prompts |
    | ``binary`` | all scores are right or wrong |
    | ``up``, ``down`` | the numbers of prompts on which the first and the second model is better |
    | ``flips``, ``reached`` | the number of random sign flips, and of flips as extreme as the data |
    | ``why`` | by number of the pair, why it is not paired |

    ``tables`` has the table of each model.
    """

    first: np.ndarray
    second: np.ndarray
    difference: np.ndarray
    p: np.ndarray
    noise: np.ndarray
    by_noise: np.ndarray
    n: np.ndarray
    paired: np.ndarray
    whole: np.ndarray
    binary: np.ndarray
    up: np.ndarray
    down: np.ndarray
    flips: np.ndarray
    reached: np.ndarray
    why: dict[int, str]
    tables: list[_Table | None]

    @classmethod
    def of(cls, column: Sequence[Measured]) -> _Tests:
        """Tests all pairs of ``column``. Raises ValueError if a model has no value."""
        import numpy as np

        for one in column:
            if one.metric.value is None:
                raise ValueError(f"{one.name} has no value to compare")
        tables = _tables(column)
        first, second = np.array([*combinations(range(len(column)), 2)], int).reshape(-1, 2).T
        values, counts = (
            np.array([getattr(one.metric, name) for one in column], float) for name in ("value", "n")
        )
        found = cls(
            first,
            second,
            difference=values[first] - values[second],
            p=np.full(len(first), math.nan),
            noise=_noise_of_pairs(column, first, second),
            by_noise=np.zeros(len(first)),
            n=np.minimum(counts[first], counts[second]).astype(int),
            **{name: np.zeros(len(first), bool) for name in ("paired", "whole", "binary")},
            **{name: np.zeros(len(first), int) for name in ("up", "down", "flips", "reached")},
            why={},
            tables=tables,
        )
        found._test_prompts(column)
        found._test_means(column)
        noisy = found.noise > 0
        if noisy.any():
            from scipy.special import erfc

            away = np.abs(found.difference[noisy]) / found.noise[noisy]
            found.by_noise[noisy] = erfc(away / math.sqrt(2))
        return found

    def _test_prompts(self, column: Sequence[Measured]) -> None:
        """Tests the pairs with common prompts, a few thousand at once to bound the memory."""
        import numpy as np

        waiting, size = list[tuple[np.ndarray, np.ndarray]](), 0
        for one, mine in enumerate(self.tables):
            start = one * len(column) - one * (one + 1) // 2 - one - 1  # pair (one, other): start + other
            others = []
            for other in range(one + 1, len(column)):
                theirs = self.tables[other]
                if mine is None or theirs is None:
                    silent = [column[n].name for n in (one, other) if self.tables[n] is None]
                    self.why[start + other] = f"the files of {' and '.join(silent)} have no values of items"
                elif column[one].metric.shares != column[other].metric.shares:
                    self.why[start + other] = "their groups weigh differently"
                else:
                    others.append(other)
            if mine is None:
                continue
            at_once = max(1, _NUMBERS_AT_ONCE // mine.total.size)
            for n in range(0, len(others), at_once):
                some = others[n : n + at_once]
                given, in_common, whole, binary, counts = _given(
                    mine, [table for b in some if (table := self.tables[b])], column[one].metric.scale
                )
                places = start + np.array(some)
                self.paired[places], self.whole[places], self.binary[places] = in_common, whole, binary
                self.n[places] = np.where(in_common, counts, self.n[places])
                grouped = " in each group" if column[one].metric.shares else ""
                self.why.update(
                    dict.fromkeys(places[~in_common].tolist(), f"they have no prompts in common{grouped}")
                )
                waiting.append((places[in_common], given[in_common]))
                size += given.size
                if size > _NUMBERS_AT_ONCE:
                    self._test(waiting)
                    waiting, size = [], 0
        self._test(waiting)

    def _test(self, given: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """Tests pairs: ``given`` has numbers of pairs, and for each a row of the prompts' contributions."""
        import numpy as np

        if not given:
            return
        places, rows = (np.concatenate(parts) for parts in zip(*given, strict=True))
        self.difference[places] = rows.sum(1)
        self.up[places], self.down[places] = (rows > 0).sum(1), (rows < 0).sum(1)
        few = self.up[places] + self.down[places] <= _EXACT
        binary = self.binary[places]
        chosen = places[binary]
        self.p[chosen] = _mcnemar(self.up[chosen], self.down[chosen])
        chosen = places[~binary & ~few]
        self.p[chosen], self.flips[chosen], self.reached[chosen] = _by_flips(
            rows[~binary & ~few], self.n[chosen]
        )
        self.p[places[~binary & few]] = _exact(rows[~binary & few])

    def _test_means(self, column: Sequence[Measured]) -> None:
        """Tests all other pairs as two means of different prompts, from their intervals (Welch 1947)."""
        import numpy as np

        places = np.flatnonzero(~self.paired)
        if not len(places):
            return
        from scipy.stats import ttest_ind_from_stats

        spreads = np.array([_spread(one.metric) for one in column])
        first, second = self.first[places], self.second[places]
        known = (spreads[first] >= 0) & (spreads[second] >= 0) & (spreads[first] + spreads[second] > 0)
        places, first, second = places[known], first[known], second[known]
        values, counts = (
            np.array([getattr(one.metric, name) for one in column], float) for name in ("value", "n")
        )
        of_both = (of[n] for n in (first, second) for of in (values, spreads, counts))
        self.p[places] = ttest_ind_from_stats(*of_both, equal_var=False).pvalue


def _spread(metric: Metric) -> float:
    """Returns the standard deviation of one item, from the interval of the mean; NaN without one."""
    from scipy.stats import t

    if metric.interval is None or metric.n < 2:
        return math.nan
    low, high = metric.interval
    return float((high - low) / 2 / t.ppf(1 - LEVEL / 2, metric.n - 1) * math.sqrt(metric.n))


def _noise_of_pairs(column: Sequence[Measured], first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the standard error of each pair's difference due to the judge's noise alone; 0 if unknown."""
    import numpy as np

    own = np.array([math.nan if one.noise is None else one.noise for one in column])
    n = np.array([one.metric.n for one in column], float)
    if np.isnan(own).all():
        return np.zeros(len(first))
    with np.errstate(divide="ignore", invalid="ignore"):
        both = [
            np.where(np.isnan(own[a]), np.nan_to_num(own[b]) * np.sqrt(n[b] / n[a]), own[a]) * (n[a] > 0)
            for a, b in ((first, second), (second, first))
        ]
    found: np.ndarray = np.hypot(*np.nan_to_num(both, posinf=0.0))
    return found


def _tables(column: Sequence[Measured]) -> list[_Table | None]:
    """Returns the table of each model, or None without parts. All tables have the same prompts as columns."""
    import numpy as np

    # files of different versions name clusters differently: the first model with an item decides its cluster
    unit_of: dict[str, str] = {}
    units: dict[str, int] = {}
    groups: dict[str | None, int] = {}
    for one in column:
        for part in one.metric.parts:
            units.setdefault(unit_of.setdefault(part.item, part.unit), len(units))
            groups.setdefault(part.group, len(groups))
    shape = len(groups), len(units)
    tables: list[_Table | None] = []
    for one in column:
        if not one.metric.parts:
            tables.append(None)
            continue
        cells = [groups[part.group] * len(units) + units[unit_of[part.item]] for part in one.metric.parts]
        total, weight = (
            np.bincount(cells, given, len(groups) * len(units)).reshape(shape)
            for given in (
                [part.total for part in one.metric.parts],
                [part.weight for part in one.metric.parts],
            )
        )
        known = one.metric.shares or {}
        tables.append(
            _Table(total, weight, np.array([1.0 if g is None else known.get(g, 0.0) for g in groups]))
        )
    return tables


def _given(
    mine: _Table, others: Sequence[_Table], scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compares one model with each of ``others``, prompt by prompt.

    Returns:
        The contribution of each prompt to the difference, shape (others, prompts). Then, for each other
        model, whether each group has common prompts, both models have the same prompts, and all scores are
        right or wrong. Last, the number of common prompts.
    """
    import numpy as np

    total, weight = (np.stack([getattr(one, name) for one in others]) for name in ("total", "weight"))
    both = (mine.weight > 0) & (weight > 0)
    there = both.any(2)
    in_common = np.isclose((mine.shares * there).sum(1), 1.0, rtol=1e-9)
    my_sum, their_sum = ((one * both).sum(2) for one in (mine.total, total))
    my_weight, their_weight = ((one * both).sum(2) for one in (mine.weight, weight))
    with np.errstate(divide="ignore", invalid="ignore"):  # groups without common prompts divide by 0
        pooled = ((my_sum + their_sum) / (my_weight + their_weight))[:, :, None]
        away = (mine.total - pooled * mine.weight) / my_weight[:, :, None]
        away -= (total - pooled * weight) / their_weight[:, :, None]
    given = np.einsum("g,bgp->bp", mine.shares, np.where(both, away, 0.0))
    n = both.any(1).sum(1)
    given[np.abs(given) * n[:, None] <= _NOTHING * (scale or 1.0)] = 0.0
    odd = _is_no_right_or_wrong(mine.total, mine.weight, scale) | _is_no_right_or_wrong(total, weight, scale)
    binary = (there.sum(1) == 1) & ~(both & odd).any((1, 2))
    whole = ((mine.weight > 0) == (weight > 0)).all((1, 2))
    return given, in_common, whole, binary, n


def _is_no_right_or_wrong(total: np.ndarray, weight: np.ndarray, scale: float) -> np.ndarray:
    found: np.ndarray = ((total != 0.0) & (total != (scale or 1.0))) | (weight != 1.0)
    return found


class _Pair(NamedTuple):
    """The numbers for the interval of a difference; ``given`` has the prompts' contributions to it.

    ``concentration`` is Σ of the squares of the prompts' weights: 1 / n if they weigh alike. ``span`` is the
    width of the scale. ``freedom`` is the degrees of freedom of ``variance``, or 0 if a group has too few
    prompts for an interval.
    """

    given: np.ndarray
    concentration: float
    span: float
    freedom: int
    variance: float

    @classmethod
    def of(cls, mine: _Table, theirs: _Table, scale: float) -> _Pair:
        import numpy as np

        [given], *_ = _given(mine, [theirs], scale)
        both = (mine.weight > 0) & (theirs.weight > 0)
        mine, theirs = mine.only(both), theirs.only(both)
        sizes, n = both.sum(1)[both.any(1)], int(both.any(0).sum())
        # deviations from each model's own mean; a group of one prompt shows no variance
        apart = mine.away_in_groups(mine.means()) - theirs.away_in_groups(theirs.means())
        unbiased = np.sqrt(sizes / np.maximum(sizes - 1, 1))[:, None] * apart
        # scores may be below 0 (a similarity): they widen the scale
        scores = np.concatenate([_scores(mine), _scores(theirs)])
        portions = (mine.portions() + theirs.portions()) / 2
        return cls(
            given,
            concentration=float((portions**2).sum()),
            span=float(max(scale or 1.0, scores.max()) - min(0.0, scores.min())),
            freedom=n - len(sizes) if sizes.min() >= FEWEST_PROMPTS else 0,
            variance=float(((mine.shares @ unbiased) ** 2).sum()) if n > 1 else math.nan,
        )


def _scores(table: _Table) -> np.ndarray:
    found: np.ndarray = table.total[table.weight > 0] / table.weight[table.weight > 0]
    return found


# ---- difference, interval, p


def _comparison(
    tests: _Tests, number: int, one: Measured, other: Measured, with_interval: bool
) -> Comparison:
    n, difference = int(tests.n[number]), float(tests.difference[number])
    mine, theirs = (tests.tables[int(place)] for place in (tests.first[number], tests.second[number]))
    interval, spread = None, None
    if not tests.paired[number]:
        interval = _of_two(one.metric, other.metric) if n > 1 else None
        spread = math.hypot(_spread(one.metric), _spread(other.metric)) if interval else None
    elif mine and theirs:
        pair = _Pair.of(mine, theirs, one.metric.scale)
        interval = _interval(pair) if with_interval else None
        spread = math.sqrt(pair.variance * n) if n > 1 else None
    p, least, noise, test = (
        tests.p[number],
        tests.by_noise[number],
        tests.noise[number],
        _words(tests, number),
    )
    if least > p:
        test = f"the judge's noise alone, of which ±{_NORMAL * noise:.2g} is no difference; {test}"
    if noise and interval:
        scale = max(one.metric.scale, other.metric.scale, *map(abs, interval))
        interval = (
            max(-scale, min(interval[0], difference - _NORMAL * noise)),
            min(scale, max(interval[1], difference + _NORMAL * noise)),
        )
    return Comparison(
        one.name,
        other.name,
        difference,
        interval,
        p=None if math.isnan(p) else float(max(p, least)),
        n=n,
        test=test,
        paired=bool(tests.paired[number]),
        spread=spread,
        noise=float(noise),
    )


def _words(tests: _Tests, number: int) -> str:
    """Returns the test of a pair, in words."""
    if not tests.paired[number]:
        why = tests.why[number]
        if math.isnan(tests.p[number]):
            return f"no test: {why}, nor have both an interval"
        return f"Welch's t-test of two means: {why}"
    n, up, down, flips, reached = (
        int(each[number]) for each in (tests.n, tests.up, tests.down, tests.flips, tests.reached)
    )
    if tests.binary[number]:
        words = f"McNemar's exact test on {n:,} prompts: {up:,} better, {down:,} worse"
    elif not flips:
        words = f"exact permutation test on {n:,} prompts, {up + down} of which differ"
    else:
        words = f"permutation test on {n:,} prompts, {flips:,} sign flips"
        words += "" if reached else ", none of which comes as far, and Student's t"
    return words if tests.whole[number] else f"{words}; of the {n:,} prompts that both have"


def _interval(pair: _Pair) -> tuple[float, float] | None:
    if not pair.freedom:
        return None
    up, down = (float((sign * pair.given).clip(0).sum()) / pair.span for sign in (1, -1))
    low, high = score_interval(up, down, pair.variance / pair.span**2, pair.concentration, pair.freedom)
    return low * pair.span, high * pair.span


def score_interval(
    up: float, down: float, variance: float, concentration: float, freedom: int
) -> tuple[float, float]:
    """Returns the 95 % interval of ``up`` - ``down``, the sums of contributions, on a scale of 1.

    ``freedom`` is the degrees of freedom of ``variance``, ``concentration`` is Σ of the squares of the
    prompts' weights. The interval contains all δ that a score test does not reject. The variance of the test
    is φ times the variance of right-or-wrong scores with the true difference δ. For right-or-wrong scores φ
    is 1: Tango's interval.
    """
    difference = up - down
    share, freedom_left = drawn_to_all_or_nothing(up + down - difference**2, variance, concentration, freedom)
    spread = student(freedom_left) ** 2 * share * concentration

    def refuses(delta: float) -> bool:
        return (difference - delta) ** 2 > spread * _variance(up, down, delta)

    return _last(difference, -1.0, refuses), _last(difference, 1.0, refuses)


def _variance(up: float, down: float, delta: float) -> float:
    """Returns the variance of one right-or-wrong prompt if ``delta`` is the true difference.

    The share of downs is the most likely one for ``up``, ``down`` and ``delta`` (Tango 1998, equation 16)."""
    if delta < 0:
        up, down, delta = down, up, -delta
    half = -up - down + (2 - up + down) * delta
    downs = (math.sqrt(max(0.0, half**2 + 8 * down * delta * (1 - delta))) - half) / 4
    return max(0.0, 2 * downs + delta * (1 - delta))


def _last(inside: float, end: float, refuses: Callable[[float], bool]) -> float:
    """Returns the last value on the way from ``inside`` to ``end`` that is not rejected, by bisection."""
    if not refuses(end):
        return end
    for _ in range(30):
        middle = (inside + end) / 2
        inside, end = (inside, middle) if refuses(middle) else (middle, end)
    return inside


def _of_two(one: Metric, other: Metric) -> tuple[float, float] | None:
    """Returns Newcombe's interval (method 10) of the difference of two means of different prompts."""
    if one.interval is None or other.interval is None or one.value is None or other.value is None:
        return None
    (low, high), (other_low, other_high) = one.interval, other.interval
    difference, scale = one.value - other.value, max(one.scale, other.scale)
    return (
        max(-scale, difference - math.hypot(one.value - low, other_high - other.value)),
        min(scale, difference + math.hypot(high - one.value, other.value - other_low)),
    )


def _mcnemar(up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Returns p of McNemar's exact test, which is a binomial test."""
    import numpy as np
    from scipy.special import bdtr

    found: np.ndarray = np.minimum(1.0, 2 * bdtr(np.minimum(up, down).astype(float), up + down, 0.5))
    return found


def _exact(given: np.ndarray) -> np.ndarray:
    """Returns p of each row by all sign flips; at most :data:`_EXACT` prompts of a row differ."""
    import numpy as np

    # differing prompts come first; a flip and its opposite are equally extreme, so the first sign stays
    order = np.argsort(given == 0, axis=1, kind="stable")[:, :_EXACT]
    differing = np.take_along_axis(given, order, 1)
    numbers = np.arange(2 ** max(0, differing.shape[1] - 1))[:, None]
    signs = 1.0 - 2.0 * (numbers >> np.arange(differing.shape[1]) & 1)[:, ::-1]
    least = np.abs(differing.sum(1)) - _LAST_BITS * np.sqrt((differing**2).sum(1))
    p = np.ones(len(given))
    for n in range(0, len(given), _AT_ONCE):
        some = slice(n, n + _AT_ONCE)
        p[some] = (np.abs(differing[some] @ signs.T) >= least[some, None]).mean(1)
    return p


def _by_flips(given: np.ndarray, prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns p of each row, the number of flips, and the number of flips as extreme as the data.

    All rows share the same random flips."""
    import numpy as np
    from scipy.special import stdtr

    matrix = np.ascontiguousarray(given.T)
    sums, squares = matrix.sum(0), (matrix**2).sum(0)
    least = np.abs(sums) - _LAST_BITS * np.sqrt(squares)
    reached, made = np.zeros(len(given)), np.zeros(len(given))
    rng = np.random.default_rng(_SEED)
    open_ = np.arange(len(given))
    for start in range(0, _FLIPS, _AT_ONCE):
        if not len(open_):
            break
        rows = min(_AT_ONCE, _FLIPS - start)
        bits = np.frombuffer(rng.bytes(rows * -(-len(matrix) // 8)), np.uint8).reshape(rows, -1)
        signs = 2.0 * np.unpackbits(bits, axis=1, count=len(matrix)) - 1.0
        for n in range(0, len(open_), _PAIRS_AT_ONCE):
            some = open_[n : n + _PAIRS_AT_ONCE]
            flipped = signs @ matrix[:, some]
            reached[some] += (np.abs(flipped, out=flipped) >= least[some]).sum(0)
        made[open_] += rows
        # a p above 0.1 is no difference: more flips would only make it more precise
        beyond = _CLEAR * made[open_] + 4 * np.sqrt(_CLEAR * (1 - _CLEAR) * made[open_])
        open_ = open_[reached[open_] < beyond]
    p = (reached + 1) / (made + 1)
    # no flip is as extreme as the data: p of a paired t-test, but at least 2^(1 - n), the rarest of all flips
    far = reached == 0
    n, mean = prompts[far], sums[far] / prompts[far]
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(np.maximum(0.0, squares[far] / n - mean**2) / (n - 1))
        by_t = 2 * stdtr(n - 1.0, -np.abs(mean) / error)
    rarest = 2.0 ** (1 - (given[far] != 0).sum(1).astype(float))
    p[far] = np.minimum(p[far], np.maximum(np.nan_to_num(by_t), rarest))
    return p, made.astype(int), reached.astype(int)
