"""Means of scores, with their intervals, and groups: what metrics of every benchmark are made of. Standard library
only.

Each sum goes from left to right, first within a cluster and then over the clusters, on every version of Python alike:
results are equal to the last bit wherever they are computed.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from imageevalkit.cell.results import ItemPart, Metric, Score

if TYPE_CHECKING:
    from typing_extensions import Unpack

FEWEST_PROMPTS = 10
"""Of fewer an interval says little, and there is none."""
# of a mean on a scale of 1: less is what sums are off in their last bits
_NO_VARIANCE = 1e-18
_ROUNDING = 1e-9
# So many prompts' worth of "each may be all or nothing" is added to what scores say of their variance. By simulation:
# with 0 the mean of skewed scores near an end is held in 58 % of runs of 10 prompts, with 0.5 in 98 %.
_DOUBT = 0.2
_NORMAL = NormalDist().inv_cdf(0.975)

T = TypeVar("T")
Value = str | Callable[[Score], float | None]
"""A number of each score: a name in its ``values``, or a function that gives None for a score that does not count."""

Key = str | Sequence[str] | Callable[[Score], Hashable]
"""What scores have in common: a name in their ``keys``, several such names, or a function."""


Part = tuple[float, float]
"""What one prompt gives to a mean Σ total / Σ weight: its total, and its weight above 0, such as a number of units."""


class Options(TypedDict, total=False):
    """How a mean is made and shown, and how its interval is made."""

    weight: Value
    """Of each score, 1 by default: Σ value / Σ weight is a micro average of ratios, its interval a ratio estimate's."""
    top: float
    """Of the scale of each value, 1 by default."""
    percent: bool
    """Value, interval and scale are shown × 100."""
    cluster: Key | None
    """Scores with this key in common are not independent, and one to the interval; by default those of one item."""
    interval: bool
    """False for none."""


def mean(scores: Iterable[Score], value: Value, **options: Unpack[Options]) -> Metric:
    """Σ value / number of scores, None without scores or weights; ``n`` counts the items. See :class:`Options`."""
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
    """The :func:`mean` of each of the :func:`groups`, by ``prefix`` and name; names of several keys as "en/sign"."""
    means = dict[str, Metric]()
    for group, of_group in groups(scores, by, order).items():
        means[prefix + _text(group)] = mean(of_group, value, **options)
    return means


def weighted(
    scores: Iterable[Score], value: Value, by: Key, weights: Mapping[Any, float], **options: Unpack[Options]
) -> Metric:
    """Σ weight · mean of a group, over all groups of ``weights``; None until each has a score.

    The interval is that of groups that were drawn apart (:func:`interval_of_sum`).
    Raises ValueError: a group has no weight, or the weights do not add up to 1.
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
    """The plain mean of the means of all groups that have a score, :func:`weighted` alike; None where none has."""
    of_groups = groups(scores, by, order)
    shares = {group: 1 / len(of_groups) for group in of_groups}
    in_groups = [score for of_group in of_groups.values() for score in of_group]
    return weighted(in_groups, value, by, shares, **options) if shares else mean((), value, **options)


def weighted_sum(values: Mapping[Any, float | None], weights: Mapping[Any, float]) -> float | None:
    """Σ weight · value over the groups of ``weights``; None where one has no value."""
    known = {group: value for group in weights if (value := values.get(group)) is not None}
    return _sum(weights[group] * known[group] for group in weights) if len(known) == len(weights) else None


def total(scores: Iterable[Score], value: Value, *, top: float = 1.0) -> Metric:
    """Σ value, None without scores; its scale is ``top``, that of each value, × the number of scores."""
    counted = list(_counted(scores, value, lambda score: 1, None))
    whole, count = _whole(list(_clusters(counted).values()))
    return Metric(whole if counted else None, len({one.item for one in counted}), scale=top * count)


def only_if(whole: bool, metric: Metric) -> Metric:
    """``metric``, without its value unless ``whole``: of official programs that print nothing where something lacks."""
    return metric if whole else replace(metric, value=None, interval=None)


def groups(scores: Iterable[Score], by: Key, order: Iterable[Hashable] = ()) -> dict[Any, list[Score]]:
    """The scores of each group that occurs, those in ``order`` first; a score one of whose keys is None is in none."""
    key = _key(by)
    found: dict[Hashable, list[Score]] = {group: [] for group in order}
    for score in scores:
        group = key(score)
        if group is not None and not (isinstance(group, tuple) and None in group):
            found.setdefault(group, []).append(score)
    return {group: of_group for group, of_group in found.items() if of_group}


def spread(groups: Iterable[Sequence[T]]) -> list[T]:
    """All elements, each group in its order and spread evenly: any first N hold about its share of N.

    A group may be ahead or behind N · (size of the group) / (size of all) by half an element, so that with six groups a
    share is right within 2. Equal places go to the earlier group.
    """
    placed = [((k + 0.5) / len(group), element) for group in groups for k, element in enumerate(group)]
    return [element for _, element in sorted(placed, key=lambda one: one[0])]


def grouped(elements: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """The elements by their key, in order of first appearance."""
    groups: dict[Any, list[T]] = {}
    for element in elements:
        groups.setdefault(key(element), []).append(element)
    return groups


def points(scores: Iterable[Score]) -> list[Score]:
    """The points of all scores as scores of their own, of one item each and with the keys of its score too."""
    return [
        replace(point, keys={**score.keys, **point.keys}, item=score.item or f"score {number}")
        for number, score in enumerate(scores)
        for point in score.points
    ]


def arithmetic_mean(values: Iterable[float]) -> float:
    """Σ value / number of values. Raises ValueError without values."""
    if not (values := list(values)):
        raise ValueError("there is no mean of no values")
    return _sum(values) / len(values)


def geometric_mean(values: Iterable[float]) -> float:
    """exp(mean(ln value)) as scipy's ``gmean``: any 0 gives 0. Raises ValueError without values, or of a negative."""
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
    """Σ share · mean of the scores of that share, by group; the only group may be None."""
    means, known, items = list[float | None](), list[Stratum](), set[Hashable]()
    shares, given = dict[str, float](), list[ItemPart]()
    shown = 100 if percent else 1
    for group, share, scores in strata:
        counted = list(_counted(scores, value, weight, cluster))
        parts = _clusters(counted)
        items.update(one.item for one in counted)
        whole, count = _whole(list(parts.values()))
        means.append(share * (whole / count) if count else None)
        # of a cluster without weight the mean knows nothing
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
    """The total and the weight of each cluster."""
    clusters: dict[Hashable, list[Part]] = {}
    for one in counted:
        clusters.setdefault(one.cluster, []).append((one.value, one.weight))
    return {cluster: _whole(parts) for cluster, parts in clusters.items()}


