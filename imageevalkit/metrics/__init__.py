"""Means of scores with confidence intervals, and groups of scores, for the metrics of all benchmarks.

Every sum goes from left to right, first within a cluster and then over the clusters. So results are equal to
the last bit with every version of Python. The module uses only the standard library.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from imageevalkit.store.results import ItemPart, Metric, Score

if TYPE_CHECKING:
    from typing_extensions import Unpack

FEWEST_PROMPTS = 10
"""The fewest prompts for an interval. With fewer the interval would be unreliable, so there is none."""
# the variance of a mean on a scale from 0 to 1; a smaller one is only rounding error
_NO_VARIANCE = 1e-18
_ROUNDING = 1e-9
# The weight, in prompts, of the assumption "each score is 0 or 1" in the estimate of the variance. In
# simulations of 10 prompts with skewed scores near an end, 58 % of intervals contain the mean with weight 0,
# and 98 % with 0.5.
_DOUBT = 0.2
_NORMAL = NormalDist().inv_cdf(0.975)

T = TypeVar("T")
Value = str | Callable[[Score], float | None]
"""A number per score: a name in its ``values``, or a function that returns None to skip a score."""

Key = str | Sequence[str] | Callable[[Score], Hashable]
"""The group of a score: a name in its ``keys``, several such names, or a function."""


Part = tuple[float, float]
"""The share of one prompt in a mean Σ total / Σ weight: its total and its weight above 0."""


class Options(TypedDict, total=False):
    """The options of a mean and of its interval."""

    weight: Value
    """The weight of each score, 1 by default. With weights, the interval belongs to a ratio estimate."""
    top: float
    """The highest value of the scale, 1 by default."""
    percent: bool
    """Multiplies value, interval and scale by 100."""
    cluster: Key | None
    """Scores with the same key are not independent: the interval counts them as one. Default: the item."""
    interval: bool
    """False for a mean without interval."""


def mean(scores: Iterable[Score], value: Value, **options: Unpack[Options]) -> Metric:
    """Returns the mean Σ value / Σ weight (default weight 1), None without scores; ``n`` counts items."""
    return _mean([(None, 1.0, scores)], value, **options)


def mean_by(
    scores: Iterable[Score],
    value: Value,
    by: Key,
    *,
    prefix: str = "",
    order: Iterable[Hashable] = (),
    **options: Unpack[Options],
) -> dict[str, Metric]:
    """Returns the :func:`mean` of each group, by ``prefix`` and group ("en/sign" for two keys)."""
    means = dict[str, Metric]()
    for group, of_group in groups(scores, by, order).items():
        means[prefix + _text(group)] = mean(of_group, value, **options)
    return means


def weighted(
    scores: Iterable[Score], value: Value, by: Key, weights: Mapping[Any, float], **options: Unpack[Options]
) -> Metric:
    """Returns Σ weight · mean over the groups of ``weights``; None if any group has no score.

    The interval assumes that the groups are independent samples (:func:`interval_of_sum`). Raises ValueError
    if a group has no weight, or if the weights do not add up to 1.
    """
    of_groups = groups(scores, by, weights)
    if unknown := [group for group in of_groups if group not in weights]:
        raise ValueError(f"no weight is given for the scores of {unknown[0]!r}")
    if not math.isclose(math.fsum(weights.values()), 1):
        raise ValueError(f"the weights add up to {math.fsum(weights.values()):g}, not to 1")
    return _mean(
        [(group, weight, of_groups.get(group, ())) for group, weight in weights.items()], value, **options
    )


def mean_of_means(
    scores: Iterable[Score], value: Value, by: Key, order: Iterable[Hashable] = (), **options: Unpack[Options]
) -> Metric:
    """Returns the mean of the groups' means, :func:`weighted` equally; None without scores."""
    of_groups = groups(scores, by, order)
    shares = {group: 1 / len(of_groups) for group in of_groups}
    in_groups = [score for of_group in of_groups.values() for score in of_group]
    return weighted(in_groups, value, by, shares, **options) if shares else mean((), value, **options)


def weighted_sum(values: Mapping[Any, float | None], weights: Mapping[Any, float]) -> float | None:
    """Returns Σ weight · value over the groups of ``weights``; None if any group has no value."""
    known = {group: value for group in weights if (value := values.get(group)) is not None}
    return _sum(weights[group] * known[group] for group in weights) if len(known) == len(weights) else None


def total(scores: Iterable[Score], value: Value, *, top: float = 1.0) -> Metric:
    """Returns Σ value, None without scores. ``top`` is the scale of a value, not of the sum."""
    counted = list(_counted(scores, value, lambda score: 1, None))
    whole, count = _whole(list(_clusters(counted).values()))
    return Metric(whole if counted else None, len({one.item for one in counted}), scale=top * count)


