"""The relations between metrics as a section of the report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from imageevalkit.extras.relations.relations import KINDS, Pair, Relations
from imageevalkit.extras.relations.report import recorded_relations, update_relations
from imageevalkit.report import parts
from imageevalkit.report.cell_parts import preview_path
from imageevalkit.report.collect import CellReport
from imageevalkit.report.sections import Section
from imageevalkit.store.jsonl import Tell


class RelationsSection(Section):
    """The relations of each cell that has some, and the pictures of them."""

    _relations: Mapping[str, Relations] = {}
    _scatter: Mapping[str, str] = {}

    def update(self, cells: Sequence[CellReport], tell: Tell) -> None:
        self._relations = update_relations(cells, self.keys, self.asked, tell, self.refused.append)

    def read(self, cells: Sequence[CellReport], tell: Tell) -> None:
        self._relations = recorded_relations(cells)

    def pictures(self, cells: Sequence[CellReport]) -> dict[str, bytes]:
        found, scatter = dict[str, bytes](), dict[str, str]()
        for cell in cells:
            if cell.is_latest and (one := self._relations.get(cell.key)):
                data = (cell.folder / "relations/scatter.webp").read_bytes()
                scatter[one.key] = path = preview_path(hashlib.sha256(data).hexdigest())
                found[path] = data
        self._scatter = scatter
        return found

    def fill(self, index: parts.Index, cells: Sequence[CellReport], place: Path) -> parts.Index:
        maps = []
        for n, (report, cell) in enumerate(zip(cells, index.cells, strict=True)):
            found = self._relations.get(report.key)
            if found and report.result and report.result.evaluator.id == found.evaluator:
                maps.append(_map(n, found, self._scatter, f"{index.roots[cell.root]}/{cell.path}"))
        kinds = {kind.name: parts.Kind(kind.label, kind.colour, kind.mark) for kind in KINDS.values()}
        return replace(index, relations=maps, kinds=kinds)


def _map(n: int, found: Relations, scatter: Mapping[str, str], folder: str) -> parts.RelationMap:
    files = {"map": "dtm.svg", "scatter": "scatter.svg", "codes": "relationship_codes.csv"}
    return parts.RelationMap(
        n,
        found.dimensions,
        found.means,
        found.correlation,
        found.thresholds,
        [_pair(pair) for pair in found.pairs],
        [parts.Link(name, f"{folder}/relations/{file}") for name, file in files.items()],
        scatter.get(found.key, ""),
    )


def _pair(pair: Pair) -> parts.RelationPair:
    return parts.RelationPair(
        pair.first,
        pair.second,
        KINDS[pair.code_of(pair.first)].name,
        pair.words(),
        pair.certainty,
        pair.n,
        pair.means,
        pair.correlation,
        pair.synergy,
        pair.bottleneck,
        pair.above,
        pair.below,
        pair.is_line,
        (pair.words(pair.next_likely[0]), pair.next_likely[1]) if pair.next_likely else parts.UNSET,
    )
