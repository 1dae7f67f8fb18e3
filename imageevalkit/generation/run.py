"""Generate one cell: survey, explain, make what is left, leave an outcome."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imageevalkit import fingerprint as fp
from imageevalkit.cell import Cell
from imageevalkit.generation.concurrent import make_concurrently
from imageevalkit.generation.making import Making
from imageevalkit.generation.packages import installed_packages
from imageevalkit.generation.records import OutcomeWriter
from imageevalkit.generation.sequential import make_one_by_one
from imageevalkit.generation.survey import Survey, survey
from imageevalkit.items import Item
from imageevalkit.jobs import COMPLETE, FAILED, INCOMPLETE, STALE, Outcome
from imageevalkit.progress import ProgressWriter


@dataclass(frozen=True)
class GenerateOptions:
    """``overwrite`` replaces stale images; ``blank_on_error`` leaves white placeholders; ``workers`` in flight."""

    overwrite: bool = False
    blank_on_error: bool = False
    workers: int = 1


def generate_cell(
    cell: Cell,
    items: Sequence[Item],
    task: str,
    setting: Mapping[str, Any],
    load: Callable[[], Any],
    options: GenerateOptions,
    progress: ProgressWriter,
) -> Outcome:
    """Make every missing image of ``cell``; ``load`` is called only when there is something to make.

    Raises:
        CellFailure: the cell cannot go on (full disk, the model does not load).
    """
    settings = fp.settings_of(task, setting)
    found = survey(cell, items, settings)
    _say_what_is_there(found, len(items))
    if found.stale and not options.overwrite:
        return Outcome(
            STALE, f"{found.explain_stale()}; nothing was changed: add --overwrite to make them again"
        )
    todo = [*found.make, *found.repair, *(item for item, _ in found.stale)]
    order = {item.id: n for n, item in enumerate(items)}
    todo.sort(key=lambda item: order[item.id])
    making = Making(
        cell=cell,
        total=len(items),
        reused=len(found.reuse) + len(found.refused),
        refused=len(found.refused),
        blank_on_error=options.blank_on_error,
        default_size=requested_size(setting.get("model_kwargs", {})),
        progress=progress,
        workers=options.workers,
        has_worked=bool(found.reuse),
    )
    if todo:
        making.report("loading model", force=True)
        model = load()
        if found.reuse and hasattr(model, "has_made_images"):
            model.has_made_images()
        writer = OutcomeWriter(cell, fp.remember(cell.fingerprints, settings, installed_packages()))
        try:
            making.start(writer)
            if inspect.iscoroutinefunction(getattr(model, "generate_async", None)):
                make_concurrently(model, task, todo, making, options.workers)
            else:
                make_one_by_one(model, task, todo, making)
        finally:
            writer.close()
    making.report(force=True)
    return _outcome(making, found)


def requested_size(model_kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """(width, height) in pixels that a placeholder takes: what the kwargs ask for, else 1024 × 1024."""
    width, height = model_kwargs.get("width"), model_kwargs.get("height")
    if isinstance(width, int) and isinstance(height, int):
        return width, height
    sides = str(model_kwargs.get("size", "")).lower().split("x")
    if len(sides) == 2 and all(side.isdigit() and int(side) > 0 for side in sides):
        return int(sides[0]), int(sides[1])
    return 1024, 1024


def _say_what_is_there(found: Survey, total: int) -> None:
    parts = [f"{len(found.reuse)} of {total} images are there", f"{len(found.make)} to make"]
    if found.repair:
        parts.append(f"{len(found.repair)} to repair (missing, truncated or altered)")
    if found.refused:
        parts.append(f"{len(found.refused)} refused before")
    print(", ".join(parts), flush=True)
    if found.stale:
        print(found.explain_stale(), flush=True)


def _outcome(making: Making, found: Survey) -> Outcome:
    made = making.ok + len(found.reuse)
    counts = f"{made} of {making.total} images"
    if making.stopped:
        return Outcome(FAILED, f"{making.stopped} ({counts})")
    if not making.total:
        return Outcome(FAILED, "the benchmark has no items")
    if not made:
        reason = making.last_error or f"all {making.refused} items were refused before"
        return Outcome(FAILED, f"{reason} ({counts})")
    if made < making.total:
        lost = ", ".join(
            f"{n} {word}" for n, word in ((making.refused, "refused"), (making.failed, "failed")) if n
        )
        return Outcome(INCOMPLETE, f"{counts}, {lost}; the same command tries failed ones again")
    return Outcome(COMPLETE, counts)
