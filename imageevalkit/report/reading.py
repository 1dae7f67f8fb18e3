"""Read results with their items, from any folder or from a file that ``--save_baseline`` wrote."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo, is_zipfile

from imageevalkit import registry
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.text import to_bytes
from imageevalkit.metrics import grouped
from imageevalkit.report.collect import STALE, CellReport, collect
from imageevalkit.report.comparison import Measured
from imageevalkit.report.item_parts import SCORE
from imageevalkit.report.tables import read_cells
from imageevalkit.store.cell import Cell, short_path
from imageevalkit.store.jsonl import Tell, read_jsonl
from imageevalkit.store.results import Metric, Result

# the members of a saved file that are read; all others are ignored
_MEMBERS = ("result.json", "scores.jsonl", "generation.jsonl")
_HASH = 16  # characters: enough to distinguish the prompts of a benchmark, and a quarter of the size of a saved file
_MOST_BYTES = 2**31  # the largest saved file, unpacked: a larger one could fill the disk


class Scored(NamedTuple):
    """A result of a cell, with the data of its items that a comparison needs.

    By item, ``prompts`` has the prompt's text and ``images`` the SHA-256 of the image. ``hashes`` has the
    first characters of the SHA-256 of the benchmark's own prompt.
    """

    cell: Cell
    result: Result
    prompts: Mapping[str, str]
    hashes: Mapping[str, str]
    images: Mapping[str, str]
    source: Path

    @property
    def evaluator(self) -> str:
        return self.result.evaluator.id

    def metric(self, name: str, left_out: frozenset[str] = frozenset()) -> Metric | None:
        """Return the metric ``name`` without the parts of the items ``left_out``; None if it has no value."""
        metric = self.result.metrics.get(name)
        if metric is None or metric.value is None:
            return None
        if not left_out or not metric.parts:
            return metric
        # the interval in the file is about all items
        return replace(metric, parts=[p for p in metric.parts if p.item not in left_out], interval=None)

    def measured(self, name: str, metric: str, left_out: frozenset[str] = frozenset()) -> Measured | None:
        found = self.metric(metric, left_out)
        return Measured(name, found, self.result.noise_of(metric)) if found else None


def read_all(path: Path, tell: Tell) -> tuple[Path, list[Scored]]:
    """Return the root folder of all results, and the results of every cell at or below ``path``.

    ``path`` is a folder, a result.json, or a file that ``--save_baseline`` wrote. Stale results are left out
    and reported to ``tell``. Raises UserError if there is no result or the file cannot be read."""
    if not path.is_file() or path.name == "result.json":
        return _read(path, tell)
    if not is_zipfile(path):
        raise UserError(f"{short_path(path)} is no folder of results, and no file of --save_baseline")
    with TemporaryDirectory() as name:
        folder = Path(name)
        try:
            with ZipFile(path) as file:
                members = [one for one in file.infolist() if Path(one.filename).name in _MEMBERS]
                if sum(one.file_size for one in members) > _MOST_BYTES:
                    raise UserError(f"{short_path(path)} holds more than results: it is too large")
                for member in members:
                    file.extract(member, folder)
            # messages name the file, not the temporary folder
            found = _read(folder, lambda line: tell(line.replace(str(folder), short_path(path))))
        except UserError as error:
            raise UserError(str(error).replace(str(folder), short_path(path))) from None
        except Exception as error:  # each compression method raises its own error for a damaged member
            raise UserError(f"{short_path(path)} cannot be read: {error}") from None
    return found


def _read(path: Path, tell: Tell) -> tuple[Path, list[Scored]]:
    root, reports = read_cells(path, tell)
    return root, list(_scored(reports, tell))


def read_below(folder: Path, tell: Tell) -> list[Scored]:
    """Return the results at or below a ``folder`` of the output root."""
    return list(_scored(collect(tell, folder), tell))


def _scored(reports: Iterable[CellReport], tell: Tell) -> Iterator[Scored]:
    for cell, of_cell in grouped(reports, lambda one: one.cell).items():
        # the items of a cell are the same for all its evaluators, so they are read once
        items = of_cell[0].items()
        prompts = {item.id: item.prompt for item in items if item.prompt}
        images = {item.id: item.image_sha256 for item in items if item.image_sha256}
        hashes = {item.id: item.prompt_sha256[:_HASH] for item in items if item.prompt_sha256}
        for one in of_cell:
            if one.result is None:
                continue
            if one.result.withheld.startswith(STALE):
                tell(f"{cell.key}@{one.result.evaluator.id}: left out, {one.result.withheld}")
                continue
            yield Scored(cell, one.result, prompts, hashes, images, one.source)


def may_compare(one: Result, other: Result) -> bool:
    """Whether two results are comparable: same benchmark version, evaluator and number of unasked items."""
    if one.coverage.unasked != other.coverage.unasked:
        return False
    return (one.benchmark_version, one.evaluator.id) == (other.benchmark_version, other.evaluator.id)


def why_not(one: Result, other: Result) -> str:
    """Return the reason why :func:`may_compare` returned False, in words."""
    if one.evaluator.id != other.evaluator.id:
        return f"measured by different evaluators ({one.evaluator.id}, {other.evaluator.id})"
    if one.benchmark_version == other.benchmark_version:
        counts = (
            f"{each.asked:,} of {each.expected:,}" if each.unasked else f"all {each.expected:,}"
            for each in (one.coverage, other.coverage)
        )
        return f"of other items ({', '.join(counts)}): run without --until to make the rest"
    return f"other versions of the benchmark ({one.benchmark_version}, {other.benchmark_version})"


def headline_of(*results: Result) -> list[str]:
    """Return the headline metrics of all ``results``, which belong to one benchmark.

    If all are withheld, the benchmark's own headline metrics are returned; if it names none, every metric."""
    named = dict.fromkeys(name for result in results for name in result.headline)
    there = dict.fromkeys(name for result in results for name in result.metrics)
    if not named:
        with contextlib.suppress(CellFailure):  # a broken benchmark is reported when it is evaluated
            cls = registry.benchmark_class(results[0].benchmark)
            named = dict.fromkeys(name for name in cls.headline if name in there) if cls else named
    return list(named or there)


