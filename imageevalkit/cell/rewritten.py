"""``prompts.jsonl`` of a cell: the texts that a model is shown of each item in place of the benchmark's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell, short_path
from imageevalkit.cell.items import Item, Rewriting
from imageevalkit.cell.jsonl import Shape, read_jsonl
from imageevalkit.errors import CellFailure


@dataclass(frozen=True)
class ShownTexts:
    """What the model is shown of ``item``: ``texts`` for the ``original`` ones, in their order.

    ``kept`` says why they are the original ones; ``lost``: others were asked for in vain.
    """

    item: str
    original: list[str]
    texts: list[str]
    kept: str = ""
    lost: bool = False


_SHAPE = Shape.of(ShownTexts)


def read_shown(cell: Cell) -> dict[str, ShownTexts]:
    """By item; empty where nothing was rewritten yet. Raises CellFailure: the file cannot be read."""
    return {one.item: one for one in read_jsonl(cell.prompts, _SHAPE)}


def write_shown(cell: Cell, shown: Iterable[ShownTexts]) -> None:
    """Keep ``shown``, whole or not at all. Raises CellFailure: the disk is full."""
    lines = (json.dumps(vars(one), ensure_ascii=False, separators=(",", ":")) for one in shown)
    write_atomic(cell.prompts, "".join(f"{line}\n" for line in lines))


def as_shown(cell: Cell, items: Sequence[Item]) -> list[Item]:
    """``items`` with the texts that the model is shown; those of which that is not known yet stay as they are.

    Raises CellFailure: the file that tells cannot be read.
    """
    shown: Mapping[str, ShownTexts] = read_shown(cell) if cell.rewriter else {}
    return [_shown(cell, item, shown.get(item.id)) for item in items]


def all_shown(cell: Cell, items: Sequence[Item]) -> list[Item]:
    """:func:`as_shown`. Raises CellFailure also where it is not known of all ``items``."""
    found = as_shown(cell, items)
    if cell.rewriter and (lacking := [item.id for item in found if item.rewriting is None]):
        raise CellFailure(
            f"{short_path(cell.prompts)} does not hold the rewritten prompts of {len(lacking)} items (the first: "
            f"{lacking[0]}): run the same command again, which has them rewritten first"
        )
    return found


def _shown(cell: Cell, item: Item, known: ShownTexts | None) -> Item:
    if known is None or known.original != item.texts:  # the benchmark's own may have changed
        return item
    behind = Rewriting(
        by=cell.rewriter,
        original=" ".join(known.original),
        original_sha256=item.prompt_sha256,
        kept=known.kept,
        lost=known.lost,
    )
    return item.with_texts(known.texts, behind)
