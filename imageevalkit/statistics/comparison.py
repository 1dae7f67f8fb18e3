"""Two models on the same prompts: the difference, its interval, and whether chance alone would do as much.

What one prompt (a cluster: all its images) gives to the difference of two metrics is known, so what the prompts have in
common cancels out. Where the files do not say it, two means with their intervals are compared as of different prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from imageevalkit.cell.results import Metric
from imageevalkit.metrics import FEWEST_PROMPTS, drawn_to_all_or_nothing, student

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.05
"""A difference with a smaller p is told; intervals are of 1 - LEVEL."""
_FLIPS = 9_999
_AT_ONCE = 500  # flips: 500 × 5,000 prompts are 20 MB
_CLEAR = 0.1  # a p that is above it beyond doubt needs no more flips (Besag and Clifford 1991)
_SEED = 20_260_101
_NORMAL = NormalDist().inv_cdf(1 - LEVEL / 2)
_EXACT = 13  # prompts that differ: 2¹³ sign flips are all counted
_NOTHING = 1e-12  # of the scale: what sums are off in their last bits


class Measured(NamedTuple):
    """A ``metric`` of one result, with its parts where they are known, under the ``name`` that a comparison shows.

    ``noise`` is the standard error that the judge's randomness alone gives to it, on its scale. None: nobody has
    measured it, and it is taken to be that of the other one, of as many items.
    """

    name: str
    metric: Metric
    noise: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The ``difference`` ``first`` - ``second`` on the metric's scale, over the ``n`` prompts that both have, with its
    95 % ``interval`` and ``p``, the chance of as much between models that are alike; None where that cannot be told.

    ``adjusted`` is p by Holm's method over all pairs that were compared at once. ``test`` says in words what was done.
    ``spread`` is the standard deviation of what one prompt gives to the difference, × ``n``: its square / n is the
    variance of the difference. ``noise`` is the standard error that the judge's randomness alone gives to it; 0: none,
    or it is not known.
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
    def told(self) -> bool:
        """Whether the two can be told apart: what every table, page, file and the gate go by."""
        p = self.p if self.adjusted is None else self.adjusted
        return p is not None and p < LEVEL

    @property
    def within_noise(self) -> bool:
        """Whether the judge alone may make as much of a difference, with two sets of equal images."""
        return _chance_of_noise(self.difference, self.noise) >= LEVEL


def compare(first: Measured, second: Measured) -> Comparison:
    """Compare two models by one metric. Raises ValueError: one has no value.

    ``p`` is of a test that swaps the two models, prompt by prompt (sign flips of what each gives to the difference,
    Fisher 1935; all of them where few differ, else up to 9,999 at random, counted as in Phipson and Smyth 2010), beyond
    that resolution of a paired t-test. Of means of right or wrong it is McNemar's exact test, which is the same. A
    ratio of sums is linear in its prompts about the mean of both (Cochran, "Sampling Techniques", section 6.4).

    What the prompts vary by holds the judge's noise, as each has replies of its own: to add its variance would count it
    twice, and what two results have of the same replies cancels out. But the error of a difference is never less than
    what the noise alone makes of it, N = √(noise² + noise²): the prompts may show too little of it where few differ, or
    where they share replies. So p is at least 2 · Φ(-d / N) of a difference d, and the interval at least as wide.

    The interval is Tango's score interval (1998, Statistics in Medicine 17, 891-908) of ups and downs, with the
    variance of what prompts give in the place of that of all or nothing, as in
    :func:`~imageevalkit.metrics.interval_of_sum`. Of two means without prompts it is made of their two intervals
    (Newcombe 1998, Statistics in Medicine 17, 873-890, method 10).
    """
    [found] = compare_all([first, second])
    return replace(found, adjusted=None)


def compare_all(column: Sequence[Measured], with_intervals: bool = True) -> list[Comparison]:
    """:func:`compare` each pair of ``column``, in its order, with ``adjusted`` by Holm's method. Raises ValueError: one
    has no value."""
    for one in column:
        if one.metric.value is None:
            raise ValueError(f"{one.name} has no value to compare")
    pairs = list(_pairs(column))
    flipped = iter(_by_flips([pair.given for pair in pairs if pair.given is not None and not pair.is_binary]))
    found = [
        _with_noise(_comparison(pair, flipped, with_intervals), pair.first, pair.second) for pair in pairs
    ]
    return adjust(found)


def adjust(found: Sequence[Comparison]) -> list[Comparison]:
    """``found`` with p by Holm's method over all of them (Holm 1979)."""
    known = [one.p for one in found if one.p is not None]
    if not known:
        return list(found)
    # not by statsmodels' multipletests: it collects all garbage of the process, of a report half a second each time
    adjusted, least = dict[float, float](), 0.0
    for rank, p in enumerate(sorted(known)):
        least = adjusted[p] = max(least, min(1.0, (len(known) - rank) * p))
    return [one if one.p is None else replace(one, adjusted=adjusted[one.p]) for one in found]


