"""Computes the relation of two metrics, and its certainty by a bootstrap, with numpy and scipy.

All statistics are of weighted points. A weight is the number of times that a point is in a bootstrap sample;
for the points themselves all weights are 1. So no bootstrap sample is built, and values are sorted only once.
"""

from __future__ import annotations

import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from imageevalkit.common.errors import UserError
from imageevalkit.extras.relations.relations import (
    BOTTLENECK,
    DISPERSION,
    FEWEST,
    NONE,
    SYNERGY,
    TILT,
    TILT_BACK,
    Column,
    Pair,
    Relations,
    Scored,
    Settings,
    Thresholds,
    key_of,
)

if TYPE_CHECKING:
    from numpy import ndarray

_SEED = 42
# the largest number of weights in memory at once: 16 MB per array
_WEIGHTS = 2_000_000
# the largest distance of a point on the line: otherwise rounding would put such points above it
_ON_THE_LINE = 1e-9
# a smaller variance is only rounding error
_CONSTANT = 1e-14


class Points(NamedTuple):
    """The n points of a pair: arrays of x, of y, and of the number of the point's prompt (from 0)."""

    x: ndarray
    y: ndarray
    prompt: ndarray


class Statistics(NamedTuple):
    """The input of :func:`decide`: shares and weights of points, each with one number per set of weights."""

    synergy: ndarray
    bottleneck: ndarray
    tradeoff: ndarray
    above: ndarray
    below: ndarray
    on_line: ndarray
    correlation: ndarray


def find_relations(
    scored: Sequence[Scored],
    metrics: Sequence[str],
    settings: Settings,
    evaluator: str,
    asked: bool = True,
) -> tuple[Relations, dict[tuple[str, str], Points]]:
    """Returns the relations of every pair of ``metrics`` with common items, and the points by the names of
    the pair.

    ``asked``: the user named the metrics.

    Raises: UserError: A metric is unknown or has a value beyond its scale, no pair has an item, or two pairs
    share a name in the official file.
    """
    known = [name for one in scored for name in one.values]
    columns = [Column.find(text, known) for text in metrics]
    values = {column.name: [column.value(one) for one in scored] for column in columns}
    if len(values) < len(columns):
        raise UserError(f"a metric is named twice: {', '.join(metrics)}")
    points = {
        (one, other): found
        for one, other in combinations(values, 2)
        if (found := _points(values[one], values[other], scored))
    }
    if not points:
        raise UserError(f"no item has values of two of {', '.join(metrics)}")
    _check_names({name for names in points for name in names})
    pairs = [_pair(one, other, of_pair, settings) for (one, other), of_pair in points.items()]
    relations = Relations(
        key=key_of(metrics, settings, evaluator, scored),
        evaluator=evaluator,
        metrics=list(metrics),
        asked=asked,
        settings=_given(settings),
        thresholds=dict(vars(settings.thresholds)),
        correlation=settings.correlation,
        resamples=settings.resamples,
        means=_pooled(points),
        pairs=pairs,
        items=len(scored),
    )
    return relations, points


def _check_names(metrics: Iterable[str]) -> None:
    """Raises UserError if two pairs have the same name in the official file, which joins their names."""
    joined: dict[str, tuple[str, str]] = {}
    for one, other in permutations(sorted(metrics), 2):
        name = f"{one}_{other}"
        if name in joined:
            raise UserError(
                f"the pairs {' × '.join(joined[name])} and {one} × {other} would both be '{name}' in result.json: "
                "name fewer metrics"
            )
        joined[name] = one, other


def _points(
    xs: Sequence[float | None], ys: Sequence[float | None], scored: Sequence[Scored]
) -> Points | None:
    """Returns the points of the items with both values; None if there are none."""
    import numpy

    triples = zip(xs, ys, scored, strict=True)
    both = [(x, y, one.prompt) for x, y, one in triples if x is not None and y is not None]
    if not both:
        return None
    x, y, prompts = zip(*both, strict=True)
    number_of = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return Points(
        numpy.array(x, float), numpy.array(y, float), numpy.array([number_of[one] for one in prompts])
    )


def _pair(first: str, second: str, points: Points, settings: Settings) -> Pair:
    import numpy

    thresholds = settings.thresholds
    once = numpy.ones((1, len(points.x)))
    correlation = correlation_of(points, settings.correlation)
    found = statistics(points, once, thresholds, settings.correlation)
    found = found._replace(correlation=numpy.array([correlation]))
    return Pair(
        first,
        second,
        code=int(decide(found, thresholds)[0]),
        n=len(points.x),
        means=(float(points.x.mean()), float(points.y.mean())),
        synergy=float(found.synergy[0]),
        bottleneck=float(found.bottleneck[0]),
        tradeoff=int(found.tradeoff[0]),
        above=int(found.above[0]),
        below=int(found.below[0]),
        on_line=int(found.on_line[0]),
        correlation=None if numpy.isnan(correlation) else correlation,
        codes=bootstrap(points, settings, f"{first}_{second}"),
    )


