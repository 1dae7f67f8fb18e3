"""Decide from the items so far whether one of two models is better on a benchmark, for ``--until``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from imageevalkit.extras.until.sequential import Verdict, verdict
from imageevalkit.report.item_parts import SCORE
from imageevalkit.report.reading import Scored, headline_of, read_below
from imageevalkit.store.cell import Cell
from imageevalkit.store.jsonl import Tell, read_jsonl
from imageevalkit.store.results import Metric

if TYPE_CHECKING:
    import numpy as np


class Unfit(Exception):
    """A metric allows no early verdict. The message is the reason."""


class Look(NamedTuple):
    """The verdicts on two models, by headline metric, after ``asked`` of ``total`` items.

    ``both`` counts the items that both models have a score for. ``unfit`` is the reason why an early verdict
    is impossible; it is empty if a verdict is possible."""

    asked: int
    total: int
    both: int
    verdicts: Mapping[str, Verdict]
    unfit: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether every headline metric has a better model, so that no further item is needed."""
        settled = [one.first_is_better is not None for one in self.verdicts.values()]
        return bool(settled) and all(settled)

    def better(self, models: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return the better of two ``models`` and the number of items it took, by settled headline metric."""
        return {
            name: (models[0 if one.first_is_better else 1], one.items)
            for name, one in self.verdicts.items()
            if one.first_is_better is not None
        }

    def summary(self, models: Sequence[str]) -> str:
        """Return the state as one line of text."""
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
    """Return the state of two cells, by their newest results of the same evaluator and version.

    Returns None if the cells have no such pair of results."""
    sides = [read_below(cell.folder, tell) for cell in (first, second)]
    pairs = [
        pair
        for pair in product(*sides)
        if pair[0].evaluator == pair[1].evaluator
        and pair[0].result.benchmark_version == pair[1].result.benchmark_version
        and pair[0].result.coverage.expected == pair[1].result.coverage.expected
    ]
    # the newest pair: a full result of an earlier run stays on disk
    found = max(
        pairs, key=lambda pair: max(one.result.provenance.get("time", "") for one in pair), default=None
    )
    if found is None:
        return None
    asked, total = min(one.result.coverage.asked for one in found), found[0].result.coverage.expected
    if asked == total:
        return Look(asked, total, asked, {})
    names = headline_of(*(one.result for one in found))
    verdicts, both = dict[str, Verdict](), 0
    for name in names:
        try:
            drawn = _drawn(found, name)
            if drawn is None:
                continue
            both = max(both, drawn.both)
            units = drawn.differences, total / drawn.size, drawn.groups, drawn.shares
            one_verdict = verdict(*units, len(names))
        except (Unfit, ValueError) as error:
            return Look(asked, total, both, {}, f"{name}: {error}, so that all items are needed")
        verdicts[name] = one_verdict._replace(items=one_verdict.items * drawn.size)
    # if a metric has no value yet, no metric counts as settled
    return Look(asked, total, both, verdicts if len(verdicts) == len(names) else {})


class _Drawn(NamedTuple):
    """The ``differences`` of two models (first - second, on a scale of 1), by prompt in drawn order.

    A difference is NaN if a model lacks a score. ``groups`` is the group number of each prompt, ``shares``
    the share of each group. A prompt has ``size`` images. ``both`` counts the items that both models have
    scores for."""

    differences: np.ndarray
    groups: np.ndarray
    shares: Sequence[float]
    size: int
    both: int


def _drawn(pair: Sequence[Scored], name: str) -> _Drawn | None:
    """Return the differences of the metric ``name``; None if a model has no value yet.

    Raises Unfit if the metric is not a mean over items or over groups of items."""
    import numpy as np

    metrics = [one.result.metrics.get(name) for one in pair]
    known = [metric for metric in metrics if metric is not None and metric.value is not None]
    if len(known) < 2:
        return None
    one, other = known
    if one.shares != other.shares:
        raise Unfit("the items of the models decide the weights of its groups")
    names: list[str | None] = [*one.shares] if one.shares else [None]
    mine, theirs = _by_item(one), _by_item(other)
    first = min(pair, key=lambda one: one.result.coverage.asked)
    prompts = dict[str, list[str]]()
    # the score file with fewer items has them in the order of the draw
    for record in read_jsonl(first.source.with_name(first.cell.scores.name), SCORE):
        prompts.setdefault(first.hashes.get(record["item"], record["item"]), []).append(record["item"])
    sizes = [len(items) for items in prompts.values()]
    if sizes[-1] < max(sizes):  # the draw ends within a prompt: some of its images are missing
        prompts.popitem()
        sizes.pop()
    if len(set(sizes)) > 1:  # the number of prompts of the whole benchmark would be unknown
        raise Unfit(f"its prompts have {min(sizes)} to {max(sizes)} images each")
    differences, groups, both = list[float](), list[int](), 0
    for items in prompts.values():
        both_have = [(mine[item], theirs[item]) for item in items if item in mine and item in theirs]
        kinds = {group for pair in both_have for _, group in pair}
        if len(kinds) > 1:
            raise Unfit("images of a prompt are in several groups")
        both += len(both_have)
        gained = sum(a - b for (a, _), (b, _) in both_have) / max(sizes)
        differences.append(gained if len(both_have) == len(items) else math.nan)
        groups.append(names.index(next(iter(kinds))) if kinds else 0)
    shares = [*one.shares.values()] if one.shares else [1.0]
    return _Drawn(np.array(differences), np.array(groups), shares, max(sizes), both)


def _by_item(metric: Metric) -> dict[str, tuple[float, str | None]]:
    """Return each item's value on a scale of 1, and its group. Raises Unfit if a value is unusable."""
    if not metric.parts:
        raise Unfit("the files have no values of items for it")
    found = dict[str, tuple[float, str | None]]()
    for part in metric.parts:
        if part.weight != 1 or part.item in found:
            raise Unfit("its items weigh differently")
        if part.total < 0:
            raise Unfit("its scores go below 0")
        found[part.item] = part.total / metric.scale, part.group
    return found