def influence(one: Measured) -> np.ndarray:
    """What each prompt gives to the distance of the metric from its value; empty where the files do not say it."""
    import numpy as np

    [table] = _tables([one])
    if table is None:
        return np.zeros(0)
    table = table.only(table.weight > 0)
    found: np.ndarray = table.away(table.means())[table.weight.any(0)]
    return found


# ---- what prompts give


class _Table(NamedTuple):
    """Totals and weights of a metric, groups × prompts, and the share of each group; weight 0: it has no such
    prompt."""

    total: np.ndarray
    weight: np.ndarray
    shares: np.ndarray

    def only(self, kept: np.ndarray) -> _Table:
        """Of the prompts ``kept`` in each group, and of the groups that have one."""
        rows = kept.any(1)
        return _Table((self.total * kept)[rows], (self.weight * kept)[rows], self.shares[rows])

    def means(self) -> np.ndarray:
        """Of each group."""
        found: np.ndarray = self.total.sum(1) / self.weight.sum(1)
        return found

    def away(self, means: np.ndarray) -> np.ndarray:
        """What each prompt gives to Σ share · (mean - ``means``)."""
        found: np.ndarray = self.shares @ self.away_in_groups(means)
        return found

    def away_in_groups(self, means: np.ndarray) -> np.ndarray:
        """The same of each group's mean, groups × prompts."""
        found: np.ndarray = (self.total - means[:, None] * self.weight) / self.weight.sum(1)[:, None]
        return found

    def portions(self) -> np.ndarray:
        """How much each prompt weighs in the metric; they add up to the sum of the shares."""
        found: np.ndarray = self.shares @ (self.weight / self.weight.sum(1)[:, None])
        return found


class _Pair(NamedTuple):
    """Two of a column. ``given`` is what each prompt gives to their difference, None where that is not known; then
    ``why``. ``concentration`` is Σ of the squares of their portions, 1 / n of prompts that weigh alike; ``span`` that
    of the scale, and ``freedom`` that of the ``variance``, 0 where a group has too few prompts for an interval.
    ``whole``: both have the same prompts."""

    first: Measured
    second: Measured
    why: str = ""
    given: np.ndarray | None = None
    concentration: float = 1.0
    span: float = 1.0
    freedom: int = 0
    variance: float = 0.0
    whole: bool = False
    is_binary: bool = False
    n: int = 0


def _pairs(column: Sequence[Measured]) -> Iterator[_Pair]:
    tables = _tables(column)
    for (one, mine), (other, theirs) in combinations(zip(column, tables, strict=True), 2):
        if mine is None or theirs is None:
            silent = [m.name for m, table in ((one, mine), (other, theirs)) if table is None]
            yield _Pair(one, other, f"the files of {' and '.join(silent)} do not say what each item gives")
        elif one.metric.shares != other.metric.shares:
            yield _Pair(one, other, "their groups weigh differently")
        else:
            yield _pair(one, other, mine, theirs)


