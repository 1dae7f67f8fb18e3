"""Changes between two results: each metric with its test, its items, and the agreement of two judges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

from imageevalkit.common.text import counted
from imageevalkit.extras.compare.sides import Pair
from imageevalkit.report.comparison import LEVEL, POWER, Comparison, adjust, compare
from imageevalkit.report.reading import headline_of
from imageevalkit.store.jsonl import Tell
from imageevalkit.store.results import Metric

NOT_SIGNIFICANT, WITHIN_NOISE = "no significant difference", "within the judge's noise"
_MOST_GRADES = 12  # a scale with more values is not one of grades: judges rarely give the same value
_SAME = 1e-9  # of the scale


class Item(NamedTuple):
    """The values of one item for a metric in both results."""

    item: str
    prompt: str
    before: float
    after: float

    @property
    def moved(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Agreement:
    """The agreement of two judges on the same ``n`` items. ``same`` is the share of equal values.

    ``kappa`` is Cohen's, with quadratic weights if there are more than two grades. It is None if the scale
    has no grades, or if both judges give one grade only. ``correlation`` is Spearman's; None if a judge gives
    one value only."""

    n: int
    same: float
    kappa: float | None
    interval: tuple[float, float] | None
    weighted: bool
    correlation: float | None


@dataclass(frozen=True)
class Move:
    """The change of a ``metric``. ``cell`` is model/benchmark, or the benchmark if the models differ.

    ``found`` compares after - before. A paired comparison covers the items that both results have. Their
    means may differ a little from ``before`` and ``after``, the values of all items. ``warning`` says that
    a judge has drifted."""

    cell: str
    evaluator: str
    metric: str
    headline: bool
    before: Metric
    after: Metric
    found: Comparison
    items: Sequence[Item]
    agreement: Agreement | None = None
    warning: str = ""

    @property
    def scale(self) -> float:
        return self.before.scale

    @property
    def smallest(self) -> float | None:
        """The smallest difference that this test alone detects with a power of 80 %; None if unknown."""
        if self.found.spread is None or self.found.n < 2:
            return None
        from statsmodels.stats.power import TTestPower

        effect = TTestPower().solve_power(nobs=self.found.n, alpha=LEVEL, power=POWER)
        of_noise = NormalDist().inv_cdf(1 - LEVEL / 2) + NormalDist().inv_cdf(POWER)
        return max(float(effect) * self.found.spread, of_noise * self.found.noise)

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``no significant difference``, ``within the judge's noise`` or ``not tested``.

        Two judges, and metrics that are not headline metrics, get ``higher`` and ``lower``: a lower value may
        be better (an edit distance).
        """
        if self.found.p is None:
            return "not tested"
        if not self.found.is_significant:
            return WITHIN_NOISE if self.found.within_noise else NOT_SIGNIFICANT
        if self.agreement or not self.headline:
            return "higher" if self.found.difference > 0 else "lower"
        return "better" if self.found.difference > 0 else "worse"

    @property
    def moved(self) -> list[Item]:
        """The items whose value changed, largest change first."""
        found = [one for one in self.items if abs(one.moved) > _SAME * abs(self.scale)]
        return sorted(found, key=lambda one: (-abs(one.moved), one.item))

    @property
    def summary(self) -> str:
        """``37 of 1,000 items moved: 12 up, 25 down``."""
        if not self.items:
            return "the files have no values of items"
        up = sum(one.moved > 0 for one in self.moved)
        how = f": {up:,} up, {len(self.moved) - up:,} down" if self.moved else ""
        return f"{len(self.moved):,} of {len(self.items):,} items moved{how}"


def moves_of(pairs: Sequence[Pair], names: tuple[str, str], tell: Tell) -> list[Move]:
    """Return the change of every metric that both results of a pair have, headline metrics first.

    Holm's method adjusts p over the headline metrics of all ``pairs``, and separately over all other metrics.
    Otherwise hundreds of subgroups would hide a change of a headline metric.
    """
    found = [move for pair in pairs for move in _of_pair(pair, names, tell)]
    for is_headline in (True, False):
        places = [n for n, move in enumerate(found) if move.headline == is_headline]
        for n, one in zip(places, adjust([found[n].found for n in places]), strict=True):
            found[n] = replace(found[n], found=one)
    return sorted(found, key=lambda move: not move.headline)


