"""The gallery's data: prompts × models of one benchmark, bounded in size, as JSON for the page's script."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from tqdm import tqdm

from imageevalkit.cell import Cell
from imageevalkit.cell.pictures import Input, is_unchanged, keep_thumbnail, read_thumbnail
from imageevalkit.cell.records import CORRUPT, GENERATED
from imageevalkit.cell.results import Result
from imageevalkit.images import CorruptImage, map_threads, opened, thumbnail_of
from imageevalkit.machine import available_cores
from imageevalkit.metrics import grouped
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

    def shown(self) -> Iterator[tuple[CellReport, ItemView]]:
        """Every item, with its cell."""
        for row in self.rows:
            for report, items in zip(self.reports, row.cells, strict=True):
                for item in items:
                    yield report, item


class Extent(NamedTuple):
    """How much of every gallery is shown: so many items per prompt, and this share of the prompts."""

    repetitions: int
    share: float


def galleries(cells: Sequence[CellReport]) -> list[Gallery]:
    """One gallery per benchmark that has items, in order of name."""
    by_benchmark = grouped((cell for cell in cells if cell.items), lambda cell: cell.cell.benchmark)
    return [Gallery(name, reports, _rows(reports)) for name, reports in sorted(by_benchmark.items())]


def _rows(reports: Sequence[CellReport]) -> list[Row]:
    """Items grouped by what the model was shown; an id means the same prompt for every model."""
    # records of earlier versions name no inputs, but those of another model that was shown the same do
    inputs = {i.prompt_sha256: i.inputs for report in reports for i in report.items if i.inputs}

    def with_inputs(item: ItemView) -> ItemView:
        found = None if item.inputs else inputs.get(item.prompt_sha256)
        return item._replace(inputs=found) if found else item

    by_id = [{item.id: with_inputs(item) for item in report.items} for report in reports]
    prompt_of: dict[str, ItemView] = {}
    for items in by_id:
        for id, item in items.items():
            if id not in prompt_of or not prompt_of[id].prompt:
                prompt_of[id] = item

    def shown(id: str) -> str:
        item = prompt_of[id]
        # the hash also tells apart edits that share one instruction but start from other images
        return item.prompt_sha256 or item.prompt or id

    return [
        Row(prompt_of[ids[0]].prompt, ids, [[items[i] for i in ids if i in items] for items in by_id])
        for ids in grouped(sorted(prompt_of, key=natural), shown).values()
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
    once: its bytes are those of the last extent that shows it, those of an image of the last that shows one of its
    items.
    """
    most = max((page.repetitions for page in pages), default=1)
    whole = [Extent(count, 1.0) for count in range(most, 1, -1)]
    extents = whole + [Extent(1, share) for share in _SHARES]
    sizes, last_of = [0] * len(extents), dict[str, int]()
    for page in pages:
        kept = [_prompts(page, share) for share in _SHARES]
        for n, row in enumerate(page.rows):
            last_share = sum(count > n for count in kept) - 1
            place_of = {id: place for place, id in enumerate(row.items)}
            for item in itertools.chain(*row.cells):
                place = place_of[item.id]
                last = len(whole) - place if place else len(whole) + last_share
                texts = (*item.detail.values(), *(item.rewritten or ()))
                sizes[last] += _TEXT_ESTIMATE + sum(map(len, texts))
                for sha in filter(None, (item.image_sha256, *(one["copy_sha256"] for one in item.inputs))):
                    last_of[sha] = max(last, last_of.get(sha, 0))
    for sha, last in last_of.items():
        sizes[last] += _IMAGE_ESTIMATE if thumbs is None else len(thumbs.get(sha, b"")) * 4 // 3
    left = sum(sizes)
    for extent, size in zip(extents, sizes, strict=True):
        if left <= budget:
            return extent
        left -= size
    return extents[-1]


def _prompts(page: Gallery, share: float) -> int:
    return max(1, round(len(page.rows) * share))


Originals = dict[str, dict[tuple[Cell, str], None]]
"""SHA-256 of an image → where it is recorded: cells, each with the path below it, in order."""


