"""The CSV files of the official programs, as they would write them for one model (and without the time in the name).

The last digit of means that they leave to pandas (alignment, reasoning, style, total average) is that of no version.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.oneig.data import Language, Task
from benchmarks.oneig.scores import (
    STYLE_GROUPS,
    STYLES,
    TEXT_PARTS,
    Run,
    analysed,
    headline,
    is_listed,
    is_scored,
    text_parts,
    value,
)
from imageevalkit.cell.scores import Score
from imageevalkit.metrics import arithmetic_mean, mean_by

# those of the analysis in the order of its script; a Chinese prompt has neither type nor length
_ANALYSED: Mapping[Language, Sequence[Task]] = {
    "en": ("alignment", "diversity", "reasoning", "style", "text"),
    "zh": ("reasoning", "style"),
}


def score_files(run: Run) -> dict[str, str]:
    """The files by name, of what :func:`benchmarks.oneig.scores.metrics` says of the images.

    ``alignment_score_EN.csv`` has the scores of the model, ``alignment_prompt_score_EN.csv`` those of its prompts, and
    so on; ``style_style_score_EN.csv`` those of the 29 styles. Under official rules a task whose program stops with an
    error leaves none (quirks T3, T6, R1).
    """
    tables = {}
    for task in run.tasks:
        scores = run.printed(task)
        if scores is None:
            continue
        lines = {_line(score, task): [_cell(score, task)] for score in scores if is_listed(score, task)}
        tables[f"{task}_score"] = _of_model(run, _columns(run, task, scores))
        tables[f"{task}_prompt_score"] = [["", run.model], *([name, *lines[name]] for name in sorted(lines))]
        if task == "style":
            tables["style_style_score"] = _of_model(run, _means(scores, task, "style", STYLES))
    return {f"{name}_{run.edition.mode}.csv": csv_text(rows) for name, rows in tables.items()}


def analysis_files(run: Run) -> dict[str, str]:
    """The tables of the official ``fine_grained_analysis.py``, one row for the model, numbers with 3 decimals.

    ``Alignment Model Scores.csv`` and so on, of what the official programs write. "-" where a group has no line there.
    Officially "nan" where one of its lines has no score, and the script stops at such a text, and at a task whose
    program wrote no file: there are no tables from there on.
    """
    files: dict[str, str] = {}
    is_official = run.rules == "official"
    for task in _ANALYSED[run.edition.language]:
        if task not in run.tasks:
            continue
        scores = run.printed(task)
        if scores is None or (
            task == "text" and is_official and not all(is_scored(score, task) for score in scores)
        ):
            break
        cells = {name: _mean_cell(known, is_official) for name, known in _groups(scores, task).items()}
        rows = [["Model", *cells], [run.model, *cells.values()]]
        files[f"{task.capitalize()} Model Scores.csv"] = csv_text(rows)
    return files


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """``rows`` as pandas writes them: nothing for what is missing."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _of_model(run: Run, columns: Mapping[str, float | None]) -> list[list[Any]]:
    return [["", *columns], [run.model, *columns.values()]]


def _columns(run: Run, task: Task, scores: Sequence[Score]) -> dict[str, float | None]:
    language = run.edition.language
    whole = headline(scores, task, language).value
    if task == "text":
        parts = text_parts(scores, language)
        return {name: metric.value for name, metric in parts.items()} | {"text score": whole}
    if task == "diversity":
        return _means(scores, task, "class_item", run.edition.sizes) | {"total average": whole}
    return {task: whole}


def _means(scores: Sequence[Score], task: Task, key: str, names: Iterable[str]) -> dict[str, float | None]:
    found = mean_by(scores, value(task), key, interval=False)
    return {name: found[name].value if name in found else None for name in names}


def _line(score: Score, task: Task) -> str:
    class_item, prompt_id = score.keys["class_item"], score.keys["id"]
    return f"{class_item}_{prompt_id}" if task in ("alignment", "diversity") else prompt_id


def _cell(score: Score, task: Task) -> float | str | None:
    if task == "text" and is_scored(score, task):
        return str([score.values[part] for part in TEXT_PARTS])
    return score.values.get(task)


def _groups(scores: Sequence[Score], task: Task) -> dict[str, list[float | None]]:
    """The scores of each column of the analysis; None of a prompt, or of a style, that it finds without one."""
    if task == "style":
        styles = _means(scores, task, "style", STYLES)
        return {group: [styles[style] for style in members] for group, members in STYLE_GROUPS.items()}
    return {
        name: [score.values.get(part) for score in of_group if is_listed(score, task)]
        for name, (part, of_group) in analysed(scores, task).items()
    }


def _mean_cell(scores: Sequence[float | None], is_official: bool) -> str:
    known = [score for score in scores if score is not None]
    if is_official and len(known) < len(scores):
        return "nan"
    return f"{arithmetic_mean(known):.3f}" if known else "-"