def _pooled(points: Mapping[tuple[str, str], Points]) -> dict[str, float]:
    """Returns the mean of each metric over all points of all its pairs.

    The sum has the order of the official program. A mean of the pairs' means would be another float, which
    may round to another third decimal.
    """
    import numpy

    values: dict[str, list[ndarray]] = defaultdict(list)
    for (first, second), of_pair in points.items():
        values[first].append(of_pair.x)
        values[second].append(of_pair.y)
    return {name: float(numpy.concatenate(parts).mean()) for name, parts in values.items()}


def _given(settings: Settings) -> dict[str, Any]:
    default = vars(Settings())
    return {name: value for name, value in vars(settings).items() if value != default[name]}


# ---- the decision


def decide(found: Statistics, thresholds: Thresholds) -> ndarray:
    """Returns each set of weights' code: the first true one of synergy, bottleneck, tilt, dispersion."""
    import numpy

    more, less = numpy.maximum(found.above, found.below), numpy.minimum(found.above, found.below)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        is_tilt = (found.tradeoff >= FEWEST) & (more / less > 1 / thresholds.dominance_ratio)
    return numpy.select(
        [
            found.synergy >= thresholds.synergy_density,
            found.bottleneck >= thresholds.bottleneck_density,
            is_tilt & (found.above > found.below),
            is_tilt,
            found.correlation < thresholds.tradeoff_corr,  # NaN compares false
        ],
        [SYNERGY, BOTTLENECK, TILT_BACK, TILT, DISPERSION],
        NONE,
    )


def statistics(points: Points, weights: ndarray, thresholds: Thresholds, correlation: str) -> Statistics:
    """Returns the quantities for :func:`decide`, for each row of ``weights`` (sets × points, integers)."""
    x, y = points.x, points.y
    high = (x > thresholds.synergy) & (y > thresholds.synergy)
    low = (x < thresholds.bottleneck) & (y < thresholds.bottleneck)
    rest = ~(high | low)
    total = weights.sum(axis=1)
    measure = {"spearman": _spearman, "pearson": _pearson, "pareto": _pareto}[correlation]
    return Statistics(
        weights @ high / total,
        weights @ low / total,
        weights[:, rest].sum(axis=1),
        *_beside_the_line(x[rest], y[rest], weights[:, rest]),
        measure(x, y, weights),
    )


def correlation_of(points: Points, kind: str) -> float:
    """Returns the correlation of the points. For a constant x or y, ``spearman`` is NaN, ``pearson`` 0."""
    import numpy
    from scipy import stats

    if kind == "pareto":
        return float(_pareto(points.x, points.y, numpy.ones((1, len(points.x))))[0])
    if numpy.ptp(points.x) == 0 or numpy.ptp(points.y) == 0:
        return numpy.nan if kind == "spearman" else 0.0
    measure = stats.spearmanr if kind == "spearman" else stats.pearsonr
    with warnings.catch_warnings(action="ignore"):  # scipy warns about nearly constant values
        return float(measure(points.x, points.y).statistic)


