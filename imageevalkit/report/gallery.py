"""The gallery's data: prompts × models of one benchmark, bounded in size, as JSON for the page's script."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from imageevalkit.cell import Cell
from imageevalkit.cell.inputs import Input
from imageevalkit.cell.records import CORRUPT, GENERATED
from imageevalkit.images import CorruptImage, opened, sha256_file
from imageevalkit.report.collect import CellReport, ItemView, natural

# A page that a laptop's browser opens in a few seconds and that still goes through e-mail or a chat.
BUDGET = 40_000_000
# Embedded bytes of one item before its thumbnail is made: base64 of about 5 KB WebP, and its text.
_IMAGE_ESTIMATE = 7_000
_TEXT_ESTIMATE = 600
# The shares of the prompts to choose from: each a tenth less than the one before.
_SHARES = [0.9**step for step in range(67)]
# A select with more choices than this is a list, not a filter.
_MAX_CHOICES = 60


class Row(NamedTuple):
    """One prompt: ``cells[m]`` are the items of model m, repetitions in order."""

    prompt: str
    items: list[str]
    cells: list[list[ItemView]]


class Gallery(NamedTuple):
    """All prompts of one benchmark; ``reports`` are its cells, one per model."""

    benchmark: str
    reports: list[CellReport]
    rows: list[Row]

    @property
    def repetitions(self) -> int:
        return max((len(row.items) for row in self.rows), default=0)


class Extent(NamedTuple):
    """How much of every gallery is shown: so many items per prompt, and this share of the prompts."""

    repetitions: int
    share: float


def galleries(cells: Sequence[CellReport]) -> list[Gallery]:
    """One gallery per benchmark that has items, in order of name."""
    by_benchmark: dict[str, list[CellReport]] = {}
    for cell in cells:
        if cell.items:
            by_benchmark.setdefault(cell.cell.benchmark, []).append(cell)
    return [Gallery(name, reports, _rows(reports)) for name, reports in sorted(by_benchmark.items())]


def _rows(reports: Sequence[CellReport]) -> list[Row]:
    """Items grouped by what the model was shown; an id means the same prompt for every model."""
    # records of earlier versions name no inputs, but those of another model that was shown the same do
    inputs = {i.prompt_sha256: i.inputs for report in reports for i in report.items if i.inputs}
    by_id = [
        {i.id: i._replace(inputs=i.inputs or inputs.get(i.prompt_sha256, [])) for i in report.items}
        for report in reports
    ]
    prompt_of: dict[str, ItemView] = {}
    for items in by_id:
        for id, item in items.items():
            if id not in prompt_of or not prompt_of[id].prompt:
                prompt_of[id] = item
    groups: dict[str, list[str]] = {}
    for id in sorted(prompt_of, key=natural):
        item = prompt_of[id]
        # the hash also tells apart edits that share one instruction but start from other images
        groups.setdefault(item.prompt_sha256 or item.prompt or id, []).append(id)
    return [
        Row(prompt_of[ids[0]].prompt, ids, [[items[i] for i in ids if i in items] for items in by_id])
        for ids in groups.values()
    ]


def cut(gallery: Gallery, extent: Extent) -> Gallery:
    """``gallery`` reduced to ``extent``: the first repetitions of the first prompts."""
    kept = gallery.rows[: _prompts(gallery, extent.share)]
    rows = []
    for row in kept:
        ids = set(row.items[: extent.repetitions])
        cells = [[item for item in cell if item.id in ids] for cell in row.cells]
        rows.append(row._replace(items=row.items[: extent.repetitions], cells=cells))
    return gallery._replace(rows=rows)


def fit(pages: Sequence[Gallery], thumbs: Mapping[str, bytes] | None, budget: int = BUDGET) -> Extent:
    """The largest extent of which all galleries together fit ``budget`` bytes.

    Repetitions go first, then prompts. ``thumbs`` None = not made yet: their size is estimated. Every item is looked at
    once: its bytes are added up where it goes.
    """
    repetitions = _Bytes(max((page.repetitions for page in pages), default=1))
    shares = _Bytes(len(_SHARES))
    for page in pages:
        kept = [_prompts(page, share) for share in _SHARES]
        last = 0
        for n in reversed(range(len(page.rows))):
            while last + 1 < len(_SHARES) and kept[last + 1] > n:
                last += 1
            row = page.rows[n]
            place = {id: place for place, id in enumerate(row.items)}
            for item in (item for cell in row.cells for item in cell):
                repetitions.add(place[item.id], item, thumbs)
                if place[item.id] == 0:
                    shares.add(len(_SHARES) - 1 - last, item, thumbs)
    totals = repetitions.totals()
    for count in range(len(totals), 0, -1):
        if totals[count - 1] <= budget:
            return Extent(count, 1.0)
    fitting = [
        share for share, total in zip(reversed(_SHARES), shares.totals(), strict=True) if total <= budget
    ]
    return Extent(1, max(fitting, default=_SHARES[-1]))


class _Bytes:
    """Bytes of items by where they come in, of ``places``; an image that comes in twice, one that was edited too,
    counts at the first of them."""

    def __init__(self, places: int) -> None:
        self._added = [0] * places
        self._images: dict[str, tuple[int, int]] = {}

    def add(self, place: int, item: ItemView, thumbs: Mapping[str, bytes] | None) -> None:
        texts = (*item.detail.values(), *(item.rewritten or ()))
        self._added[place] += _TEXT_ESTIMATE + sum(map(len, texts))
        for sha in filter(None, (item.image_sha256, *(one["copy_sha256"] for one in item.inputs))):
            size = _IMAGE_ESTIMATE if thumbs is None else len(thumbs.get(sha, b"")) * 4 // 3
            self._images[sha] = min((place, size), self._images.get(sha, (place, size)))

    def totals(self) -> list[int]:
        """The bytes of all that has come in up to each place."""
        added = list(self._added)
        for place, size in self._images.values():
            added[place] += size
        return list(itertools.accumulate(added))


def _prompts(page: Gallery, share: float) -> int:
    return max(1, round(len(page.rows) * share))


def _items(page: Gallery) -> list[ItemView]:
    return [item for row in page.rows for cell in row.cells for item in cell]


def originals(pages: Sequence[Gallery]) -> dict[str, list[Path]]:
    """Image SHA-256 → the files recorded with it, of every image, and copy of an input image, that ``pages`` show."""
    found: dict[str, dict[Path, None]] = {}
    for page in pages:
        for m, report in enumerate(page.reports):
            folder = report.cell.folder
            for item in (item for row in page.rows for item in row.cells[m]):
                files = [(one["copy_sha256"], one["path"]) for one in item.inputs]
                if item.outcome == GENERATED:
                    files.append((item.image_sha256, item.path))
                for sha, path in files:
                    if sha and path:
                        found.setdefault(sha, {})[folder / path] = None
    return {sha: list(paths) for sha, paths in found.items()}


def page_data(page: Gallery, whole: Gallery, thumbs: Mapping[str, bytes]) -> str:
    """One gallery as JSON that may stand inside ``<script>``; see ``report.js`` for its reader."""
    metrics, folders = _metrics(page), [report.cell.folder for report in page.reports]
    pictures: dict[str, int] = {}
    rows, inputs = [], _inputs(page)
    number_of = {sha256: number for number, sha256 in enumerate(inputs)}
    for row in page.rows:
        cells = [
            [_item_data(item, report, folder, metrics, number_of, pictures, thumbs) for item in cell]
            for report, folder, cell in zip(page.reports, folders, row.cells, strict=True)
        ]
        keys = {k: v for cell in row.cells for item in cell for k, v in item.keys.items()}
        rows.append({"prompt": row.prompt, "keys": keys, "cells": cells})
    data = {
        "benchmark": page.benchmark,
        "models": [_model_data(report) for report in page.reports],
        "metrics": metrics,
        "scales": _scales(page, metrics),
        "filters": _filters(rows),
        "rows": rows,
        "inputs": [_input_data(copies, pictures, thumbs) for copies in inputs.values()],
        "pictures": [base64.b64encode(thumbs[sha]).decode() for sha in pictures],
        "shown": {"prompts": len(page.rows), "items": len(_items(page))},
        "all": {"prompts": len(whole.rows), "items": len(_items(whole))},
        "repetitions": [page.repetitions, whole.repetitions],
    }
    return script_json(data)


def script_json(data: Any) -> str:
    """``data`` as JSON without any character that HTML could take for the end of a script or a tag."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _inputs(page: Gallery) -> dict[str, list[tuple[Cell, Input]]]:
    """The input images by their hash, in order of appearance, with the copies that cells have of each."""
    found: dict[str, dict[tuple[Cell, str], Input]] = {}
    for row in page.rows:
        for report, cell in zip(page.reports, row.cells, strict=True):
            for one in (one for item in cell for one in item.inputs):
                found.setdefault(one["sha256"], {})[report.cell, one["copy_sha256"]] = one
    return {sha: [(cell, one) for (cell, _), one in copies.items()] for sha, copies in found.items()}