def _tables(column: Sequence[Measured]) -> list[_Table | None]:
    """Of all models with the same prompts in the same columns."""
    import numpy as np

    # clusters of files of several versions have different names: an item is in that of the first who has it
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


def _pair(one: Measured, other: Measured, mine: _Table, theirs: _Table) -> _Pair:
    import numpy as np

    in_mine, in_theirs = mine.weight > 0, theirs.weight > 0
    both = in_mine & in_theirs
    if not math.isclose(float(mine.shares[both.any(1)].sum()), 1.0):
        grouped = " in each group" if one.metric.shares else ""
        return _Pair(one, other, f"they have no prompts in common{grouped}")
    mine, theirs = mine.only(both), theirs.only(both)
    pooled = (mine.total.sum(1) + theirs.total.sum(1)) / (mine.weight.sum(1) + theirs.weight.sum(1))
    used = both.any(0)
    given = (mine.away(pooled) - theirs.away(pooled))[used]
    sizes = both.sum(1)
    # each from its own mean: what varies; of a group of one prompt nothing is known
    apart = mine.away_in_groups(mine.means()) - theirs.away_in_groups(theirs.means())
    unbiased = np.sqrt(sizes / np.maximum(sizes - 1, 1))[:, None] * apart
    n, scale = int(used.sum()), one.metric.scale or 1.0
    is_right_or_wrong = all(
        bool(
            np.isin(table.total[table.weight > 0], (0.0, scale)).all()
            and np.isin(table.weight, (0.0, 1.0)).all()
        )
        for table in (mine, theirs)
    )
    # a similarity below 0 widens the scale
    ends = [scores.min() for scores in (_scores(mine), _scores(theirs))]
    tops = [scores.max() for scores in (_scores(mine), _scores(theirs))]
    portions = (mine.portions() + theirs.portions()) / 2
    return _Pair(
        one,
        other,
        given=np.where(np.abs(given) * n > _NOTHING * scale, given, 0.0),
        concentration=float((portions**2).sum()),
        span=float(max(scale, *tops) - min(0.0, *ends)),
        freedom=n - len(sizes) if sizes.min() >= FEWEST_PROMPTS else 0,
        variance=float(((mine.shares @ unbiased) ** 2).sum()) if n > 1 else math.nan,
        whole=bool((in_mine == in_theirs).all()),
        is_binary=is_right_or_wrong and len(mine.shares) == 1,
        n=n,
    )


def _scores(table: _Table) -> np.ndarray:
    found: np.ndarray = table.total[table.weight > 0] / table.weight[table.weight > 0]
    return found


# ---- difference, interval, p


def _comparison(pair: _Pair, flipped: Iterator[tuple[float, str]], with_interval: bool) -> Comparison:
    one, other = pair.first, pair.second
    if pair.given is None:
        return _unpaired(pair)
    difference = float(pair.given.sum())
    p, test = _mcnemar(pair) if pair.is_binary else next(flipped)
    if not pair.whole:
        test += f"; of the {pair.n:,} prompts that both have"
    return Comparison(
        one.name,
        other.name,
        difference,
        _interval(pair) if with_interval else None,
        p,
        pair.n,
        test,
        True,
        math.sqrt(pair.variance * pair.n) if pair.n > 1 else None,
    )


def _with_noise(found: Comparison, one: Measured, other: Measured) -> Comparison:
    """``found`` with an error that is not below that of the judge; see :func:`compare`."""
    known = [
        mine.noise
        if mine.noise is not None
        else (theirs.noise or 0.0) * math.sqrt(theirs.metric.n / mine.metric.n)
        for mine, theirs in ((one, other), (other, one))
        if mine.metric.n
    ]
    noise = math.hypot(*known)
    if not noise:
        return found
    p, interval, test = found.p, found.interval, found.test
    if p is not None and (least := _chance_of_noise(found.difference, noise)) > p:
        p, test = least, f"the judge's noise alone, of which ±{_NORMAL * noise:.2g} is no difference; {test}"
    if interval:
        scale = max(one.metric.scale, other.metric.scale, *map(abs, interval))
        interval = (
            max(-scale, min(interval[0], found.difference - _NORMAL * noise)),
            min(scale, max(interval[1], found.difference + _NORMAL * noise)),
        )
    return replace(found, p=p, interval=interval, test=test, noise=noise)