def _of_pair(pair: Pair, names: tuple[str, str], tell: Tell) -> list[Move]:
    before, after = pair.before, pair.after
    left_out = pair.other_prompts
    models = dict.fromkeys((before.cell.model, after.cell.model))
    cell = f"{next(iter(models))}/{before.cell.benchmark}" if len(models) == 1 else before.cell.benchmark
    if left_out:
        tell(
            f"{cell}: {counted(len(left_out), 'item')} left out, whose prompt is another one in '{names[1]}'"
        )
    for name, scored in zip(names, (before, after), strict=True):
        if scored.result.withheld:
            tell(
                f"{cell}: '{name}' has no complete score ({scored.result.withheld}): compared on common items"
            )
        if scored.result.drift:
            tell(f"{cell}: '{name}': {scored.result.drift}")
    if before.result.coverage.unasked:
        tell(
            f"{cell}: --until stopped when it saw enough, so that p is too small: the verdict in result.json counts"
        )
    warning = before.result.drift or after.result.drift
    headline = headline_of(before.result, after.result)
    found = []
    for metric in dict.fromkeys([*headline, *before.result.metrics]):
        other, one = pair.measured(metric, names)
        if one is None or other is None or not math.isclose(one.metric.scale, other.metric.scale):
            if metric in headline:
                tell(f"{cell}: {metric} is not in both results with a value on one scale")
            continue
        comparison = compare(one, other)
        if not comparison.paired and (before.result.limit != after.result.limit or left_out):
            tell(f"{cell}: {metric} is not compared: the results are on other items, and nothing pairs them")
            continue
        items = _items(other.metric, one.metric, {**before.prompts, **after.prompts})
        agreement = _agreement(items) if pair.judges and items else None
        who = f"{before.evaluator} → {after.evaluator}" if pair.judges else before.evaluator
        is_headline = metric in headline
        found.append(
            Move(
                cell,
                who,
                metric,
                is_headline,
                other.metric,
                one.metric,
                comparison,
                items,
                agreement,
                warning,
            )
        )
    return found


def _items(before: Metric, after: Metric, prompts: dict[str, str]) -> list[Item]:
    mine, theirs = _values(before), _values(after)
    return [Item(item, prompts.get(item, ""), mine[item], theirs[item]) for item in mine if item in theirs]


def _values(metric: Metric) -> dict[str, float]:
    """Return the value of each item, on the scale of the metric."""
    sums: dict[str, tuple[float, float]] = {}
    for part in metric.parts:
        total, weight = sums.get(part.item, (0.0, 0.0))
        sums[part.item] = total + part.total, weight + part.weight
    return {item: total / weight for item, (total, weight) in sums.items() if weight}


# ---- two judges


def _agreement(items: Sequence[Item]) -> Agreement:
    pairs = [(round(one.before, 9), round(one.after, 9)) for one in items]
    same = sum(one == other for one, other in pairs) / len(pairs)
    grades = sorted({grade for pair in pairs for grade in pair})
    kappa = interval = None
    if 1 < len(grades) <= _MOST_GRADES:
        kappa, interval = _kappa(pairs, grades)
    return Agreement(len(pairs), same, kappa, interval, len(grades) > 2, _correlation(pairs))


def _kappa(
    pairs: Sequence[tuple[float, float]], grades: Sequence[float]
) -> tuple[float | None, tuple[float, float] | None]:
    import numpy as np
    from statsmodels.stats.inter_rater import cohens_kappa

    counts = Counter(pairs)
    table = np.array([[counts[one, other] for other in grades] for one in grades])
    # a disagreement counts by the square of its distance (Cohen 1968); grades need not be evenly spaced
    found = (
        cohens_kappa(table, weights=np.array(grades), wt="quadratic")
        if len(grades) > 2
        else cohens_kappa(table)
    )
    kappa, low, high = (float(value) for value in (found.kappa, found.kappa_low, found.kappa_upp))
    if math.isnan(kappa):
        return None, None
    return kappa, None if math.isnan(low) else (max(-1.0, low), min(1.0, high))


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    mine, theirs = zip(*pairs, strict=True)
    if len(set(mine)) < 2 or len(set(theirs)) < 2:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(mine, theirs).statistic)
