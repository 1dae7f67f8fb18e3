"""Evaluates one cell: surveys the images, asks the evaluator, and writes one validated result."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from imageevalkit import __version__, registry
from imageevalkit.benchmark.contract import (
    Answers,
    Benchmark,
    ScoredItem,
    Scores,
    benchmark_code,
    require,
)
from imageevalkit.common.errors import CellFailure, ExitStatus, say
from imageevalkit.common.hashes import environment_hash
from imageevalkit.common.text import decimals, dollars
from imageevalkit.evaluate.interview import JUDGE_FAILED, UNPARSED, Interview
from imageevalkit.extension_points import connected
from imageevalkit.jobs import plan as jobs
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store import fingerprint as fp
from imageevalkit.store import results
from imageevalkit.store.cell import REPO, Cell
from imageevalkit.store.items import Item, as_shown
from imageevalkit.store.records import OK, Record
from imageevalkit.store.results import DRIFTED, Coverage, Metric, Result, Score
from imageevalkit.store.states import CORRUPT, GENERATED, ImageState, Survey, scorable, survey_images


def evaluate_cell(
    cell: Cell,
    benchmark: Benchmark,
    items: Sequence[Item],
    progress: ProgressWriter,
    options: jobs.EvaluateOrder = jobs.EvaluateOrder(),  # noqa: B008 - immutable
    interview: Interview | None = None,
    unasked: int = 0,
) -> jobs.Outcome:
    """Scores ``items`` of ``cell`` and writes scores.jsonl, result.json and the benchmark's official files.

    With the option ``official``, blank placeholders are scored like images, and any coverage has the official
    headline: many official evaluators score all files. Otherwise an incomplete result has no headline. If the
    evaluator stops answering, the result is incomplete and the outcome is failed.

    Args:
        interview: An interview that began while the images were generated; None to start a new one.
        unasked: The number of further items that ``--until`` did not ask for.

    Raises CellFailure if there is no image to score, no answer, or an error in the benchmark.
    """
    data_sha256 = benchmark.files().sha256()
    found = survey_images(cell, items)
    states = found.states
    corrupt = _corrupt(states)
    images = scorable(states, options.official and benchmark.scores_blank)
    if not images:
        counts = Counter(state.status for state in states.values())
        became = ", ".join(f"{n} {status}" for status, n in counts.items())
        raise CellFailure(
            f"no image to score: {became} of {len(items)} items" + f"; {corrupt}" * bool(corrupt)
        )
    if interview:
        interview.show_only(images)
    else:
        interview = Interview(cell, benchmark, items, images, options, say)
    later = [kind(cell, benchmark, interview, options) for kind in connected("after_questions").values()]
    if options.ask:
        interview.run(progress)
        if not interview.problem:
            for one in later:
                one.ask(progress)
    elif interview.requests and not interview.answered:
        raise CellFailure(
            f"--rescore: {interview.evaluator.id} has no recorded answers about these images with these settings "
            "and package versions; leave out --rescore to ask it"
        )
    unanswered = interview.problem if options.ask else "not asked: --rescore uses recorded answers only"
    scores = Scores(
        [
            interview.scored_item(state, unanswered) if item in images else item_without_answers(state)
            for item, state in states.items()
        ]
    )
    if interview.has_lost_answers:
        # an older version counted thoughts as answers: its score is wrong
        results.forget_evaluator(cell, interview.evaluator.id)
    coverage, why = coverage_of(states, scores, unasked), _why(scores, options.ask)
    judged = f"{coverage.judged} of {coverage.expected} judged"
    stopped = f"{interview.problem} ({judged}; the next run continues)" if interview.problem else ""
    if interview.on_hold and not scores:
        return jobs.Outcome(jobs.INCOMPLETE, stopped)
    if not scores:  # without this check an unusable judge would become a column of the leaderboard
        raise CellFailure(stopped or f"nothing was judged: {coverage.problems()}{why}")
    with benchmark_code(benchmark.name, "metrics()") as where:
        metrics = benchmark.metrics(scores)
        require(isinstance(metrics, Mapping), where, metrics, "a mapping of Metrics by name")
        metrics = dict(metrics)
        for name, metric in metrics.items():
            require(isinstance(metric, Metric), f"{where}: '{name}'", metric, "a Metric")
    with benchmark_code(benchmark.name, "notes()"):
        own_notes = [*benchmark.notes(scores)]
    origin = provenance(cell, found, data_sha256, {**interview.spent, "run": interview.began})
    result = result_of(
        cell,
        coverage,
        (options.official and benchmark.official_headline) or benchmark.headline,
        options,
        benchmark_version=benchmark.version,
        evaluator=interview.evaluator,
        metrics=metrics,
        provenance=origin,
        notes=[
            *_notes(states, interview.repeated, origin),
            *filter(None, [corrupt]),
            *own_notes,
        ],
    )
    for one in later:
        result = one.amend(result, states, scores)
    try:
        results.validate(results.as_object(result))
        results.check_within_scale(metrics, benchmark.unbounded)
    except ValueError as error:
        raise CellFailure(f"benchmark {cell.benchmark}: {error}") from None
    if kept := _better(result, options.ask):
        if coverage.lacks_nothing:
            message = f"{_headline(result)}; the result of {kept.coverage.expected} items is kept"
            return jobs.Outcome(jobs.COMPLETE, message)
        stands = f"the result of {kept.coverage.judged} judged items is kept"
        raise CellFailure(f"{coverage.problems()}{why}; {stands}")
    if gone := sum(not state.path.is_file() for state in images.values()):
        raise CellFailure(
            f"{gone} of {len(images)} images were removed from {cell.folder} while they were judged"
        )
    with benchmark_code(benchmark.name, "official_files()") as where:
        official = dict(benchmark.official_files(scores))
        results.check_files(official, where)
    results.leave(cell, result, scores_text(result.evaluator.id, states, scores, metrics), official)
    if stopped:
        return jobs.Outcome(jobs.INCOMPLETE if interview.on_hold else jobs.FAILED, stopped)
    spent = f"{dollars(interview.usd)} for the judge" if interview.usd is not None else ""
    summaries = [one.summary(result) for one in later]
    return outcome_of_result(result, why, corrupt, spent, *summaries)


def judged_items(cell: Cell, items: Sequence[Item]) -> Sequence[Item]:
    """Returns ``items`` with the judge's prompts: the rewritten ones if the rewriter's protocol says so.

    Raises CellFailure if the rewritten prompts cannot be read, UserError if the rewriter no longer exists.
    """
    name = cell.rewriter.partition("-")[0]
    return as_shown(cell, items) if name and registry.rewriter_class(name).judged else items


def result_of(
    cell: Cell, coverage: Coverage, headline: Sequence[str], options: jobs.EvaluateOrder, **known: Any
) -> Result:
    """Returns the result with the fields of ``known``. If items are missing, the ``headline`` is withheld,
    except with the option ``official``."""
    withheld = "" if coverage.lacks_nothing or options.official else f"incomplete: {coverage.problems()}"
    return Result(
        model=cell.model,
        benchmark=cell.benchmark,
        coverage=coverage,
        headline=[] if withheld else list(headline),
        treatment="official" if options.official else "withhold",
        limit=options.limit,
        withheld=withheld,
        **known,
    )


def item_without_answers(state: ImageState) -> ScoredItem:
    """Returns an item without questions: it has no image to score, or a script evaluates the benchmark."""
    if state.status == GENERATED:
        return ScoredItem(state.item, state.path, Answers({}), {}, Score({}))
    reason = f"{state.status}: {state.reason}"
    return ScoredItem(state.item, None, Answers({}), {}, None, state.attempted, "not_generated", reason)


def _why(scores: Scores, asked: bool) -> str:
    """Returns the commonest reason why an item was not judged, with a remedy; "" if all items were judged."""
    lost = Counter((one.status, one.reason) for one in scores.items if one.status in (UNPARSED, JUDGE_FAILED))
    if not lost:
        return ""
    ((status, reason), count), *_ = lost.most_common(1)
    again = "run again to ask again" if asked else "leave --rescore out to ask again"
    remedy = "--retry_unparsed asks again" if status == UNPARSED else again
    return f" ({f'{count} times' if count > 1 else 'once'}: {reason}; {remedy})"


def _better(result: Result, asked: bool) -> Result | None:
    """Returns an existing result of the same evaluator that ``result`` must not replace, or None.

    A complete result over more items stays if ``result`` is limited, stopped early, or lacks some of its
    metrics. If nothing was ``asked`` (``--rescore``), a result with more judged items stays: the missing
    answers may be on record under other settings.
    """
    for other in results.standing(Cell(result.model, result.benchmark)):
        is_alike = other.evaluator.id == result.evaluator.id and other.treatment == result.treatment
        one, this = other.coverage, result.coverage
        is_part = result.limit or this.unasked or result.metrics.keys() < other.metrics.keys()
        covers_more = is_part and one.complete and one.expected > this.asked
        knows_more = not asked and other.limit == result.limit and one.judged > this.judged
        if is_alike and (covers_more or knows_more):
            return other
    return None


def coverage_of(states: Mapping[str, ImageState], scores: Scores, unasked: int = 0) -> Coverage:
    """Counts the items by the states of images and scores. ``unasked`` is the number of further items."""
    images = list(states.values())
    # the official treatment may score a placeholder, which still does not count as generated
    items = (one for one in scores.items if states[one.item.id].status == GENERATED)
    counts = Counter([*(image.status for image in images), *(item.status for item in items)])
    flat = sum(image.flat for image in images if image.status == GENERATED)
    statuses = {each.name for each in fields(Coverage)} - {"expected", "flat", "unasked"}
    known = {status: counts[status] for status in statuses}
    return Coverage(expected=len(images) + unasked, flat=flat, unasked=unasked, **known)


def scores_text(
    evaluator: str,
    states: Mapping[str, ImageState],
    scores: Scores,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
) -> str:
    """Returns the text of scores.jsonl: one record per item.

    ``parts`` in a record is the item's share in each of the ``metrics`` with a value, by name. A share is a
    list of total, weight, group and cluster, without nulls at the end.
    """
    parts: dict[str, dict[str, list[list[Any]]]] = {}
    for name, metric in metrics.items():
        # if a benchmark merged several items into one score, the share of a single item is unknown
        is_whole = metric.value is not None and all(part.item in states for part in metric.parts)
        for part in metric.parts if is_whole else ():
            known = [*part[1:]]
            while known[-1] is None:
                known.pop()
            parts.setdefault(part.item, {}).setdefault(name, []).append(known)
    lines = []
    for one in scores.items:
        state, score = states[one.item.id], one.score or Score({})
        record: dict[str, Any] = {
            "item": one.item.id,
            "status": one.status,
            "image_sha256": state.sha256 or None,
            "attempted": state.attempted,
            "values": score.values,
            "keys": score.keys,
            "evaluator": evaluator,
            "detail": score.detail,
            "reason": one.reason,
        }
        if score.points:
            record["points"] = [{"values": point.values, "keys": point.keys} for point in score.points]
        if one.item.id in parts:
            record["parts"] = parts[one.item.id]
        lines.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    return "".join(lines)


def _notes(states: Mapping[str, ImageState], asked_again: int, origin: Mapping[str, Any]) -> list[str]:
    notes, generated = [], [state for state in states.values() if state.status == GENERATED]
    if asked_again:
        notes.append(f"{asked_again} questions were asked more often than officially (--retry_unparsed)")
    if foreign := sum(not state.made_here for state in generated):
        grids = {settings["grid"] for settings in origin["model_settings"] if "grid" in settings}
        cut = f" and were cut out of grids (rows,cols {', '.join(sorted(grids))})" if grids else ""
        notes.append(f"{foreign} images come from elsewhere{cut}: their settings are unknown")
    rewritten = [state.record.rewriting for state in generated if state.record and state.record.rewriting]
    if rewritten:
        lost = [one for one in rewritten if one["lost"]]
        kept = sum(bool(one["kept"]) for one in rewritten) - len(lost)
        changed = f"{len(rewritten) - kept - len(lost)} of {len(rewritten)} images"
        parts = [f"{changed} are of prompts rewritten by {rewritten[0]['by']}"]
        parts += [f"{kept} of prompts that it leaves as they are"] * bool(kept)
        parts += [f"{len(lost)} of original ones that could not be rewritten"] * bool(lost)
        read = "the ones they were made of" if generated[0].item.rewriting else "the original ones"
        notes.append(f"{', '.join(parts)}; all are judged by {read}")
    if flat := sum(state.flat for state in generated):
        notes.append(f"{flat} images are one flat colour")
    return notes


def _corrupt(states: Mapping[str, ImageState]) -> str:
    """Returns up to three corrupt images with their reasons, or "" if no image is corrupt."""
    corrupt = [f"{i.removeprefix('images/')}: {s.reason}" for i, s in states.items() if s.status == CORRUPT]
    return f"corrupt: {'; '.join(corrupt[:3])}{' …' if len(corrupt) > 3 else ''}" if corrupt else ""


def leave_outcome(cell: Cell, outcome: jobs.Outcome, plan: jobs.Plan | None) -> ExitStatus:
    """Prints the outcome of ``cell``, writes it for the launcher of ``plan``, and returns the exit status."""
    say(f"=== {outcome.state}: {outcome.message}")
    if plan:
        jobs.write_outcome(Path(plan.run_folder), cell, "evaluate", outcome)
    return jobs.STATUS_OF_STATE[outcome.state]


def outcome_of_result(result: Result, why: str = "", *more: str) -> jobs.Outcome:
    """Returns the outcome for ``result``. Its message says ``why`` items were not judged, and ``more``."""
    coverage = result.coverage
    lost = f"{coverage.problems()}{why}" if coverage.problems() else ""
    counts = f"{coverage.judged} of {coverage.expected} judged"
    counts += f", {coverage.unasked} unasked" * bool(coverage.unasked)
    parts = (_headline(result), DRIFTED if result.drift else "", counts, lost, *more)
    return jobs.Outcome(
        jobs.COMPLETE if coverage.lacks_nothing else jobs.INCOMPLETE, "; ".join(filter(None, parts))
    )


def _headline(result: Result) -> str:
    values = {name: result.metrics[name].value for name in result.headline}
    return ", ".join(
        f"{name} has no value for these items" if value is None else f"{name} {decimals(value, 4)}"
        for name, value in values.items()
    )


# The origin of a result: code, data, model, machine, time

_NOBODY_ASKED = {"judge_calls": 0, "judge_tokens": {}, "judge_usd": None}


def provenance(
    cell: Cell, found: Survey, data_sha256: dict[str, str], judging: Mapping[str, Any] = _NOBODY_ASKED
) -> dict[str, Any]:
    """Returns the provenance for a result of ``cell``.

    Args:
        found: The survey of the images.
        data_sha256: The hashes of the benchmark's files.
        judging: The calls, tokens and USD of the judge.
    """
    mine = [state.record for state in found.states.values() if state.record]
    known = fp.known(cell.fingerprints)
    prompts = "\n".join(state.item.prompt_sha256 for state in found.states.values())
    return {
        "imageevalkit": __version__,
        "git_commit": _commit(),
        "model_settings": [known.get(key, {}) for key in sorted({r.fingerprint for r in mine})],
        "model_packages": fp.packages_of(cell.fingerprints),
        "seeds_honoured": dict(Counter(json.dumps(r.seed_honoured) for r in mine)),
        "generation_seconds": round(sum(r.seconds for r in mine), 2),
        **_money(found.usd, mine, known),
        **judging,
        "data_sha256": data_sha256,
        "prompts_sha256": hashlib.sha256(prompts.encode()).hexdigest(),
        "environment": environment_hash(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpus": _gpu_names(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _money(spent: float, records: Sequence[Record], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the USD of all runs, with failed requests; None if an image of an API has no known price."""
    made = (record for record in records if record.status == OK)
    prices = [record.price for record in made if "host" in known.get(record.fingerprint, {})]
    if unpriced := prices.count(None):
        return {"generation_usd": None, "generation_usd_unpriced": unpriced}
    return {"generation_usd": round(spent, 6) if prices or spent else None}


def _gpu_names() -> list[str]:
    """Returns the names of this machine's GPUs, without GPUs that do not answer; empty without NVML."""
    names = list[str]()
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not find_spec("pynvml"):
        return names
    import pynvml  # type: ignore[import-untyped]

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):
                names.append(str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))))
    return names


def _commit() -> str:
    """Returns the commit, with "+changes" if files differ from it; empty outside a checkout or without git."""
    if not shutil.which("git"):
        return ""
    command = ("git", "describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*")
    answer = subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""
