"""``judgements.jsonl``: ask the evaluator only what it was not asked before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from imageevalkit.cell import Cell
from imageevalkit.evaluation.benchmark import Benchmark, Measurement
from imageevalkit.evaluation.survey import ImageState
from imageevalkit.items import Item
from imageevalkit.jsonl import JsonlWriter, read_jsonl
from imageevalkit.progress import Progress, ProgressWriter
from imageevalkit.results import Evaluator
from imageevalkit.secrets import redact


def request_hash(evaluator: Evaluator, image_sha256: str) -> str:
    """Identifies a question: the evaluator with its versions and settings, and the image's bytes."""
    canonical = json.dumps([asdict(evaluator), image_sha256], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def measure(
    cell: Cell,
    benchmark: Benchmark,
    items: Mapping[str, Item],
    states: Mapping[str, ImageState],
    workers: int,
    progress: ProgressWriter,
) -> dict[str, Measurement]:
    """The measurement of every item in ``states``; answers that are on record are not asked again.

    Raises:
        CellFailure: the evaluator cannot start, or the disk is full.
    """
    evaluator = benchmark.evaluator
    requests = {item: request_hash(evaluator, state.sha256) for item, state in states.items()}
    known = _known(cell, requests)
    open_items = {item: states[item].path for item in states if item not in known}
    total, failed = len(states), 0

    def report(force: bool = False) -> None:
        progress.report(
            Progress(cell.key, "evaluate", len(known), total, total - len(open_items), failed), force
        )

    print(f"{total - len(open_items)} of {total} images are judged, {len(open_items)} to judge", flush=True)
    report(force=True)
    if open_items:
        with JsonlWriter(cell.judgements) as writer:
            for measurement in benchmark.measure(open_items, items, workers):
                known[measurement.item] = measurement
                writer.append(_record(measurement, requests[measurement.item], evaluator))
                if measurement.error:
                    failed += 1
                    print(f"{measurement.item} judge failed: {redact(measurement.error)}", flush=True)
                report()
    report(force=True)
    return known


def _known(cell: Cell, requests: Mapping[str, str]) -> dict[str, Measurement]:
    known = {}
    for record in read_jsonl(cell.judgements):
        item = record.get("item", "")
        if record.get("status") == "ok" and requests.get(item) == record.get("request"):
            known[item] = Measurement(item, record["raw"], seconds=record.get("seconds", 0.0))
    return known


def _record(measurement: Measurement, request: str, evaluator: Evaluator) -> dict[str, Any]:
    return {
        "item": measurement.item,
        "evaluator": evaluator.id,
        "request": request,
        "status": "failed" if measurement.error else "ok",
        "raw": measurement.raw,
        "error": redact(measurement.error) or None,
        "seconds": round(measurement.seconds, 4),
        "tokens": None,
    }
