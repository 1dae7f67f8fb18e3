"""The CSV files of the official programs, as they would write them for one model (and without the time in the name).

The last digit of means that they leave to pandas (alignment, reasoning, style, total average) is that of no version.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from benchmarks.oneig import text_metric
from benchmarks.oneig.editions import CHINESE, ENGLISH
from benchmarks.oneig.fine_grained import STYLES
from benchmarks.oneig.prompt_scores import comparisons, comparisons_of_program, has_failed, in_order, mean
from benchmarks.oneig.rows import Row, of_task, rows
from benchmarks.oneig.scored import Language, ScoredPrompt, Task
from benchmarks.oneig.text_metric import Comparison
from imageevalkit.benchmark.contract import Rules

_EDITIONS: Mapping[Language, tuple[str, tuple[str, ...]]] = {
    edition.language: (edition.mode, tuple(edition.sizes)) for edition in (ENGLISH, CHINESE)
}
_Cell = float | str | None


def official_files(
    prompts: Sequence[ScoredPrompt], tasks: Sequence[Task], rules: Rules, language: Language, model: str
) -> dict[str, str]:
    """The files by name, of ``prompts`` and what :func:`benchmarks.oneig.metric.metrics` says of their images.

    ``alignment_score_EN.csv`` has the scores of the model, ``alignment_prompt_score_EN.csv`` those of its prompts, and
    so on; ``style_style_score_EN.csv`` those of the 29 styles. Under official rules a task whose program stops with an
    error leaves none (quirks T3, T6, R1).
    """
    ordered = in_order(prompts)
    mode, classes = _EDITIONS[language]
    tables: dict[str, str] = {}
    for task in tasks:
        if task == "text":
            tables |= _text(ordered, rules, language, model)
            continue
        if not is_written(ordered, task, rules):
            continue
        of_one = rows(ordered, task, rules)
        tables[f"{task}_score"] = _table([model], _model_columns(task, of_one, classes))
        lines = {_index(row, task): row.score for row in of_one if row.listed}
        tables[f"{task}_prompt_score"] = _table(sorted(lines), {model: [lines[one] for one in sorted(lines)]})
        if task == "style":
            styles = {style: [_mean(of_one, "style", style)] for style in STYLES}
            tables["style_style_score"] = _table([model], styles)
    return {f"{name}_{mode}.csv": text for name, text in tables.items()}


def is_written(prompts: Sequence[ScoredPrompt], task: Task, rules: Rules) -> bool:
    """Whether the program of ``task``, any but text, comes to its end: quirk R1."""
    return rules == "corrected" or task != "reasoning" or not any(map(has_failed, of_task(prompts, task)))


def compared_texts(
    ordered: Sequence[ScoredPrompt], rules: Rules, language: Language
) -> list[list[Comparison]] | None:
    """What the text program compares of each text prompt; None where it stops (quirks T3, T6), or nothing was read."""
    mine = of_task(ordered, "text")
    compared = (
        comparisons_of_program(mine, language)
        if rules == "official"
        else [comparisons(one, rules, language) for one in mine]
    )
    return compared if compared and any(compared) else None


def _index(row: Row, task: Task) -> str:
    prompt = row.prompt
    return f"{prompt.class_item}_{prompt.id}" if task in ("alignment", "diversity") else prompt.id


def _model_columns(task: Task, of_one: Sequence[Row], classes: Sequence[str]) -> dict[str, list[_Cell]]:
    whole = mean(row.score for row in of_one if row.score is not None)
    if task != "diversity":
        return {task: [whole]}
    return {**{name: [_mean(of_one, "class_item", name)] for name in classes}, "total average": [whole]}


def _mean(of_one: Sequence[Row], key: str, value: str) -> float | None:
    return mean(row.score for row in of_one if row.score is not None and getattr(row.prompt, key) == value)


def _text(ordered: Sequence[ScoredPrompt], rules: Rules, language: Language, model: str) -> dict[str, str]:
    mine, compared = of_task(ordered, "text"), compared_texts(ordered, rules, language)
    scores = compared and text_metric.of_model([one for of_prompt in compared for one in of_prompt])
    if not compared or not scores:
        return {}
    columns = dict(zip(("ED", "CR", "WAC"), scores, strict=True)) | {"text score": scores.score(language)}
    return {
        "text_score": _table([model], {name: [value] for name, value in columns.items()}),
        "text_prompt_score": _table(
            [one.prompt.id for one in mine], {model: [_record(of_prompt) for of_prompt in compared]}
        ),
    }


def _record(compared: Sequence[Comparison]) -> str | None:
    scores = text_metric.of_prompt(compared)
    return str(list(scores)) if scores else None


def _table(index: Sequence[str], columns: Mapping[str, Sequence[_Cell]]) -> str:
    """As pandas writes a frame: the index first, under an empty name, and nothing for what is missing."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *columns])
    writer.writerows(zip(index, *columns.values(), strict=True))
    return text.getvalue()
