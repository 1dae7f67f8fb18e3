"""Evaluate one cell: what is there, what the evaluator says, one validated result."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from imageevalkit import assets
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.result_files import leave, standing
from imageevalkit.cell.results import Coverage, Result, as_object, check_within_scale, validate
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.benchmark import Benchmark, Judged
from imageevalkit.evaluation.judging import (
    JUDGE_FAILED,
    JUDGED,
    UNPARSED,
    AskOptions,
    Verdict,
    judge_items,
)
from imageevalkit.evaluation.provenance import provenance
from imageevalkit.evaluation.survey import (
    BLANK,
    CORRUPT,
    FAILED,
    GENERATED,
    REFUSED_ITEM,
    ImageState,
    scorable,
    survey_images,
)
from imageevalkit.jobs import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.jobs import FAILED as JOB_FAILED
from imageevalkit.money import dollars
from imageevalkit.progress import ProgressWriter

NOT_GENERATED = "not_generated"
_DEFAULT = AskOptions()


def evaluate_cell(
    cell: Cell,
    benchmark: Benchmark,
    items: Sequence[Item],
    limit: int | None,
    official_treatment: bool,
    progress: ProgressWriter,
    asking: AskOptions = _DEFAULT,
) -> Outcome:
    """Score ``items`` of ``cell`` and leave scores.jsonl, result.json and the benchmark's official files.

    With ``official_treatment`` blank placeholders are scored like images and the official headline stands
    whatever the coverage, as evaluators do that only look at the files they find; else the headline is withheld
    below full coverage. An evaluator that stops answering leaves an incomplete result and a failed outcome.

    Raises:
        CellFailure: nothing to score, wrong benchmark data, mixed images, an evaluator that cannot start, images
            that go meanwhile, a benchmark that breaks its contract.
    """
    data_sha256 = assets.data_sha256(cell.benchmark)
    states = survey_images(cell, items)
    by_id = {item.id: item for item in items}
    corrupt = _corrupt(states)
    to_judge = scorable(states, official_treatment and benchmark.scores_blank)
    if not to_judge:
        counts = Counter(state.status for state in states.values())
        raise CellFailure(
            f"no image to score: {', '.join(f'{n} {status}' for status, n in counts.items())} of {len(items)} items"
            + (f"; {corrupt}" if corrupt else "")
        )
    verdicts, problem, asked_again, usd = judge_items(cell, benchmark, by_id, to_judge, asking, progress)
    if not asking.ask and not any(verdict.replies for verdict in verdicts.values()):
        raise CellFailure(
            f"--rescore: {benchmark.evaluator.id} has said nothing about these images, with these settings and "
            "versions of packages; leave --rescore out to ask it"
        )
    coverage = _coverage(states, verdicts)
    if not any(verdict.score for verdict in verdicts.values()):
        # no result: a judge that cannot be used is no column of the leaderboard
        raise CellFailure(_nothing_judged(verdicts, problem, coverage))
    judged = [_judged(item, states[item.id], verdicts.get(item.id)) for item in items]
    metrics = benchmark.aggregate(judged)
    headline = (official_treatment and benchmark.official_headline) or benchmark.headline
    origin = provenance(cell, items, data_sha256, benchmark.judge_id)
    withheld = "" if coverage.complete or official_treatment else f"incomplete: {coverage.problems()}"
    result = Result(
        model=cell.model,
        benchmark=cell.benchmark,
        benchmark_version=benchmark.version,
        evaluator=benchmark.evaluator,
        coverage=coverage,
        metrics=metrics,
        headline=[] if withheld else list(headline),
        treatment="official" if official_treatment else "withhold",
        limit=limit,
        provenance=origin,
        withheld=withheld,
        notes=[
            *_notes(states, coverage, asked_again, origin),
            *filter(None, [corrupt]),
            *_beyond_scale(benchmark, verdicts),
            *benchmark.notes(judged),
        ],
    )
    _check(result, benchmark, verdicts)
    if kept := _better(result, asking.ask):
        if not coverage.complete:
            raise CellFailure(
                f"{coverage.problems()}; the result of {kept.coverage.judged} judged items stands"
            )
        return Outcome(COMPLETE, f"{_shown(result)}; the result of {kept.coverage.expected} items stands")
    if gone := sum(not state.path.is_file() for state in to_judge.values()):
        raise CellFailure(
            f"{gone} of {len(to_judge)} images were removed from {cell.folder} while they were judged"
        )
    official = benchmark.official_files(judged)
    _check_official(official, cell)
    leave(cell, result, _scores(benchmark, states, verdicts), official)
    return _outcome(result, problem, verdicts, corrupt, usd)


def _check(result: Result, benchmark: Benchmark, verdicts: Mapping[str, Verdict]) -> None:
    """Whether ``result`` can be written, before any file of it is. Raises CellFailure."""
    try:
        validate(as_object(result))
        if not any(verdict.beyond for verdict in verdicts.values()):  # as then its metrics may be
            check_within_scale(result.metrics, benchmark.unbounded)
    except ValueError as error:
        raise CellFailure(f"benchmark {result.benchmark}: {error}") from None


def _check_official(files: Mapping[str, str], cell: Cell) -> None:
    """Whether all are texts for the folder ``official/`` itself. Raises CellFailure."""
    for name, text in files.items():
        where = f"benchmark {cell.benchmark}: official_files() has '{name}'"
        if name in ("", "..") or PurePath(name).name != name:
            raise CellFailure(f"{where}: give a file name without a folder")
        if not isinstance(text, str):
            raise CellFailure(f"{where}, which is {reprlib.repr(text)}: give its text")


def _nothing_judged(verdicts: Mapping[str, Verdict], problem: str, coverage: Coverage) -> str:
    if problem:
        return f"{problem} (0 of {coverage.expected} judged; run again to go on)"
    return f"nothing was judged: {coverage.problems()}{_why(verdicts)}"


def _why(verdicts: Mapping[str, Verdict]) -> str:
    """The commonest reason why an item was not judged, and what to do about it; empty when all were."""
    reasons = Counter((v.verdict, v.reason) for v in verdicts.values() if v.verdict != JUDGED)
    if not reasons:
        return ""
    (verdict, reason), count = reasons.most_common(1)[0]
    remedy = "; --retry_unparsed asks again" if verdict == UNPARSED else "; run again to ask again"
    return f" ({f'{count} times' if count > 1 else 'once'}: {reason}{remedy})"


def _better(result: Result, asked: bool) -> Result | None:
    """The result of the same evaluator that ``result`` must not replace, if there is one.

    That is a complete one of more items than a limited ``result`` has; and one that knows more, where nothing was
    ``asked``: then what is missing may have been said, but to other settings.
    """
    for other in standing(Cell(result.model, result.benchmark)):
        if other.evaluator.id != result.evaluator.id or other.treatment != result.treatment:
            continue
        covers_more = other.coverage.expected > result.coverage.expected and other.coverage.complete
        if result.limit and covers_more:
            return other
        if not asked and other.limit == result.limit and other.coverage.judged > result.coverage.judged:
            return other
    return None


def _judged(item: Item, state: ImageState, verdict: Verdict | None) -> Judged:
    if verdict is None:
        return Judged(item, None, {}, {}, None, state.attempted)
    return Judged(item, state.path, verdict.replies, verdict.parsed, verdict.score)


def _coverage(states: Mapping[str, ImageState], verdicts: Mapping[str, Verdict]) -> Coverage:
    counts = Counter(state.status for state in states.values())
    # a placeholder may be scored under the official treatment, but it was never generated
    judged = Counter(
        verdicts[item].verdict if item in verdicts else JUDGE_FAILED
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


def _scores(benchmark: Benchmark, states: Mapping[str, ImageState], verdicts: Mapping[str, Verdict]) -> str:
    """The text of scores.jsonl: a record of every item."""
    lines = []
    for item, state in states.items():
        lost = Verdict(NOT_GENERATED, None, f"{state.status}: {state.reason}", {}, {})
        verdict = verdicts.get(item, lost)
        score = verdict.score
        record: dict[str, Any] = {
            "item": item,
            "status": verdict.verdict,
            "image_sha256": state.sha256 or None,
            "attempted": state.attempted,
            "values": score.values if score else {},
            "keys": score.keys if score else {},
            "evaluator": benchmark.evaluator.id,
            "detail": score.detail if score else {},
            "reason": verdict.reason,
        }
        lines.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def _notes(
    states: Mapping[str, ImageState], coverage: Coverage, asked_again: int, origin: Mapping[str, Any]
) -> list[str]:
    notes = []
    if asked_again:
        notes.append(f"{asked_again} questions were asked more often than officially (--retry_unparsed)")
    foreign = sum(not state.made_here for state in states.values() if state.status == GENERATED)
    if foreign:
        grids = {settings["grid"] for settings in origin["model_settings"] if "grid" in settings}
        cut = f", and cut out of grids (rows,cols {', '.join(sorted(grids))})" if grids else ""
        notes.append(f"{foreign} images were made elsewhere{cut}: nothing says how")
    if coverage.flat:
        notes.append(f"{coverage.flat} images are one flat colour")
    return notes


def _corrupt(states: Mapping[str, ImageState]) -> str:
    """Which images are corrupt, and why; empty if none is."""
    corrupt = [f"{i.removeprefix('images/')}: {s.reason}" for i, s in states.items() if s.status == CORRUPT]
    return f"corrupt: {'; '.join(corrupt[:3])}{' …' if len(corrupt) > 3 else ''}" if corrupt else ""


def _beyond_scale(benchmark: Benchmark, verdicts: Mapping[str, Verdict]) -> list[str]:
    """A note on the scores that count though the judge was told to give no such ones."""
    beyond = {item: ", ".join(verdict.beyond) for item, verdict in verdicts.items() if verdict.beyond}
    if not beyond or benchmark.judge_scale is None:
        return []
    (low, high), (item, first) = benchmark.judge_scale, next(iter(beyond.items()))
    return [
        f"{len(beyond)} of the judge's verdicts are beyond its scale of {low:g} to {high:g} and count as the official "
        f"program reads them (the first: {first} of {item.removeprefix('images/')}); rules=corrected asks again"
    ]


def _outcome(
    result: Result, problem: str, verdicts: Mapping[str, Verdict], corrupt: str, usd: float | None
) -> Outcome:
    if problem:
        coverage = result.coverage
        return Outcome(
            JOB_FAILED, f"{problem} ({coverage.judged} of {coverage.expected} judged; run again to go on)"
        )
    state = COMPLETE if result.coverage.complete else INCOMPLETE
    counts = f"{result.coverage.judged} of {result.coverage.expected} judged"
    problems = result.coverage.problems()
    lost = f"{problems}{_why(verdicts)}" if problems else ""
    spent = f"{dollars(usd)} for the judge" if usd is not None else ""
    return Outcome(state, "; ".join(part for part in (_shown(result), counts, lost, corrupt, spent) if part))


def _shown(result: Result) -> str:
    """The headline scores in words; empty when they are withheld."""
    values = {name: result.metrics[name].value for name in result.headline}
    return ", ".join(
        f"{name} has no value for these items" if value is None else f"{name} {value:.4f}"
        for name, value in values.items()
    )