def _chance_of_noise(difference: float, noise: float) -> float:
    """The chance of as much by the noise alone, 2 · Φ(-difference / noise); 0 where there is none."""
    return math.erfc(abs(difference) / noise / math.sqrt(2)) if noise else 0.0


def _interval(pair: _Pair) -> tuple[float, float] | None:
    assert pair.given is not None
    if not pair.freedom:
        return None
    up, down = (float((sign * pair.given).clip(0).sum()) / pair.span for sign in (1, -1))
    low, high = score_interval(up, down, pair.variance / pair.span**2, pair.concentration, pair.freedom)
    return low * pair.span, high * pair.span


def score_interval(
    up: float, down: float, variance: float, concentration: float, freedom: int
) -> tuple[float, float]:
    """The 95 % interval of ``up`` - ``down``, what prompts give to a difference upwards and downwards on a scale of 1,
    whose ``variance`` has so many degrees of ``freedom``; ``concentration`` is Σ of the squares of their portions.

    It holds all δ that a score test does not refuse, whose variance is φ · (that of all or nothing, where δ is true);
    of right or wrong φ is 1, and this is Tango's interval.
    """
    difference = up - down
    share, freedom_left = drawn_to_all_or_nothing(up + down - difference**2, variance, concentration, freedom)
    spread = student(freedom_left) ** 2 * share * concentration

    def refuses(delta: float) -> bool:
        return (difference - delta) ** 2 > spread * _variance(up, down, delta)

    return _last(difference, -1.0, refuses), _last(difference, 1.0, refuses)


def _variance(up: float, down: float, delta: float) -> float:
    """That of one prompt of all or nothing, where ``delta`` is the truth: with the share of downs that is then the most
    likely one, of as many ``up`` and ``down`` (Tango 1998, equation 16)."""
    if delta < 0:
        up, down, delta = down, up, -delta
    half = -up - down + (2 - up + down) * delta
    downs = (math.sqrt(max(0.0, half**2 + 8 * down * delta * (1 - delta))) - half) / 4
    return max(0.0, 2 * downs + delta * (1 - delta))


def _last(inside: float, end: float, refuses: Callable[[float], bool]) -> float:
    """The last value from ``inside`` to ``end`` that is not refused."""
    if not refuses(end):
        return end
    for _ in range(30):
        middle = (inside + end) / 2
        inside, end = (inside, middle) if refuses(middle) else (middle, end)
    return inside


def _of_two(one: Metric, other: Metric) -> tuple[float, float] | None:
    """Newcombe's method 10, of two means of different prompts."""
    if one.interval is None or other.interval is None or one.value is None or other.value is None:
        return None
    (low, high), (other_low, other_high) = one.interval, other.interval
    difference, scale = one.value - other.value, max(one.scale, other.scale)
    return (
        max(-scale, difference - math.hypot(one.value - low, other_high - other.value)),
        min(scale, difference + math.hypot(high - one.value, other.value - other_low)),
    )


def _mcnemar(pair: _Pair) -> tuple[float, str]:
    # the binomial test that it is: statsmodels' mcnemar takes two more seconds to import
    from scipy.stats import binomtest

    assert pair.given is not None
    up, down = int((pair.given > 0).sum()), int((pair.given < 0).sum())
    p = float(binomtest(up, up + down).pvalue) if up + down else 1.0
    return p, f"McNemar's exact test on {pair.n:,} prompts: {up:,} better, {down:,} worse"