def originals(pages: Sequence[Gallery]) -> Originals:
    """Those of every image, and of the copy of every input image, that ``pages`` show."""
    found: Originals = {}
    for report, item in itertools.chain.from_iterable(page.shown() for page in pages):
        files = [(one["copy_sha256"], one["path"]) for one in item.inputs]
        if item.outcome == GENERATED:
            files.append((item.image_sha256, item.path))
        for sha, path in files:
            if sha and path:
                found.setdefault(sha, {})[report.cell, path] = None
    return found


class Shown(NamedTuple):
    """What can be shown of :data:`Originals`: ``thumbs`` (WebP) by the SHA-256 of the image.

    ``files`` are those, by hash, cell and path, that still are the recorded image; of another, or of one that is gone
    or does not decode, there may still be the thumbnail.
    """

    thumbs: dict[str, bytes]
    files: set[tuple[str, Cell, str]]


def shown(found: Originals) -> Shown:
    """Most thumbnails were kept when the image was stored, others are made now."""
    looked = map_threads(lambda sha: _look_at(sha, found[sha]), found, available_cores())
    # on a terminal alone, and where it takes its time
    bar = tqdm(looked, total=len(found), desc="thumbnails", unit="image", disable=None, delay=1.0)
    what = Shown({}, set())
    for sha, (thumb, places) in zip(found, bar, strict=True):
        if thumb:
            what.thumbs[sha] = thumb
        what.files.update((sha, cell, path) for cell, path in places)
    return what


def _look_at(sha256: str, places: Iterable[tuple[Cell, str]]) -> tuple[bytes, list[tuple[Cell, str]]]:
    """The thumbnail, empty where there is none, and those of ``places`` where the image is."""
    thumb, there = b"", list[tuple[Cell, str]]()
    for cell, path in places:
        kept, file = read_thumbnail(cell, sha256), cell.folder / path
        thumb = thumb or kept or b""
        with contextlib.suppress(OSError, CorruptImage):
            if not kept or not is_unchanged(cell, sha256, file):
                modified, data = file.stat().st_mtime_ns, file.read_bytes()
                if hashlib.sha256(data).hexdigest() != sha256:
                    continue
                thumb = thumb or thumbnail_of(data)
                keep_thumbnail(cell, sha256, thumb, modified)
            there.append((cell, path))
    return thumb, there


def page_data(page: Gallery, whole: Gallery, shown: Shown) -> str:
    """One gallery as JSON that may stand inside ``<script>``; see ``report.js`` for its reader."""
    items = [item for _, item in page.shown()]
    metrics = list(dict.fromkeys(name for item in items for name in item.values))
    inputs, numbers = _inputs(page), _Numbers()
    rows = []
    for row in page.rows:
        cells = [
            [_item_data(item, report.cell, metrics, numbers, shown) for item in of_model]
            for report, of_model in zip(page.reports, row.cells, strict=True)
        ]
        keys = {k: v for of_model in row.cells for item in of_model for k, v in item.keys.items()}
        rows.append({"prompt": row.prompt, "keys": keys, "cells": cells})
    data = {
        "benchmark": page.benchmark,
        "models": [_model_data(report) for report in page.reports],
        "metrics": metrics,
        "scales": _scales(page, items, metrics),
        "filters": _filters(rows),
        "rows": rows,
        "inputs": [_input_data(inputs[sha], numbers, shown) for sha in numbers.inputs],
        "pictures": [base64.b64encode(shown.thumbs[sha]).decode() for sha in numbers.pictures],
        "shown": {"prompts": len(page.rows), "items": len(items)},
        "all": {"prompts": len(whole.rows), "items": sum(1 for _ in whole.shown())},
        "repetitions": [page.repetitions, whole.repetitions],
    }
    return script_json(data)


