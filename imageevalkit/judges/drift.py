"""How it is told whether a judge answers otherwise than it did, or only says this today and that tomorrow.

A question is looked at by its replies of one run before and of one run now. A judge that has not changed draws all of
them alike: however unsure it is, it is seldom of one mind before, and of one other mind now. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from imageevalkit.cell.results import Drift

BEFORE = 2
"""Replies of the run before that are looked at, where there are so many."""
_CONFIRMED = 5
"""Replies of a run to a question whose first one there is another than those before."""
# Of all runs with an unchanged judge, however unsure it is, fewer than this share is told of a drift.
_ALARM = 0.01
# What providers' log-probabilities differ by from call to call, at temperature 0 too, is about a percent.
_TOLERANCE = 0.05


class Reply(NamedTuple):
    """What a reply comes to: a JSON ``value``; of a question for the first token its ``probabilities`` (0-1)."""

    value: Any
    probabilities: Mapping[str, float] | None = None

    def agrees(self, other: Reply) -> bool:
        """Whether both have the same value, or each probability within 0.05: the last digits say nothing."""
        one, two = self.probabilities, other.probabilities
        if one is None or two is None:
            return bool(self.value == other.value)
        return all(abs(one.get(name, 0.0) - two.get(name, 0.0)) <= _TOLERANCE for name in {*one, *two})


def _agree(replies: Sequence[Reply]) -> bool:
    return all(one.agrees(two) for one, two in combinations(replies, 2))


@dataclass(frozen=True)
class Series:
    """The replies to the question ``name``: at most two of the run ``before`` that began at ``since`` (ISO 8601; empty:
    it is not known), and those of this run (``now``). None before: it was first answered in this run."""

    name: str
    before: Sequence[Reply]
    now: Sequence[Reply]
    since: str = ""

    @property
    def _planned(self) -> int:
        """Replies now that do not depend on what they are: two of a run show how unsure the judge is."""
        return 1 if len(self.before) == BEFORE else 2

    @property
    def wanted(self) -> int:
        """How many more replies it takes: two of a run, one where the run before has two, and of what seems changed
        further ones, so that it is known whether it stays so."""
        most = self._planned
        if len(self.before) == BEFORE and self.now and self.seems_changed:
            most = _CONFIRMED
        return max(0, most - len(self.now))

    @property
    def pair(self) -> tuple[Reply, Reply] | None:
        """Two replies of one run, whose difference is the judge's noise; None: there are none."""
        for of_run in (self.before, self.now):
            if len(of_run) >= 2:
                return of_run[0], of_run[1]
        return None

    @property
    def seems_changed(self) -> bool:
        """Whether all replies before agree, and all now, and none of those with any of these."""
        apart = not any(one.agrees(two) for one in self.before for two in self.now)
        return apart and _agree(self.before) and _agree(self.now)

    @property
    def counts(self) -> bool:
        """Whether it tells anything: not all of the replies agree that were asked for whatever they are."""
        return not _agree([*self.before, *self.now[: self._planned]])

    @property
    def chance(self) -> float:
        """How likely, at most, it is to seem changed, of a judge that has not, given that it counts.

        Of h replies before, and k now if it goes on seeming changed, s of which are asked for whatever they are: drawn
        alike, each choice of h of the h + k is as likely to be "before". Of replies that fall into two minds of h and k
        (no others seem changed, however they are ordered) one of C(h + k, h) choices seems changed, and all count but
        those where the first h + s are of one mind, C(k - s, h). So the share is the bound, for any judge: 1/15 of two
        and five replies, 1/3 of one and two.
        """
        h, s = len(self.before), self._planned
        k = _CONFIRMED if h == BEFORE else s
        return 1 / (math.comb(h + k, h) - math.comb(k - s, h))


def drift_of(series: Iterable[Series]) -> Drift | None:
    """What replies of two runs tell; None where no question has all of both.

    The test is exact: of the questions that count, each seems changed with at most its chance, by itself; p is how
    likely it is that as many do as do (the tail of a sum of Bernoulli variables, term by term).
    """
    known = [one for one in series if one.before and not one.wanted]
    if not known:
        return None
    changed = [one.name for one in known if one.counts and one.seems_changed]
    likely = [1.0]  # by how many seem changed
    for one in known:
        if one.counts:
            shifted = [0.0, *likely]
            likely = [
                (1 - one.chance) * stay + one.chance * more
                for stay, more in zip([*likely, 0.0], shifted, strict=True)
            ]
    p = min(1.0, math.fsum(likely[len(changed) :])) if changed else 1.0
    return Drift(
        since=min((one.since for one in known), default=""),
        asked=len(known),
        changed=changed,
        p=p,
        found=p < _ALARM,
    )
