"""The tables of the official ``fine_grained_analysis.py``, one row for the model, numbers with 3 decimals."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from benchmarks.oneig import text_metric
from benchmarks.oneig.fine_grained import LENGTHS, STYLE_GROUPS, STYLES, SUBJECTS, TEXT_PARTS, TYPES
from benchmarks.oneig.official_csv import compared_texts, is_written
from benchmarks.oneig.prompt_scores import in_order, mean
from benchmarks.oneig.rows import of_task, rows
from benchmarks.oneig.scored import Language, ScoredPrompt, Task
from imageevalkit.benchmark.contract import Rules

# in the order of the script; a Chinese prompt has neither type nor length
_TASKS: Mapping[Language, Sequence[Task]] = {
    "en": ("alignment", "diversity", "reasoning", "style", "text"),
    "zh": ("reasoning", "style"),
}
_NO_PROMPTS, _NOT_A_NUMBER = "-", "nan"

_Groups = Mapping[str, Sequence[float | None]]
"""The scores of each column; None of a prompt, or of a style, that the script finds without one."""


def analysis_files(
    prompts: Sequence[ScoredPrompt], tasks: Sequence[Task], rules: Rules, language: Language, model: str
) -> dict[str, str]:
    """``Alignment Model Scores.csv`` and so on, of what the official programs write of ``prompts`` in ``tasks``.

    "-" where a group has no line there. Officially "nan" where one of its lines has no score, and the script stops at
    such a text, and at a task whose program wrote no file: there are no tables from there on.
    """
    ordered, files = in_order(prompts), dict[str, str]()
    for task in _TASKS[language]:
        if task not in tasks:
            continue
        groups = _texts(ordered, rules, language) if task == "text" else _groups(ordered, task, rules)
        if groups is None:
            break
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["Model", *groups])
        writer.writerow([model, *(_shown(scores, rules) for scores in groups.values())])
        files[f"{task.capitalize()} Model Scores.csv"] = text.getvalue()
    return files


def _groups(ordered: Sequence[ScoredPrompt], task: Task, rules: Rules) -> _Groups | None:
    if not is_written(ordered, task, rules):
        return None
    listed = [row for row in rows(ordered, task, rules) if row.listed]
    if task == "style":
        styles = {style: [row.score for row in listed if row.prompt.style == style] for style in STYLES}
        return {
            group: [mean(score for score in styles[style] if score is not None) for style in members]
            for group, members in STYLE_GROUPS.items()
        }
    if task == "reasoning":
        return {subject: [row.score for row in listed if row.prompt.label == subject] for subject in SUBJECTS}
    return {
        **{kind: [row.score for row in listed if row.prompt.type == kind] for kind in TYPES},
        **{length: [row.score for row in listed if row.prompt.length == length] for length in LENGTHS},
    }


def _texts(ordered: Sequence[ScoredPrompt], rules: Rules, language: Language) -> _Groups | None:
    compared = compared_texts(ordered, rules, language)
    if compared is None:
        return None
    scores = [text_metric.of_prompt(one) for one in compared]
    if rules == "official" and None in scores:
        return None
    lengths = [one.prompt.length for one in of_task(ordered, "text")]
    return {
        f"{length}_{part}": [
            one and one[place] for one, of in zip(scores, lengths, strict=True) if of == length
        ]
        for place, part in enumerate(TEXT_PARTS)
        for length in LENGTHS
    }


def _shown(scores: Sequence[float | None], rules: Rules) -> str:
    known = [score for score in scores if score is not None]
    if len(known) < len(scores) and rules == "official":
        return _NOT_A_NUMBER
    value = mean(known)
    return _NO_PROMPTS if value is None else f"{value:.3f}"
