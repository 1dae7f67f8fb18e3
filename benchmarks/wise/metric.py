"""The metrics of a WISE run: WiScore over all, by category and subcategory, and the scores it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.wise.categories import PROMPTS, Category
from imageevalkit.cell.results import Metric
from imageevalkit.metrics.intervals import Stratum, interval, interval_of_sum

OVERALL, OFFICIAL, MISSING_AS_0 = "overall", "overall_official", "overall_missing_as_0"
_PART_SCALE = 2.0


class Scored(NamedTuple):
    """One prompt's image: its WiScore (0-1) and the ``parts`` (0-2) that make it, none in the verified protocol."""

    prompt_id: int
    category: str
    subcategory: str
    wiscore: float
    parts: Mapping[str, float]


Groups = Mapping[str, Sequence[Scored]]


def metrics(
    scored: Sequence[Scored],
    expected: Mapping[str, int],
    categories: Sequence[Category],
    parts: Sequence[str],
) -> dict[str, Metric]:
    """Every metric by name; ``expected`` is the number of the run's items in each category, scored or not.

    * ``overall``: Σ weight · mean WiScore of a category, without value until every category has a score.
    * ``overall_official``: the same, without value unless each of the 1000 prompts has a score: the official
      program prints nothing else.
    * ``overall_missing_as_0``: the same when what has no score counts as 0.
    * ``culture``, ``time``, …: mean WiScore of a category; ``subcategory/<label>``: of a label of the data file.
    * for each of ``parts``: ``<part>`` (weighted like ``overall``) and ``<part>/<category>``: means on the scale
      0-2; ``<part>_sum`` and ``<part>_sum/<category>``: the sums of the paper's tables 3-8, whose overall is the
      same weighted sum of sums; only of categories with a score for every prompt.

    Intervals are of WiScore means: 95 %, of other prompts of the same categories. ``n`` counts images.
    """
    ordered = sorted(scored, key=lambda one: one.prompt_id)  # a float sum depends on the order
    groups = {c.name: [one for one in ordered if one.category == c.name] for c in categories}
    overall = _overall(groups, categories)
    complete = len({one.prompt_id for one in ordered}) == PROMPTS
    result = {
        OVERALL: overall,
        OFFICIAL: overall if complete else Metric(None, len(ordered)),
        MISSING_AS_0: _missing_as_0(groups, expected, categories),
    }
    result |= {name: _mean(group) for name, group in groups.items() if group}
    for label in dict.fromkeys(one.subcategory for one in ordered):
        group = [one for one in ordered if one.subcategory == label]
        result[f"subcategory/{label}"] = _mean(group)
    for part in parts:
        result |= _part(part, groups, categories)
    return result


def weighted(values: Mapping[str, float | None], categories: Sequence[Category]) -> float | None:
    """Σ weight · value over ``categories``; None when one has no value."""
    total = 0.0
    for category in categories:
        value = values.get(category.name)
        if value is None:
            return None
        total += category.weight * value
    return total


def _mean_of(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _wiscores(group: Sequence[Scored]) -> list[float]:
    return [one.wiscore for one in group]


def _parts(group: Sequence[Scored]) -> list[tuple[float, float]]:
    return [(score, 1.0) for score in _wiscores(group)]


def _mean(group: Sequence[Scored]) -> Metric:
    return Metric(_mean_of(_wiscores(group)), len(group), interval(_parts(group)))


def _overall(groups: Groups, categories: Sequence[Category]) -> Metric:
    value = weighted({name: _mean_of(_wiscores(group)) for name, group in groups.items()}, categories)
    strata = [Stratum(category.weight, _parts(groups[category.name])) for category in categories]
    return Metric(value, sum(map(len, groups.values())), interval_of_sum(strata))


def _missing_as_0(groups: Groups, expected: Mapping[str, int], categories: Sequence[Category]) -> Metric:
    means = {
        name: sum(_wiscores(group)) / expected[name] for name, group in groups.items() if expected.get(name)
    }
    return Metric(weighted(means, categories), sum(expected.values()))


def _part(part: str, groups: Groups, categories: Sequence[Category]) -> dict[str, Metric]:
    values = {name: [one.parts[part] for one in group] for name, group in groups.items()}
    means = {name: _mean_of(of_category) for name, of_category in values.items()}
    whole = {c.name: sum(values[c.name]) for c in categories if len(values[c.name]) == len(c.ids)}
    count = sum(map(len, values.values()))
    result = {part: Metric(weighted(means, categories), count, scale=_PART_SCALE)}
    for name, mean in means.items():
        if mean is not None:
            result[f"{part}/{name}"] = Metric(mean, len(values[name]), scale=_PART_SCALE)
    if len(whole) == len(categories):
        top = weighted({c.name: _PART_SCALE * len(c.ids) for c in categories}, categories) or 0.0
        result[f"{part}_sum"] = Metric(weighted(whole, categories), count, scale=top)
    for name, total in whole.items():
        size = len(values[name])
        result[f"{part}_sum/{name}"] = Metric(total, size, scale=_PART_SCALE * size)
    return result
