"""The scores of a cell's items: the lines of ``scores.jsonl``, and what metrics are means of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imageevalkit.cell.jsonl import Check, Shape, is_object, is_text, one_of, read_jsonl

SCORE = Shape(must={"item": is_text})
"""A line of ``scores.jsonl``, of any version."""
_VALUES: dict[str, Check] = {"values": is_object, "keys": is_object}
_JUDGED = Shape(
    must={**SCORE.must, **_VALUES, "status": one_of("judged"), "detail": is_object},
    may={"points": lambda v: isinstance(v, list) and not any(map(Shape(_VALUES).problem, v))},
)


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


def read_scores(path: Path) -> list[Score]:
    """The scores in a file scores.jsonl, those of the items that were judged. Raises CellFailure: it cannot be read."""
    return [
        Score(
            record["values"],
            record["keys"],
            record["detail"],
            [
                Score(point["values"], point["keys"], item=record["item"])
                for point in record.get("points", [])
            ],
            record["item"],
        )
        for record in read_jsonl(path, _JUDGED)
    ]
