"""Rank groups of the models of one column. Models that share a letter do not differ significantly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from string import ascii_lowercase

from imageevalkit.report.comparison import Measured, significant_pairs


def rank_groups(column: Sequence[Measured]) -> list[str]:
    """Return the letters of each model's groups, or only empty texts if no two models can be tested.

    The best model (highest value) and all models that do not differ from it have "a", the next group has "b".
    A model in both groups has "ab". Two models without a common letter differ by :func:`significant_pairs`. Raises
    ValueError if a model has no value.
    """
    pairs = significant_pairs(column)
    if pairs is None:
        return [""] * len(column)
    order = sorted(range(len(column)), key=lambda n: -(column[n].metric.value or 0.0))
    place = {n: rank for rank, n in enumerate(order)}
    groups = sorted(
        sorted(group) for group in compact_groups(len(column), [(place[a], place[b]) for a, b in pairs])
    )
    names = _names()
    letters = [""] * len(column)
    for group, letter in zip(groups, names, strict=False):
        for rank in group:
            letters[order[rank]] += letter
    return letters


def compact_groups(count: int, pairs: Iterable[tuple[int, int]]) -> list[frozenset[int]]:
    """Return the largest groups of 0 … ``count`` - 1 without a pair of ``pairs``: a compact letter display.

    The algorithm is insert and absorb (Piepho 2004, Journal of Computational and Graphical Statistics 13)."""
    # sets are bits of integers, for speed: 300 models have up to 44,850 pairs
    apart = [0] * count
    for a, b in pairs:
        apart[min(a, b)] |= 1 << max(a, b)
    groups = [(1 << count) - 1]
    for one, others in enumerate(apart):
        # this equals one split per pair in turn, because other groups absorb most of the resulting parts
        split = dict.fromkeys(
            part
            for group in groups
            for part in (
                (group & ~(1 << one), group & ~others) if group >> one & 1 and group & others else (group,)
            )
        )
        groups = [part for part in split if not any(part & ~other == 0 and part != other for other in split)]
    return [frozenset(n for n in range(count) if group >> n & 1) for group in groups]


def _names() -> Iterator[str]:
    """Yield a, b, … z, then a1, b1, …"""
    yield from ascii_lowercase
    yield from (f"{letter}{number}" for number, letter in product(range(1, 1000), ascii_lowercase))
