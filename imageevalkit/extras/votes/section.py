"""The votes of people as a section of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from imageevalkit.extras.votes.report import vote_report
from imageevalkit.report import parts
from imageevalkit.report.collect import CellReport
from imageevalkit.report.sections import Section
from imageevalkit.store.cell import output_root
from imageevalkit.store.jsonl import Tell


class VotesSection(Section):
    """Ratings of the models from ``output/votes``, and how often judges agree with them."""

    _votes: dict[str, Any] | None = None

    def read(self, cells: Sequence[CellReport], tell: Tell) -> None:
        if any(cell.root == output_root() for cell in cells):  # the votes are about images there
            self._votes = vote_report(cells, tell)

    def fill(self, index: parts.Index, cells: Sequence[CellReport], place: Path) -> parts.Index:
        return replace(index, votes=self._votes)
