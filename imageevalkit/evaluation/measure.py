"""``judgements.jsonl``: ask the evaluator only what it has not answered before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from imageevalkit.cell import Cell
from imageevalkit.evaluation.benchmark import Benchmark, Measurement, Score, Unparsed
from imageevalkit.evaluation.survey import ImageState
from imageevalkit.items import Item
from imageevalkit.jsonl import JsonlWriter, read_jsonl
from imageevalkit.progress import Progress, ProgressWriter
from imageevalkit.results import Evaluator
from imageevalkit.secrets import redact

JUDGED, UNPARSED, JUDGE_FAILED = "judged", "unparsed", "judge_failed"
_STATUS = {JUDGED: "ok", UNPARSED: "unparsed", JUDGE_FAILED: "failed"}


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
                parsed = parse(benchmark, items[measurement.item], measurement)
                writer.append(_record(measurement, parsed, requests[measurement.item], evaluator))
                if measurement.error:
                    failed += 1
                    print(f"{measurement.item} judge failed: {redact(measurement.error)}", flush=True)
                report()
    report(force=True)
    return known


class Parsed(NamedTuple):
    """One judgement's verdict: judged with a score, or unparsed / judge_failed with the reason."""

    verdict: str
    score: Score | None
    reason: str


def parse(benchmark: Benchmark, item: Item, measurement: Measurement) -> Parsed:
    """What a measurement is worth: its score, or why it has none."""
    if measurement.raw is None:
        return Parsed(JUDGE_FAILED, None, measurement.error)
    try:
        return Parsed(JUDGED, benchmark.score(item, measurement.raw), "")
    except Unparsed as error:
        return Parsed(UNPARSED, None, str(error))


def _known(cell: Cell, requests: Mapping[str, str]) -> dict[str, Measurement]:
    known = {}
    for record in read_jsonl(cell.judgements):
        item = record.get("item", "")
        # an unparsed reply is an answer: asking again until one parses would choose among replies
        if record.get("status") in ("ok", "unparsed") and requests.get(item) == record.get("request"):
            known[item] = Measurement(item, record["raw"], seconds=record.get("seconds", 0.0))
    return known


def _record(measurement: Measurement, parsed: Parsed, request: str, evaluator: Evaluator) -> dict[str, Any]:
    return {
        "item": measurement.item,
        "question": measurement.question,
        "evaluator": evaluator.id,
        "request": request,
        "status": _STATUS[parsed.verdict],
        "raw": measurement.raw,
        "parsed": parsed.score.values if parsed.score else None,
        "error": redact(parsed.reason) or None,
        "seconds": round(measurement.seconds, 4),
        "tokens": None,
    }
