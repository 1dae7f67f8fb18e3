"""Evaluate one cell: what is there, what the evaluator says, one validated result."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imageevalkit import assets
from imageevalkit.atomic import write_atomic
from imageevalkit.cell import Cell
from imageevalkit.cores import available_cores
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.benchmark import Benchmark, Measurement, Score, Unparsed
from imageevalkit.evaluation.measure import measure
from imageevalkit.evaluation.provenance import provenance
from imageevalkit.evaluation.survey import (
    BLANK,
    CORRUPT,
    FAILED,
    GENERATED,
    REFUSED_ITEM,
    ImageState,
    survey_images,
)
from imageevalkit.items import Item
from imageevalkit.jobs import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.progress import ProgressWriter
from imageevalkit.results import Coverage, Result, write_result

JUDGED, UNPARSED, JUDGE_FAILED, NOT_GENERATED = "judged", "unparsed", "judge_failed", "not_generated"


def evaluate_cell(
    cell: Cell,
    benchmark: Benchmark,
    items: Sequence[Item],
    limit: int | None,
    official_treatment: bool,
    progress: ProgressWriter,
) -> Outcome:
    """Score ``items`` of ``cell`` and leave scores.jsonl and result.json.

    With ``official_treatment`` blank placeholders are scored like images and the headline stands whatever the
    coverage, as evaluators do that only look at the files they find; else the headline is withheld below full
    coverage.

    Raises:
        CellFailure: nothing to score, wrong benchmark data, mixed images, an evaluator that cannot start.
    """
    data_sha256 = _verified_data(cell.benchmark)
    states = survey_images(cell, items)
    by_id = {item.id: item for item in items}
    scorable = {GENERATED, BLANK} if official_treatment else {GENERATED}
    to_judge = {item: state for item, state in states.items() if state.status in scorable}
    if not to_judge:
        counts = Counter(state.status for state in states.values())
        raise CellFailure(
            f"no image to score: {', '.join(f'{n} {status}' for status, n in counts.items())} of {len(items)} items"
        )
    workers = int(os.environ.get("IMAGEEVALKIT_CORES") or available_cores())
    measurements = measure(cell, benchmark, by_id, to_judge, workers, progress)
    scores, verdicts = _score(benchmark, by_id, measurements)
    _write_scores(cell, benchmark, states, scores, verdicts)
    coverage = _coverage(states, verdicts)
    metrics = benchmark.aggregate(scores)
    withheld = "" if coverage.complete or official_treatment else f"incomplete: {coverage.problems()}"
    result = Result(
        model=cell.model,
        benchmark=cell.benchmark,
        benchmark_version=benchmark.version,
        evaluator=benchmark.evaluator,
        coverage=coverage,
        metrics=metrics,
        headline=[] if withheld else list(benchmark.headline),
        treatment="official" if official_treatment else "withhold",
        limit=limit,
        provenance=provenance(cell, items, data_sha256),
        withheld=withheld,
        notes=_notes(states, coverage),
    )
    write_result(cell.result, result)
    return _outcome(result)


def _verified_data(benchmark: str) -> dict[str, str]:
    problems = assets.check(benchmark, hashes=True)
    if problems:
        raise CellFailure(assets.explain(problems, benchmark))
    return assets.data_sha256(benchmark)


def _score(
    benchmark: Benchmark, items: Mapping[str, Item], measurements: Mapping[str, Measurement]
) -> tuple[list[Score], dict[str, tuple[str, str]]]:
    """The scores, and for every measured item its verdict with a reason."""
    scores: list[Score] = []
    verdicts: dict[str, tuple[str, str]] = {}
    for item_id in (i for i in items if i in measurements):
        measurement = measurements[item_id]
        if measurement.raw is None:
            verdicts[item_id] = (JUDGE_FAILED, measurement.error)
            continue
        try:
            scores.append(benchmark.score(items[item_id], measurement.raw))
            verdicts[item_id] = (JUDGED, "")
        except Unparsed as error:
            verdicts[item_id] = (UNPARSED, str(error))
    return scores, verdicts


def _coverage(states: Mapping[str, ImageState], verdicts: Mapping[str, tuple[str, str]]) -> Coverage:
    counts = Counter(state.status for state in states.values())
    # a placeholder may be scored under the official treatment, but it was never generated
    judged = Counter(
        JUDGE_FAILED if item not in verdicts else verdicts[item][0]
        for item, state in states.items()
        if state.status == GENERATED
    )
    return Coverage(
        expected=len(states),
        generated=counts[GENERATED],
        refused=counts[REFUSED_ITEM],
        failed=counts[FAILED],
        blank=counts[BLANK],
        corrupt=counts[CORRUPT],
        judged=judged[JUDGED],
        unparsed=judged[UNPARSED],
        judge_failed=judged[JUDGE_FAILED],
        flat=sum(state.flat for state in states.values() if state.status == GENERATED),
    )


def _write_scores(
    cell: Cell,
    benchmark: Benchmark,
    states: Mapping[str, ImageState],
    scores: Sequence[Score],
    verdicts: Mapping[str, tuple[str, str]],
) -> None:
    by_item = {score.item: score for score in scores}
    lines = []
    for item, state in states.items():
        status, reason = verdicts.get(item, (NOT_GENERATED, f"{state.status}: {state.reason}"))
        score = by_item.get(item)
        record: dict[str, Any] = {
            "item": item,
            "status": status,
            "values": score.values if score else {},
            "keys": score.keys if score else {},
            "evaluator": benchmark.evaluator.id,
            "detail": score.detail if score else {},
            "reason": reason,
        }
        lines.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
    write_atomic(cell.scores, "\n".join(lines) + "\n")


def _notes(states: Mapping[str, ImageState], coverage: Coverage) -> list[str]:
    notes = []
    foreign = sum(not state.recorded for state in states.values() if state.status == GENERATED)
    if foreign:
        notes.append(f"{foreign} images have no generation record: they were made elsewhere")
    if coverage.flat:
        notes.append(f"{coverage.flat} images are one flat colour")
    corrupt = [f"{Path(i).name}: {s.reason}" for i, s in states.items() if s.status == CORRUPT]
    if corrupt:
        notes.append(f"corrupt: {'; '.join(corrupt[:3])}{' …' if len(corrupt) > 3 else ''}")
    return notes


def _outcome(result: Result) -> Outcome:
    shown = ", ".join(
        f"{name} {metric.value:.4f}"
        for name, metric in result.metrics.items()
        if name in result.headline and metric.value is not None
    )
    state = COMPLETE if result.coverage.complete else INCOMPLETE
    counts = f"{result.coverage.judged} of {result.coverage.expected} judged"
    problems = result.coverage.problems()
    return Outcome(state, "; ".join(part for part in (shown, counts, problems) if part))
