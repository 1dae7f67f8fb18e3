"""The order of a benchmark's entries: the first N of them stand for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def spread(groups: Iterable[Sequence[T]]) -> list[T]:
    """All elements, each group kept in its order and spread evenly, so that any first N hold its share of N.

    Of N · (size of the group) / (size of all) that differs by half an element, and by what the other groups' halves
    add up to: by less than 2 for six groups. Equal places go to the earlier group.
    """
    placed = [
        ((k + 0.5) / len(group), n, element)
        for n, group in enumerate(groups)
        for k, element in enumerate(group)
    ]
    return [element for _, _, element in sorted(placed, key=lambda entry: entry[:2])]