def _beside_the_line(x: ndarray, y: ndarray, weights: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Returns the weights of the points above the least-squares line of y on x, on or below it, and on it."""
    import numpy

    count = weights.sum(axis=1)
    if not len(x):
        return count, count, count
    safe = numpy.maximum(count, 1)
    x, y = x - x.mean(), y - y.mean()  # without centring, squares of large numbers lose digits
    mean_x, mean_y = weights @ x / safe, weights @ y / safe
    variance = weights @ (x * x) / safe - mean_x**2
    covariance = weights @ (x * y) / safe - mean_x * mean_y
    is_constant = variance <= _CONSTANT
    slope = numpy.where(is_constant, 0.0, covariance / numpy.where(is_constant, 1.0, variance))
    line = slope[:, None] * (x - mean_x[:, None]) + mean_y[:, None]
    above = (weights * (y - line > _ON_THE_LINE)).sum(axis=1)
    on_line = (weights * (abs(y - line) <= _ON_THE_LINE)).sum(axis=1)
    return above, count - above, on_line


def _spearman(x: ndarray, y: ndarray, weights: ndarray) -> ndarray:
    """Returns Spearman's ρ, NaN if x or y is constant."""
    import numpy

    u, v = _centred_ranks(x, weights), _centred_ranks(y, weights)
    # ranks are half-integers, so these sums are exact and constant values lead to exactly 0
    squares = (weights * u * u).sum(axis=1) * (weights * v * v).sum(axis=1)
    with numpy.errstate(invalid="ignore"):
        return (weights * u * v).sum(axis=1) / numpy.sqrt(numpy.where(squares == 0, numpy.nan, squares))


def _centred_ranks(values: ndarray, weights: ndarray) -> ndarray:
    """Returns the ranks of scipy.stats.rankdata in each bootstrap sample, minus their mean."""
    import numpy

    different, place = numpy.unique(values, return_inverse=True)
    order = numpy.argsort(place, kind="stable")
    starts = numpy.searchsorted(place[order], numpy.arange(len(different)))
    ties = numpy.add.reduceat(weights[:, order], starts, axis=1)
    ranks = numpy.cumsum(ties, axis=1) - (ties - 1) / 2
    return (ranks - (weights.sum(axis=1, keepdims=True) + 1) / 2)[:, place]


def _pearson(x: ndarray, y: ndarray, weights: ndarray) -> ndarray:
    """Returns Pearson's r, 0 if x or y is constant."""
    import numpy

    count = weights.sum(axis=1)
    x, y = x - x.mean(), y - y.mean()
    mean_x, mean_y = weights @ x / count, weights @ y / count
    variance_x, variance_y = weights @ (x * x) / count - mean_x**2, weights @ (y * y) / count - mean_y**2
    is_constant = (variance_x <= _CONSTANT) | (variance_y <= _CONSTANT)
    product = numpy.where(is_constant, 1.0, variance_x * variance_y)
    covariance = weights @ (x * y) / count - mean_x * mean_y
    return numpy.where(is_constant, 0.0, covariance / numpy.sqrt(product))


def _pareto(x: ndarray, y: ndarray, weights: ndarray) -> ndarray:
    """Returns the area below the points that no other point dominates, divided by (largest x) × (largest y).

    0 for fewer than two such points. Two items with equal x and y dominate each other; an item that is twice
    in a bootstrap sample does not dominate itself.
    """
    import numpy

    corners, place = numpy.unique(numpy.stack([x, y], axis=1), axis=0, return_inverse=True)
    place = place.ravel()
    order = numpy.argsort(place, kind="stable")
    starts = numpy.searchsorted(place[order], numpy.arange(len(corners)))
    items = numpy.add.reduceat(weights[:, order] > 0, starts, axis=1, dtype=int)[:, ::-1]
    right, top = corners[::-1].T  # from right to left; with equal x, the highest first
    height = numpy.where(items > 0, top, -numpy.inf)
    highest = numpy.maximum.accumulate(height, axis=1)
    before = numpy.concatenate([numpy.full((len(items), 1), -numpy.inf), highest[:, :-1]], axis=1)
    in_front = (items == 1) & (top > before)
    number = numpy.maximum.accumulate(numpy.where(in_front, numpy.arange(len(right)), -1), axis=1)
    last = numpy.concatenate([numpy.full((len(items), 1), -1), number[:, :-1]], axis=1)
    pieces = numpy.where(in_front & (last >= 0), (right[last] - right) * (top[last] + top) / 2, 0.0)
    largest = numpy.where(items > 0, right, 0.0).max(axis=1) * numpy.where(items > 0, top, 0.0).max(axis=1)
    return numpy.where(largest > 0, pieces.sum(axis=1) / numpy.where(largest > 0, largest, 1.0), 0.0)


# ---- the certainty of a relation


def bootstrap(points: Points, settings: Settings, name: str) -> dict[str, float]:
    """Returns the share of each code (as text) over bootstrap samples of prompts; {} for too few prompts.

    The random seed depends only on ``name``, so that other pairs do not change the result.
    """
    import numpy

    prompts = int(points.prompt.max()) + 1
    if prompts < FEWEST:
        return {}
    random = numpy.random.default_rng([_SEED, zlib.crc32(name.encode("utf-8", "surrogatepass"))])
    counts: dict[str, int] = {}
    at_once = max(1, _WEIGHTS // len(points.x))
    for start in range(0, settings.resamples, at_once):
        size = min(at_once, settings.resamples - start)
        drawn = random.integers(0, prompts, (size, prompts)) + numpy.arange(size)[:, None] * prompts
        times = numpy.bincount(drawn.ravel(), minlength=size * prompts).reshape(size, prompts)
        weights = times[:, points.prompt].astype(float)
        found = decide(
            statistics(points, weights, settings.thresholds, settings.correlation), settings.thresholds
        )
        for code, count in zip(*numpy.unique(found, return_counts=True), strict=True):
            counts[str(int(code))] = counts.get(str(int(code)), 0) + int(count)
    return {code: count / settings.resamples for code, count in sorted(counts.items())}