def script_json(data: Any) -> str:
    """``data`` as JSON without any character that HTML could take for the end of a script or a tag."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


class _Numbers:
    """The numbers by which the data of items name images, in order of appearance: by the SHA-256 of what the model was
    shown, and of what is embedded."""

    def __init__(self) -> None:
        self.inputs: dict[str, int] = defaultdict(itertools.count().__next__)
        self.pictures: dict[str, int] = defaultdict(itertools.count().__next__)


def _inputs(page: Gallery) -> dict[str, list[tuple[Cell, Input]]]:
    """The input images by their hash, with the copies that cells have of each."""
    found: dict[str, dict[tuple[Cell, str], Input]] = {}
    for report, item in page.shown():
        for one in item.inputs:
            found.setdefault(one["sha256"], {})[report.cell, one["copy_sha256"]] = one
    return {sha: [(cell, one) for (cell, _), one in copies.items()] for sha, copies in found.items()}


def _input_data(copies: Sequence[tuple[Cell, Input]], numbers: _Numbers, shown: Shown) -> dict[str, Any]:
    """Of an input image what is shown: ``picture`` and its ``size``, and the ``file`` of a copy that is there."""
    data: dict[str, Any] = {}
    if sha := next((one["copy_sha256"] for _, one in copies if one["copy_sha256"] in shown.thumbs), ""):
        data["picture"] = numbers.pictures[sha]
        with contextlib.suppress(CorruptImage):  # of a cache
            data["size"] = opened(shown.thumbs[sha]).size
    for cell, one in copies:
        if (one["copy_sha256"], cell, one["path"]) in shown.files:
            data["file"] = quote(os.fsencode(f"{cell.key}/{one['path']}"))
            break
    return data


def _scales(page: Gallery, items: Sequence[ItemView], metrics: Sequence[str]) -> dict[str, list[float]]:
    """Evaluator → the top of each metric's range; of a count, that is the largest seen.

    Two evaluators may give numbers of one name on different scales.
    """
    top: dict[str, dict[str, float]] = {}
    for item in items:
        seen = top.setdefault(item.evaluator, {})
        for name, value in item.values.items():
            seen[name] = max(seen.get(name, 1.0), value)
    for result in (report.result for report in page.reports if report.result):
        top.setdefault(result.evaluator.id, {}).update({n: m.scale for n, m in result.metrics.items()})
    return {evaluator: [seen.get(name, 1.0) for name in metrics] for evaluator, seen in sorted(top.items())}


def _extent(result: Result) -> str:
    """Of how many items it is, where it is not of all."""
    first = f"first {result.limit} items" if result.limit else ""
    coverage = result.coverage
    stopped = f"stopped after {coverage.asked} of {coverage.expected} items" if coverage.unasked else ""
    return ", ".join(filter(None, (first, stopped)))


def _model_data(report: CellReport) -> dict[str, Any]:
    result = report.result
    return {
        "name": report.cell.model,
        "folder": quote(os.fsencode(f"{report.cell.model}/{report.cell.benchmark}")),
        "evaluator": result.evaluator.id if result else "",
        "note": _extent(result) or report.problem if result else report.problem,
    }


def _item_data(
    item: ItemView, cell: Cell, metrics: Sequence[str], numbers: _Numbers, shown: Shown
) -> dict[str, Any]:
    sha = item.image_sha256
    data = {
        "id": item.id,
        "status": item.outcome,
        "judged": item.judged,
        "reason": "" if item.error else item.reason,
        "evaluator": item.evaluator,
        "values": [item.values.get(name) for name in metrics] if item.values else None,
        "seed": item.seed,
        "seedIgnored": item.seed_honoured is False,
        "file": quote(os.fsencode(item.path)),
        "size": item.size,
        "error": item.error,
        "detail": item.detail,
        "rewritten": item.rewritten,
        "facts": item.facts,
        "inputs": [numbers.inputs[one["sha256"]] for one in item.inputs],
    }
    if item.outcome == GENERATED:
        # the thumbnail that is kept of another image would claim that it is still there
        if (sha, cell, item.path) in shown.files:
            data["picture"] = numbers.pictures[sha]
        else:
            # the record says ok: the file is gone, does not decode, or is another image now
            data["status"] = CORRUPT
    return {name: value for name, value in data.items() if value or (value == 0 and value is not False)}


def _filters(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    keys = [row["keys"] for row in rows]
    names = dict.fromkeys(itertools.chain.from_iterable(keys))
    choices = {name: {one[name] for one in keys if name in one} for name in names}
    shown = {name: values for name, values in choices.items() if 1 < len(values) <= _MAX_CHOICES}
    return {name: sorted(values, key=natural) for name, values in shown.items()}