def _input_data(
    copies: Sequence[tuple[Cell, Input]], pictures: dict[str, int], thumbs: Mapping[str, bytes]
) -> dict[str, Any]:
    """Of an input image what is shown: ``picture`` and its ``size``, and the ``file`` of a copy that is there."""
    data: dict[str, Any] = {}
    if sha := next((one["copy_sha256"] for _, one in copies if one["copy_sha256"] in thumbs), ""):
        data["picture"] = pictures.setdefault(sha, len(pictures))
        with contextlib.suppress(CorruptImage):  # of a cache
            data["size"] = opened(thumbs[sha]).size
    if file := next((f"{cell.key}/{one['path']}" for cell, one in copies if _is_there(cell, one)), ""):
        data["file"] = quote(os.fsencode(file))
    return data


def _is_there(cell: Cell, copied: Input) -> bool:
    """Whether the copy is, as it was made."""
    try:
        return bool(copied["path"]) and sha256_file(cell.folder / copied["path"]) == copied["copy_sha256"]
    except OSError:
        return False


def _metrics(page: Gallery) -> list[str]:
    """The names of the per-item metrics."""
    return list(dict.fromkeys(name for item in _items(page) for name in item.values))


def _scales(page: Gallery, metrics: Sequence[str]) -> dict[str, list[float]]:
    """Evaluator → the top of each metric's range; of a count, that is the largest seen.

    Two evaluators may give numbers of one name on different scales.
    """
    top: dict[str, dict[str, float]] = {}
    for row in page.rows:
        for report, cell in zip(page.reports, row.cells, strict=True):
            for item in cell:
                seen = top.setdefault(_evaluator(item, report), {})
                for name, value in item.values.items():
                    seen[name] = max(seen.get(name, 1.0), value)
    for result in (report.result for report in page.reports if report.result):
        top.setdefault(result.evaluator.id, {}).update({n: m.scale for n, m in result.metrics.items()})
    return {evaluator: [seen.get(name, 1.0) for name in metrics] for evaluator, seen in sorted(top.items())}