# ---- a file of results

_ALWAYS = (1980, 1, 1, 0, 0, 0)  # the earliest time of a ZIP: equal results give equal bytes
_OF_SCORE = ("item", "status", "values", "parts")
_LONGEST_PROMPT = 200


def write_saved(path: Path, scored: Iterable[Scored]) -> int:
    """Write the latest result of each cell of ``scored`` to a file for :func:`read_all`; return their number.

    The file is a ZIP laid out as output/, with the fields of each item that a comparison reads. Raises
    OSError or CellFailure if a file cannot be written or read."""
    latest = {one.cell: one for one in reversed(list(scored))}
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED, compresslevel=9) as file:
        for cell, one in sorted(latest.items()):
            for name, data in _entries(one).items():
                entry = ZipInfo(f"{cell.key}/{name}", _ALWAYS)
                entry.external_attr = 0o644 << 16
                file.writestr(entry, data, ZIP_DEFLATED)
    write_atomic(path, buffer.getvalue())
    return len(latest)


def _entries(one: Scored) -> dict[str, bytes]:
    scores, ids = [], []
    records: Iterable[Mapping[str, Any]] = read_jsonl(one.source.with_name(one.cell.scores.name), SCORE)
    for record in records:
        scores.append({name: record[name] for name in _OF_SCORE if name in record})
        ids.append(record["item"])
    prompts = [
        {
            "item": item,
            "status": "ok",
            "prompt": one.prompts.get(item, "")[:_LONGEST_PROMPT],
            "prompt_sha256": one.hashes.get(item, ""),
            **({"image_sha256": one.images[item]} if item in one.images else {}),
        }
        for item in ids
        if item in one.hashes
    ]
    return {
        "result.json": one.source.read_bytes(),
        "scores.jsonl": _lines(scores),
        "generation.jsonl": _lines(prompts),
    }


def _lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return to_bytes("".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in records))