def _item_parts(counted: Iterable[_Counted], shown: float, group: str | None) -> list[ItemPart]:
    """What each item gives, × ``shown``; nothing of scores that no engine made, which have no item."""
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
    """A group or cluster in words, of several keys as "en/sign"."""
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _whole(parts: Sequence[Part]) -> Part:
    return _sum(part[0] for part in parts), _sum(part[1] for part in parts)


def _sum(values: Iterable[float]) -> float:
    # not sum(): from Python 3.12 on it compensates for rounding, and its last digit is another one
    return functools.reduce(operator.add, values, 0)


def _item(score: Score) -> Hashable:
    # a score that no engine made has no item: it is one of its own
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


# --- how far a mean over prompts would move with other prompts of the same kind ---


class Stratum(NamedTuple):
    """Prompts whose mean goes into a sum of means with ``share``.

    ``clusters`` are the names of its ``parts``, by which a prompt that is in several strata is known; without them each
    part is a prompt of its own.
    """

    share: float
    parts: Sequence[Part]
    clusters: Sequence[Hashable] = ()


def interval_of_sum(strata: Sequence[Stratum], top: float = 1.0) -> tuple[float, float] | None:
    """The 95 % interval, ``(low, high)``, of Σ share · (Σ total / Σ weight) over ``strata``.

    The scale is from 0 to ``top``, the shares add up to 1. Each part is one prompt, whatever it is a sum of: units of a
    prompt are not independent. None where a stratum has fewer than 10, of which an interval says little.

    It is Wilson's score interval with the variance of the scores in the place of the binomial one: the means μ that a
    test with the variance φ · μ · (top - μ) does not refuse. φ is as the scores have it (of a ratio as in Cochran,
    "Sampling Techniques", section 6.4), drawn to 1, which is all or nothing, the more the nearer few prompts are to an
    end of the scale: of skewed scores they show too little. Student's t has n - 1 degrees of freedom, / (1 - φ): of all
    or nothing the mean tells the variance, and this is Wilson's interval itself. Scores that are all one tell nothing
    of how they vary, and count as all or nothing. The variances of strata add up (Cochran, section 5.3), with
    Satterthwaite's degrees of freedom; where strata share prompts, so do the covariances (test points of one image).
    """
    if any(len(stratum.parts) < FEWEST_PROMPTS for stratum in strata):
        return None
    scores = [total / weight for stratum in strata for total, weight in stratum.parts]
    # a similarity below 0, or an edit distance beyond what changes a score, widens the scale
    bottom, top = min(0.0, *scores), max(top, *scores)
    found = [_middle(stratum.parts, bottom, top - bottom) for stratum in strata]
    shares = [stratum.share for stratum in strata]
    middle = math.fsum(share * one.middle for share, one in zip(shares, found, strict=True))
    variances = [share**2 * one.variance for share, one in zip(shares, found, strict=True)]
    together = _covariances(strata, found, variances)
    variance = math.fsum(variances) + together
    terms = math.fsum(one**2 / each.freedom for one, each in zip(variances, found, strict=True))
    freedom = variance**2 / terms if terms else math.inf
    if together:  # of the same prompts again no more is known
        freedom = min(freedom, max(one.freedom for one in found))
    value = math.fsum(share * one.value for share, one in zip(shares, found, strict=True))
    low, high = _wilson(value, variance / (middle * (1 - middle)), freedom)
    return bottom + (top - bottom) * low, bottom + (top - bottom) * high