def _evaluator(item: ItemView, report: CellReport) -> str:
    return item.evaluator or (report.result.evaluator.id if report.result else "")


def _model_data(report: CellReport) -> dict[str, Any]:
    result = report.result
    return {
        "name": report.cell.model,
        "folder": quote(os.fsencode(f"{report.cell.model}/{report.cell.benchmark}")),
        "evaluator": result.evaluator.id if result else "",
        "note": f"first {result.limit} items" if result and result.limit else report.problem,
    }


def _item_data(
    item: ItemView,
    report: CellReport,
    folder: Path,
    metrics: Sequence[str],
    inputs: Mapping[str, int],
    pictures: dict[str, int],
    thumbs: Mapping[str, bytes],
) -> dict[str, Any]:
    sha = item.image_sha256
    data = {
        "id": item.id,
        "status": item.outcome,
        "judged": item.judged,
        "reason": "" if item.error else item.reason,
        "evaluator": _evaluator(item, report),
        "values": [item.values.get(name) for name in metrics] if item.values else None,
        "seed": item.seed,
        "seedIgnored": item.seed_honoured is False,
        "file": quote(os.fsencode(item.path)),
        "size": item.size,
        "error": item.error,
        "detail": item.detail,
        "rewritten": item.rewritten,
        "facts": item.facts,
        "inputs": [inputs[one["sha256"]] for one in item.inputs],
    }
    if item.outcome == GENERATED:
        # a cached thumbnail of a deleted image would claim that the image is still there
        if sha in thumbs and (folder / item.path).is_file():
            data["picture"] = pictures.setdefault(sha, len(pictures))
        else:
            # the record says ok: the file is gone, does not decode, or is another image now
            data["status"] = CORRUPT
    return {name: value for name, value in data.items() if value or (value == 0 and value is not False)}


def _filters(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    choices: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row["keys"].items():
            choices.setdefault(name, set()).add(value)
    return {
        name: sorted(values, key=natural)
        for name, values in choices.items()
        if 1 < len(values) <= _MAX_CHOICES
    }