def _by_flips(given: Sequence[np.ndarray]) -> list[tuple[float, str]]:
    """p and the test of each, with the same flips: those of one column differ little in length."""
    import numpy as np

    found: list[tuple[float, str] | None] = [_exact(one) for one in given]
    left = [n for n, one in enumerate(found) if one is None]
    reached = np.zeros(len(left))
    if left:
        size = max(len(given[n]) for n in left)
        matrix = np.zeros((size, len(left)))
        for column, n in enumerate(left):
            matrix[: len(given[n]), column] = given[n]
        sums = matrix.sum(0)
        # as much, up to the last bits of sums
        least = np.abs(sums) - 1e-9 * np.sqrt((matrix**2).sum(0))
        rng = np.random.default_rng(_SEED)
        open_, made = np.arange(len(left)), np.zeros(len(left))
        for start in range(0, _FLIPS, _AT_ONCE):
            rows = min(_AT_ONCE, _FLIPS - start)
            bits = np.frombuffer(rng.bytes(rows * -(-size // 8)), np.uint8).reshape(rows, -1)
            signs = np.unpackbits(bits, axis=1, count=size).astype(float)
            flipped = 2 * (signs @ matrix[:, open_]) - sums[open_]
            reached[open_] += (np.abs(flipped) >= least[open_]).sum(0)
            made[open_] += rows
            # what chance does one time in ten is no difference: more flips would only tell a digit more
            beyond = _CLEAR * made[open_] + 4 * np.sqrt(_CLEAR * (1 - _CLEAR) * made[open_])
            open_ = open_[reached[open_] < beyond]
            if not len(open_):
                break
        for n, count, flips in zip(left, reached.tolist(), made.tolist(), strict=True):
            p = (count + 1) / (flips + 1)
            test = f"permutation test on {len(given[n]):,} prompts, {flips:,.0f} sign flips"
            if not count:
                p, test = min(p, _by_t(given[n])), f"{test}, none of which comes as far, and Student's t"
            found[n] = p, test
    return [one for one in found if one]


def _exact(given: np.ndarray) -> tuple[float, str] | None:
    """Of all sign flips, where they are few."""
    differing = given[given != 0]
    if len(differing) > _EXACT:
        return None
    test = f"exact permutation test on {len(given):,} prompts, {len(differing)} of which differ"
    if len(differing) < 2:
        return 1.0, test
    from scipy.stats import permutation_test

    found = permutation_test(
        (differing,),
        lambda sample, axis: sample.sum(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**_EXACT,
    )
    return float(found.pvalue), test


def _by_t(given: np.ndarray) -> float:
    """A paired t-test's p, and never less than the rarest of all sign flips."""
    from scipy.stats import ttest_1samp

    return max(float(ttest_1samp(given, 0.0).pvalue), 2.0 ** (1 - int((given != 0).sum())))


def _unpaired(pair: _Pair) -> Comparison:
    """Of two means with their intervals, as of different prompts (Welch 1947)."""
    one, other = pair.first.metric, pair.second.metric
    assert one.value is not None and other.value is not None
    difference, n = one.value - other.value, min(one.n, other.n)
    names = pair.first.name, pair.second.name
    if one.interval is None or other.interval is None or n < 2:
        return Comparison(
            *names, difference, None, None, n, f"no test: {pair.why}, nor have both an interval", False
        )
    from scipy.stats import t, ttest_ind_from_stats

    spreads = [
        (m.interval[1] - m.interval[0]) / 2 / t.ppf(1 - LEVEL / 2, m.n - 1) * math.sqrt(m.n)
        for m in (one, other)
        if m.interval
    ]
    p = (
        float(
            ttest_ind_from_stats(one.value, spreads[0], one.n, other.value, spreads[1], other.n, False).pvalue
        )
        if any(spreads)
        else None
    )
    test = f"Welch's t-test of two means: {pair.why}"
    return Comparison(*names, difference, _of_two(one, other), p, n, test, False, math.hypot(*spreads))
