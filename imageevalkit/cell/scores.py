"""The scores of a cell's items: the lines of ``scores.jsonl``, and what metrics are means of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Score:
    """What an item is worth: ``values`` are numbers by name, ``keys`` group items, ``detail`` is for reading.

    ``points`` are the scores of its parts (questions, test points), each with values and keys of its own. ``item`` is
    the id, which the engine sets.
    """

    values: Mapping[str, float]
    keys: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    points: Sequence[Score] = ()
    item: str = ""

    def of_item(self, item: str) -> Score:
        """The same with its points, told whose they are."""
        return replace(self, item=item, points=[replace(point, item=item) for point in self.points])
