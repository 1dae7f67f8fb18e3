"""Models of one column in groups: those with a letter in common cannot be told apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from string import ascii_lowercase

from imageevalkit.statistics.comparison import Measured, compare_all


def rank_groups(column: Sequence[Measured]) -> list[str]:
    """The letters of each model, "a" for all that cannot be told from the best (the highest value), "b" for the next,
    "ab" where it is of both; all empty where no two can be tested.

    Two models without a letter in common differ, by :func:`compare_all`'s test of all pairs. Raises ValueError: one has
    no value.
    """
    found = compare_all(column, with_intervals=False)
    if all(one.p is None for one in found):
        return [""] * len(column)
    order = sorted(range(len(column)), key=lambda n: -(column[n].metric.value or 0.0))
    place = {n: rank for rank, n in enumerate(order)}
    pairs = ((a, b) for a in range(len(column)) for b in range(a + 1, len(column)))
    told = [(place[a], place[b]) for (a, b), one in zip(pairs, found, strict=True) if one.told]
    groups = sorted(sorted(group) for group in compact_groups(len(column), told))
    names = _names()
    letters = [""] * len(column)
    for group, letter in zip(groups, names, strict=False):
        for rank in group:
            letters[order[rank]] += letter
    return letters


def compact_groups(count: int, told: Iterable[tuple[int, int]]) -> list[frozenset[int]]:
    """The largest groups of 0 … ``count`` - 1 in which no two are ``told`` apart: a compact letter display (insert and
    absorb, Piepho 2004, Journal of Computational and Graphical Statistics 13)."""
    groups = [frozenset(range(count))]
    for a, b in told:
        split = [
            part for group in groups for part in ([group - {a}, group - {b}] if {a, b} <= group else [group])
        ]
        groups = [one for one in dict.fromkeys(split) if not any(one < other for other in split)]
    return groups


def _names() -> Iterator[str]:
    """a, b, … z, and then a1, b1, …"""
    yield from ascii_lowercase
    yield from (f"{letter}{number}" for number, letter in product(range(1, 1000), ascii_lowercase))