class _Middle(NamedTuple):
    """A mean on a scale of 1, the middle of its interval, the variance of a mean in that middle with its degrees of
    freedom; and of each part, how far it is from the mean, in units in which their squares add up to 1 (all 0 where
    they are all one)."""

    value: float
    middle: float
    variance: float
    freedom: float
    away: list[float]


def _middle(parts: Sequence[Part], bottom: float, span: float) -> _Middle:
    whole = math.fsum(weight for _, weight in parts)
    # sums may be off in their last bits
    value = min(1.0, max(0.0, (math.fsum(total for total, _ in parts) / whole - bottom) / span))
    away = [((total - bottom * weight) / span - value * weight) / whole for total, weight in parts]
    squares = math.fsum(one**2 for one in away)
    count = len(parts)
    # were each all or nothing
    spread = math.fsum((weight / whole) ** 2 for _, weight in parts)
    varies = squares > _NO_VARIANCE
    share, freedom = drawn_to_all_or_nothing(
        value * (1 - value), squares * count / (count - 1), spread, count - 1
    )
    spread *= share
    # the middle is at no end of the scale, where all values are one and would vary in nothing
    low, high = _wilson(value, spread, freedom)
    middle = (low + high) / 2
    size = math.sqrt(squares) if varies else math.inf
    return _Middle(value, middle, spread * middle * (1 - middle), freedom, [one / size for one in away])


def drawn_to_all_or_nothing(
    most: float, variance: float, spread: float, freedom: float
) -> tuple[float, float]:
    """The variance of a mean as a share φ of that of all or nothing, ``most`` · ``spread``, and its degrees of freedom.

    ``variance`` is what scores have it, with ``freedom`` degrees; ``spread`` is Σ of the squares of their portions. φ
    is drawn to 1 the more the less ``most`` / ``spread`` is, about the number of prompts that are not at an end.
    """
    if variance <= _NO_VARIANCE or most <= 0:
        return 1.0, math.inf
    information, estimate = most / spread, variance / most / spread
    # not above that of all or nothing, where nothing is estimated
    plain = estimate * freedom / (freedom + 1)
    share = min(max(1.0, plain), (information + _DOUBT) / (information / estimate + _DOUBT))
    return share, freedom / (1 - share) if share < 1 - _ROUNDING else math.inf


def _covariances(strata: Sequence[Stratum], found: Sequence[_Middle], variances: Sequence[float]) -> float:
    """Twice the sum of covariances of the strata's means; 0 where no prompt is in two of them."""
    sums, squares = dict[Hashable, float](), list[float]()
    for stratum, one, variance in zip(strata, found, variances, strict=True):
        for cluster, away in zip(stratum.clusters, one.away, strict=False):
            term = math.sqrt(variance) * away
            sums[cluster] = sums.get(cluster, 0.0) + term
            squares.append(term**2)
    if len(sums) == len(squares):
        return 0.0
    # what strata take from each other is never all: prompts are a sample of such prompts
    return max(math.fsum(one**2 for one in sums.values()) - math.fsum(squares), -0.5 * math.fsum(squares))


def _wilson(value: float, spread: float, freedom: float) -> tuple[float, float]:
    """All μ with (value - μ)² ≤ t² · spread · μ · (1 - μ), within 0-1."""
    q = student(freedom) ** 2 * spread
    root = math.sqrt(q * q + 4 * q * value * (1 - value))
    low, high = ((2 * value + q + sign * root) / (2 + 2 * q) for sign in (-1, 1))
    return max(0.0, min(value, low)), min(1.0, max(value, high))  # up to the last bit


def student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, to 0.001 from 5 degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    z = _NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
