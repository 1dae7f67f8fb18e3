"""Detects whether a judge has changed, and distinguishes that from a judge that is merely unsure.

An unchanged judge draws all replies to a question from the same distribution. Even if it is unsure, it rarely
agrees with itself in the earlier run and then on another answer in this run. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from imageevalkit.store.results import Drift

BEFORE = 2
"""The number of replies of the earlier run that are compared, if there are so many."""
_CONFIRMED = 5
"""The number of replies in this run to a question whose first reply differs from the earlier replies."""
# The highest rate of false alarms: the share of runs with an unchanged judge that report a drift.
_ALARM = 0.01
# Providers' log-probabilities vary by about one percent from call to call, even at temperature 0.
_TOLERANCE = 0.05


class Reply(NamedTuple):
    """The content of a reply: a JSON ``value``, or ``probabilities`` (0-1) of the first token."""

    value: Any
    probabilities: Mapping[str, float] | None = None

    def agrees(self, other: Reply) -> bool:
        """Returns whether the values are equal, or all probabilities within 0.05: less is noise."""
        one, two = self.probabilities, other.probabilities
        if one is None or two is None:
            return bool(self.value == other.value)
        return all(abs(one.get(name, 0.0) - two.get(name, 0.0)) <= _TOLERANCE for name in {*one, *two})


def _agree(replies: Sequence[Reply]) -> bool:
    return all(one.agrees(two) for one, two in combinations(replies, 2))


@dataclass(frozen=True)
class Series:
    """The replies to the question ``name``: in this run (``now``) and at most two ``before`` it.

    The replies before are from one earlier run, which started at ``since`` (ISO 8601; empty if unknown).
    ``before`` is empty if the question was first answered in this run.
    """

    name: str
    before: Sequence[Reply]
    now: Sequence[Reply]
    since: str = ""

    @property
    def _planned(self) -> int:
        """The number of replies in this run that are requested in any case: two of one run show the noise."""
        return 1 if len(self.before) == BEFORE else 2

    @property
    def wanted(self) -> int:
        """The number of replies still to request: more for a question that seems changed, to confirm it."""
        most = self._planned
        if len(self.before) == BEFORE and self.now and self.seems_changed:
            most = _CONFIRMED
        return max(0, most - len(self.now))

    @property
    def pair(self) -> tuple[Reply, Reply] | None:
        """Two replies of one run, whose difference shows the judge's noise; None if there are none."""
        for of_run in (self.before, self.now):
            if len(of_run) >= 2:
                return of_run[0], of_run[1]
        return None

    @property
    def seems_changed(self) -> bool:
        """True if all replies before agree, all replies now agree, and these two answers differ."""
        apart = not any(one.agrees(two) for one in self.before for two in self.now)
        return apart and _agree(self.before) and _agree(self.now)

    @property
    def counts(self) -> bool:
        """True if the question is informative: not all of the planned replies agree."""
        return not _agree([*self.before, *self.now[: self._planned]])

    @property
    def chance(self) -> float:
        """The highest probability that an unchanged judge's question seems changed, given that it counts.

        Let h be the number of replies before. Let k be the number now if the question keeps seeming changed,
        s of them planned. Each choice of h of the h + k replies is equally likely to be "before". Only
        replies that form two groups of h and k agreeing replies can seem changed, in one of C(h + k, h)
        choices. C(k - s, h) choices do not count, because their first h + s replies agree. The bound holds
        for any judge: 1/15 for two and five replies, 1/3 for one and two.
        """
        h, s = len(self.before), self._planned
        k = _CONFIRMED if h == BEFORE else s
        return 1 / (math.comb(h + k, h) - math.comb(k - s, h))


def drift_of(series: Iterable[Series]) -> Drift | None:
    """Returns the drift between the replies of two runs; None if no question has all replies of both.

    The test is exact. Each question that counts seems changed with at most its ``chance``, independently of
    others. p is the probability of at least as many such questions (the tail of a sum of Bernoulli
    variables).
    """
    known = [one for one in series if one.before and not one.wanted]
    if not known:
        return None
    changed = [one.name for one in known if one.counts and one.seems_changed]
    likely = [1.0]  # the probability of each number of seemingly changed questions
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
