"""The scores of a cell's items: the lines of ``scores.jsonl``, and what metrics are means of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, get_type_hints

from imageevalkit.cell.jsonl import Shape, read_jsonl

SCORE = Shape(must={"item": str})
"""A line of ``scores.jsonl``, of any version."""


class _Values(TypedDict):
    values: dict[str, Any]
    keys: dict[str, Any]


_JUDGED = Shape(
    must={"item": str, "status": Literal["judged"], "detail": dict[str, Any], **get_type_hints(_Values)},
    may={"points": list[_Values]},
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
            [Score(point["values"], point["keys"]) for point in record.get("points", [])],
        ).of_item(record["item"])
        for record in read_jsonl(path, _JUDGED)
    ]
