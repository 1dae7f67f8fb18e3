"""Whether it is settled, by the items that were asked for so far, which of two models is better on a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from imageevalkit.cell import Cell
from imageevalkit.cell.items import draw_order
from imageevalkit.cell.jsonl import Tell, read_jsonl
from imageevalkit.cell.results import SCORE, Metric
from imageevalkit.comparing.reading import Scored, headline_of, read_below
from imageevalkit.statistics.sequential import Verdict, verdict

if TYPE_CHECKING:
    import numpy as np


class Unfit(Exception):
    """Of a metric no verdict can be had early, for the reason that it says."""


class Look(NamedTuple):
    """What the results of two models say once ``asked`` of ``total`` items were asked for, of which ``both`` models
    have so many: a verdict by headline metric. ``unfit`` says why there can be none early (empty: there can)."""

    asked: int
    total: int
    both: int
    verdicts: Mapping[str, Verdict]
    unfit: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to find out: of every headline metric it is known which model is better."""
        settled = [one.first_is_better is not None for one in self.verdicts.values()]
        return bool(settled) and all(settled)

    def better(self, models: Sequence[str]) -> dict[str, tuple[str, int]]:
        """By headline metric that is settled, which of two ``models`` is better and how many items it took."""
        return {
            name: (models[0 if one.first_is_better else 1], one.items)
            for name, one in self.verdicts.items()
            if one.first_is_better is not None
        }

    def told(self, models: Sequence[str]) -> str:
        """In words."""
        better, parts = self.better(models), list[str]()
        for name, one in self.verdicts.items():
            if name in better:
                winner, items = better[name]
                loser = next(model for model in models if model != winner)
                parts.append(f"{name}: {winner} > {loser}, settled after {items:,}")
            else:
                parts.append(f"{name}: not settled, evidence {one.evidence:.2g} of {one.needed:.0f}")
        words = self.unfit or "; ".join(parts) or "no score yet"
        return f"{self.asked:,} of {self.total:,} items: {words}"


def look(first: Cell, second: Cell, tell: Tell) -> Look | None:
    """What the results of two cells of one benchmark say that were written last by one evaluator; None: there is none
    of both."""
    sides = [read_below(cell.folder, tell) for cell in (first, second)]
    pairs = [
        pair
        for pair in product(*sides)
        if pair[0].evaluator == pair[1].evaluator
        and pair[0].result.benchmark_version == pair[1].result.benchmark_version
        and pair[0].result.coverage.expected == pair[1].result.coverage.expected
    ]
    # what is full stays, and is older
    found = max(pairs, key=lambda pair: max(one.result.provenance["time"] for one in pair), default=None)
    if found is None:
        return None
    total = found[0].result.coverage.expected
    asked = min(one.result.coverage.asked for one in found)
    order = draw_order(first.benchmark, total)[:asked]
    names, verdicts = headline_of(*(one.result for one in found)), dict[str, Verdict]()
    both = 0
    for name in names:
        try:
            given, groups, shares = _differences(found, name, order)
            if given is None:
                continue
            both = max(both, sum(one == one for one in given.tolist()))
            verdicts[name] = verdict(given, total, groups, shares, len(names))
        except (Unfit, ValueError) as error:
            return Look(asked, total, both, {}, f"{name}: {error}, so that all items are needed")
    # one that has no score yet is not settled
    return Look(asked, total, both, verdicts if len(verdicts) == len(names) else {})


def _differences(
    pair: Sequence[Scored], name: str, order: Sequence[int]
) -> tuple[np.ndarray | None, np.ndarray, Sequence[float]]:
    """What the first of a ``pair`` got more than the second, of a scale of 1, for the items of the ``order``; the
    number of each item's group, and the shares of the groups. None: a model has no value yet.

    Raises Unfit: the metric is no mean over items, or over groups of items.
    """
    import numpy as np

    metrics = [one.result.metrics.get(name) for one in pair]
    known = [metric for metric in metrics if metric is not None and metric.value is not None]
    if len(known) < 2:
        return None, np.zeros(0, int), []
    one, other = known
    if one.shares != other.shares:
        raise Unfit("its groups are weighted by what the models made")
    groups: list[str | None] = [*one.shares] if one.shares else [None]
    sides = [_by_place(scored, metric, order) for scored, metric in zip(pair, known, strict=True)]
    given: np.ndarray = np.full(len(order), np.nan)
    kinds: np.ndarray = np.zeros(len(order), int)
    for n, place in enumerate(order):
        mine, theirs = (side.get(place) for side in sides)
        if mine is None or theirs is None:
            continue
        if mine[1] != theirs[1]:
            raise Unfit("an item is in another group for each model")
        given[n], kinds[n] = mine[0] - theirs[0], groups.index(mine[1])
    return given, kinds, [*one.shares.values()] if one.shares else [1.0]


def _by_place(scored: Scored, metric: Metric, order: Sequence[int]) -> dict[int, tuple[float, str | None]]:
    """What each item got of a scale of 1, and its group, by its number in the benchmark. Raises Unfit."""
    if not metric.parts:
        raise Unfit("the files do not say what each item gives to it")
    records = [*read_jsonl(scored.source.with_name(scored.cell.scores.name), SCORE)]
    # of a result of all items those that were drawn are looked at
    places = sorted(order) if len(records) == len(order) else range(len(records))
    place_of = {record["item"]: place for place, record in zip(places, records, strict=True)}
    found = dict[int, tuple[float, str | None]]()
    for part in metric.parts:
        place = place_of[part.item]
        if part.weight != 1 or place in found:
            raise Unfit("its items weigh differently")
        found[place] = part.total / metric.scale, part.group
    if any(value < 0 for value, _ in found.values()):
        raise Unfit("its scores go below 0")
    return found