def only_if(whole: bool, metric: Metric) -> Metric:
    """Returns ``metric``, without a value unless ``whole``: some official programs then print none."""
    return metric if whole else replace(metric, value=None, interval=None)


def groups(scores: Iterable[Score], by: Key, order: Iterable[Hashable] = ()) -> dict[Any, list[Score]]:
    """Returns the scores by group, first the groups in ``order``. Scores with a key of None are left out."""
    key = _key(by)
    found: dict[Hashable, list[Score]] = {group: [] for group in order}
    for score in scores:
        group = key(score)
        if group is not None and not (isinstance(group, tuple) and None in group):
            found.setdefault(group, []).append(score)
    return {group: of_group for group, of_group in found.items() if of_group}


def spread(groups: Iterable[Sequence[T]]) -> list[T]:
    """Returns all elements in an order in which any first N have about the proportions of the groups.

    Each group keeps its own order. The count of a group may differ by half an element from N · (size of the
    group) / (size of all). With six groups it is right within 2. At equal places the earlier group comes
    first.
    """
    placed = [((k + 0.5) / len(group), element) for group in groups for k, element in enumerate(group)]
    return [element for _, element in sorted(placed, key=lambda one: one[0])]


def grouped(elements: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Returns the elements by key, in order of first appearance."""
    groups: dict[Any, list[T]] = {}
    for element in elements:
        groups.setdefault(key(element), []).append(element)
    return groups


def points(scores: Iterable[Score]) -> list[Score]:
    """Returns the points of all scores as separate scores, each with the item and the keys of its score."""
    return [
        replace(point, keys={**score.keys, **point.keys}, item=score.item or f"score {number}")
        for number, score in enumerate(scores)
        for point in score.points
    ]


def arithmetic_mean(values: Iterable[float]) -> float:
    """Returns Σ value / number of values. Raises ValueError without values."""
    if not (values := list(values)):
        raise ValueError("there is no mean of no values")
    return _sum(values) / len(values)


def geometric_mean(values: Iterable[float]) -> float:
    """Returns exp(mean(ln value)), or 0 if any value is 0, like scipy's ``gmean``.

    Raises ValueError without values or if a value is negative."""
    if (lowest := min(values := list(values), default=1)) < 0:
        raise ValueError(f"a geometric mean is of no negative value, but one is {lowest:g}")
    return math.exp(arithmetic_mean(map(math.log, values))) if lowest else 0.0


def _mean(
    strata: Iterable[tuple[Hashable, float, Iterable[Score]]],
    value: Value,
    weight: Value = lambda score: 1,
    top: float = 1.0,
    percent: bool = False,
    cluster: Key | None = None,
    interval: bool = True,
) -> Metric:
    """Returns Σ share · mean over the ``strata``: tuples of group (or None), share and scores."""
    means, known, items = list[float | None](), list[Stratum](), set[Hashable]()
    shares, given = dict[str, float](), list[ItemPart]()
    shown = 100 if percent else 1
    for group, share, scores in strata:
        counted = list(_counted(scores, value, weight, cluster))
        parts = _clusters(counted)
        items.update(one.item for one in counted)
        whole, count = _whole(list(parts.values()))
        means.append(share * (whole / count) if count else None)
        # a cluster without weight does not change the mean, so the interval must not count it
        weighing = {key: part for key, part in parts.items() if part[1]}
        known.append(Stratum(share, [*weighing.values()], [*weighing]))
        name = None if group is None else _text(group)
        given += _item_parts(counted, shown, name)
        if name is not None:
            shares[name] = share
    bounds = interval_of_sum(known, top) if interval else None
    return Metric(
        None if None in means else shown * _sum(part for part in means if part is not None),
        len(items),
        bounds and (shown * bounds[0], shown * bounds[1]),
        shown * top,
        shares or None,
        given,
    )


class _Counted(NamedTuple):
    """A score that counts, with its value and weight."""

    cluster: Hashable
    item: Hashable
    value: float
    weight: float


def _counted(scores: Iterable[Score], value: Value, weight: Value, cluster: Key | None) -> Iterator[_Counted]:
    value_of, weight_of = _number(value), _number(weight)
    cluster_of = None if cluster is None else _key(cluster)
    for score in scores:
        number, its_weight = value_of(score), weight_of(score)
        if number is not None and its_weight is not None:
            item = _item(score)
            yield _Counted(item if cluster_of is None else cluster_of(score), item, number, its_weight)


def _clusters(counted: Iterable[_Counted]) -> dict[Hashable, Part]:
    """Returns the total and the weight of each cluster."""
    clusters: dict[Hashable, list[Part]] = {}
    for one in counted:
        clusters.setdefault(one.cluster, []).append((one.value, one.weight))
    return {cluster: _whole(parts) for cluster, parts in clusters.items()}


def _item_parts(counted: Iterable[_Counted], shown: float, group: str | None) -> list[ItemPart]:
    """Returns the share of each item in the mean, × ``shown``. Scores without an item are skipped."""
    by_item: dict[tuple[str, Hashable], list[Part]] = {}
    for one in counted:
        if isinstance(one.item, str):
            by_item.setdefault((one.item, one.cluster), []).append((one.value, one.weight))
    found = []
    for (item, cluster), parts in by_item.items():
        whole, weight = _whole(parts)
        found.append(
            ItemPart(item, shown * whole, weight, group, None if cluster == item else _text(cluster))
        )
    return found


def _text(key: Hashable) -> str:
    """Returns the name of a group or cluster, "en/sign" for several keys."""
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _whole(parts: Sequence[Part]) -> Part:
    return _sum(part[0] for part in parts), _sum(part[1] for part in parts)


def _sum(values: Iterable[float]) -> float:
    # not sum(): from Python 3.12 on it compensates for rounding, so the last digit would differ
    return functools.reduce(operator.add, values, 0)


def _item(score: Score) -> Hashable:
    # a score that is not from an engine has no item and counts as an item of its own
    return score.item or object()


def _number(value: Value) -> Callable[[Score], float | None]:
    return value if callable(value) else lambda score: _lookup(score, "value", value, score.values)


def _key(by: Key) -> Callable[[Score], Hashable]:
    if callable(by):
        return by
    if isinstance(by, str):
        return lambda score: _lookup(score, "key", by, score.keys)
    return lambda score: tuple(_lookup(score, "key", name, score.keys) for name in by)


def _lookup(score: Score, kind: str, name: str, mapping: Mapping[str, Any]) -> Any:
    if name in mapping:
        return mapping[name]
    raise ValueError(
        f"the score of '{score.item}' has no {kind} '{name}', only: {', '.join(mapping) or 'none'}"
    )


# --- the uncertainty of a mean from the choice of prompts ---


class Stratum(NamedTuple):
    """A group of prompts in a sum of means; its mean has the weight ``share``.

    ``clusters`` are the names of the ``parts``: equal names in several strata are the same prompt. Without
    names, every part is a prompt of its own.
    """

    share: float
    parts: Sequence[Part]
    clusters: Sequence[Hashable] = ()


def interval_of_sum(strata: Sequence[Stratum], top: float = 1.0) -> tuple[float, float] | None:
    """Returns the 95 % interval ``(low, high)`` of Σ share · (Σ total / Σ weight) over ``strata``.

    The scale is from 0 to ``top``, and the shares add up to 1. Each part is one prompt, even if it is a sum:
    the units of a prompt are not independent. None if a stratum has fewer than 10 prompts.

    The interval is Wilson's score interval with a variance from the scores instead of the binomial variance.
    It has all means μ that a test with the variance φ · μ · (top - μ) does not reject. φ is estimated from
    the scores (for a ratio as in Cochran, "Sampling Techniques", section 6.4). It is shrunk towards 1, the
    value for scores of only 0 and ``top``. The shrinkage is stronger for fewer prompts and for means near an
    end of the scale, where few skewed scores underestimate the variance. If all scores are equal, φ is 1.
    Student's t has (n - 1) / (1 - φ) degrees of freedom: with φ = 1 the mean determines the variance, and the
    result is Wilson's interval itself. The variances of strata add up (Cochran, section 5.3), with
    Satterthwaite's degrees of freedom. If strata share prompts (test points of one image), their covariances
    are added too.
    """
    if any(len(stratum.parts) < FEWEST_PROMPTS for stratum in strata):
        return None
    scores = [total / weight for stratum in strata for total, weight in stratum.parts]
    # values may lie outside the scale (a negative similarity, a large edit distance): these widen the scale
    bottom, top = min(0.0, *scores), max(top, *scores)
    found = [_middle(stratum.parts, bottom, top - bottom) for stratum in strata]
    shares = [stratum.share for stratum in strata]
    middle = math.fsum(share * one.middle for share, one in zip(shares, found, strict=True))
    variances = [share**2 * one.variance for share, one in zip(shares, found, strict=True)]
    together = _covariances(strata, found, variances)
    variance = math.fsum(variances) + together
    terms = math.fsum(one**2 / each.freedom for one, each in zip(variances, found, strict=True))
    freedom = variance**2 / terms if terms else math.inf
    if together:  # repeated prompts add no information, so they must not add degrees of freedom
        freedom = min(freedom, max(one.freedom for one in found))
    value = math.fsum(share * one.value for share, one in zip(shares, found, strict=True))
    low, high = _wilson(value, variance / (middle * (1 - middle)), freedom)
    return bottom + (top - bottom) * low, bottom + (top - bottom) * high


class _Middle(NamedTuple):
    """A mean on a scale from 0 to 1, and the middle of its interval. ``variance`` is the variance of a mean
    at this middle, with its degrees of freedom. ``away`` is the distance of each part from the mean, scaled
    so that the squares add up to 1. All are 0 if all parts are equal.
    """

    value: float
    middle: float
    variance: float
    freedom: float
    away: list[float]


def _middle(parts: Sequence[Part], bottom: float, span: float) -> _Middle:
    whole = math.fsum(weight for _, weight in parts)
    # rounding errors may put the mean slightly outside of 0-1
    value = min(1.0, max(0.0, (math.fsum(total for total, _ in parts) / whole - bottom) / span))
    away = [((total - bottom * weight) / span - value * weight) / whole for total, weight in parts]
    squares = math.fsum(one**2 for one in away)
    count = len(parts)
    # the factor of the variance if every score were 0 or 1
    spread = math.fsum((weight / whole) ** 2 for _, weight in parts)
    varies = squares > _NO_VARIANCE
    share, freedom = drawn_to_all_or_nothing(
        value * (1 - value), squares * count / (count - 1), spread, count - 1
    )
    spread *= share
    # unlike the mean, the middle is never at an end of the scale, where the variance would be 0
    low, high = _wilson(value, spread, freedom)
    middle = (low + high) / 2
    size = math.sqrt(squares) if varies else math.inf
    return _Middle(value, middle, spread * middle * (1 - middle), freedom, [one / size for one in away])


def drawn_to_all_or_nothing(
    most: float, variance: float, spread: float, freedom: float
) -> tuple[float, float]:
    """Returns φ, a mean's variance divided by the variance with scores of 0 or 1; and its degrees of freedom.

    ``variance`` is the estimate from the scores, with ``freedom`` degrees of freedom. ``spread`` is Σ of the
    squared portions of the scores; the variance with scores of 0 or 1 is ``most`` · ``spread``. φ is shrunk
    towards 1, more so for a small ``most`` / ``spread``, about the number of prompts that are not at an end.
    """
    if variance <= _NO_VARIANCE or most <= 0:
        return 1.0, math.inf
    information, estimate = most / spread, variance / most / spread
    # with scores of 0 or 1 this is exactly 1: nothing is estimated then
    plain = estimate * freedom / (freedom + 1)
    share = min(max(1.0, plain), (information + _DOUBT) / (information / estimate + _DOUBT))
    return share, freedom / (1 - share) if share < 1 - _ROUNDING else math.inf


def _covariances(strata: Sequence[Stratum], found: Sequence[_Middle], variances: Sequence[float]) -> float:
    """Returns twice the sum of covariances of the strata's means; 0 if no prompt is in two strata."""
    sums, squares = dict[Hashable, float](), list[float]()
    for stratum, one, variance in zip(strata, found, variances, strict=True):
        for cluster, away in zip(stratum.clusters, one.away, strict=False):
            term = math.sqrt(variance) * away
            sums[cluster] = sums.get(cluster, 0.0) + term
            squares.append(term**2)
    if len(sums) == len(squares):
        return 0.0
    # negative covariances may at most halve the variance: the prompts are only a sample
    return max(math.fsum(one**2 for one in sums.values()) - math.fsum(squares), -0.5 * math.fsum(squares))


def _wilson(value: float, spread: float, freedom: float) -> tuple[float, float]:
    """Returns the bounds of all μ with (value - μ)² ≤ t² · spread · μ · (1 - μ), within 0-1."""
    q = student(freedom) ** 2 * spread
    root = math.sqrt(q * q + 4 * q * value * (1 - value))
    low, high = ((2 * value + q + sign * root) / (2 + 2 * q) for sign in (-1, 1))
    return max(0.0, min(value, low)), min(1.0, max(value, high))  # against rounding errors


def student(freedom: float) -> float:
    """Returns the 97.5 % quantile of Student's t, within 0.001 for at least 5 degrees of freedom.

    The formula is Abramowitz and Stegun 26.7.5."""
    z = _NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
