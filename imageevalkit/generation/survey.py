"""What is left to do in a cell: which images are kept, made, repaired, or stale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from imageevalkit.cell import Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import Item
from imageevalkit.cell.kept_twice import mend
from imageevalkit.cell.records import OK, RECORD, REFUSED, image_is_intact, last_records
from imageevalkit.cores import available_cores
from imageevalkit.images import map_threads
from imageevalkit.jsonl import Tell, tell_nobody


@dataclass
class Survey:
    """``reuse``: whole images made with today's settings. ``refused``: settled, not asked again.

    ``make``: no image yet, or a failed attempt. ``repair``: an image that is missing, truncated or altered.
    ``stale``: a whole image made with other settings, with the reason; replaced only on request.
    """

    reuse: list[Item] = field(default_factory=list)
    refused: list[Item] = field(default_factory=list)
    make: list[Item] = field(default_factory=list)
    repair: list[Item] = field(default_factory=list)
    stale: list[tuple[Item, str]] = field(default_factory=list)

    def explain_stale(self) -> str:
        """``"guidance_scale 4.0 → 5.0: 553 images are stale"``, reasons joined by semicolons."""
        counts = Counter(reason for _, reason in self.stale)
        return "; ".join(
            f"{reason}: {n} image{'s are' if n > 1 else ' is'} stale" for reason, n in counts.most_common()
        )


def survey(
    cell: Cell,
    items: Sequence[Item],
    settings: dict[str, Any],
    repair: bool = True,
    tell: Tell = tell_nobody,
) -> Survey:
    """Sort ``items`` of ``cell`` against what is on disk, for a model with ``settings``; what is no record is told.

    With ``repair`` False nothing on disk is touched (an interrupted rename, and records that only their copy still
    has, are then left for later).

    Raises:
        CellFailure: a file of the cell cannot be read.
    """
    if not cell.folder.exists():
        return Survey(make=list(items))
    if repair:
        mend(cell.generation, RECORD, tell)
        mend(cell.fingerprints, fp.KEPT, tell)
    records = last_records(cell, tell)
    known = fp.known(cell.fingerprints, tell)
    wanted = fp.fingerprint(settings)
    found = Survey()
    recorded: list[tuple[Item, dict[str, Any], str]] = []
    for item in items:
        record = records.get(item.id)
        if record is None:
            if item.path.exists():
                found.stale.append((item, "no record says how the image was made"))
            else:
                found.make.append(item)
        elif record["status"] == OK:
            recorded.append((item, record, _mismatch(item, record, wanted, settings, known)))
        elif record["status"] == REFUSED and not _mismatch(item, record, wanted, settings, known):
            found.refused.append(item)
        else:
            found.make.append(item)
    # hashing releases the interpreter lock, so threads read and hash side by side
    intact = map_threads(
        lambda r: image_is_intact(r[1], r[0].path, repair), recorded, min(8, available_cores())
    )
    for (item, _, mismatch), whole in zip(recorded, intact, strict=True):
        if not whole:
            found.repair.append(item)
        elif mismatch:
            found.stale.append((item, mismatch))
        else:
            found.reuse.append(item)
    return found


def _mismatch(
    item: Item,
    record: dict[str, Any],
    wanted: str,
    settings: dict[str, Any],
    known: dict[str, dict[str, Any]],
) -> str:
    """Why the record does not fit today's request; empty when it does."""
    if record.get("fingerprint") != wanted:
        old = known.get(record.get("fingerprint", ""))
        return fp.explain(old, settings) if old else "model settings unknown"
    if record.get("seed") != item.seed:
        return f"seed {record.get('seed')} → {item.seed}"
    if record.get("prompt_sha256") != item.prompt_sha256:
        return "the benchmark's prompt changed"
    return ""
