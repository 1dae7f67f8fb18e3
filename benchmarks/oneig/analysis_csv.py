"""The tables of the official ``fine_grained_analysis.py``, one row for the model, numbers with 3 decimals."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from benchmarks.oneig.fine_grained import LENGTHS, STYLE_GROUPS, SUBJECTS, TEXT_PARTS, TYPES, metric_name
from benchmarks.oneig.scored import Language, Task
from imageevalkit.evaluation.benchmark import Rules
from imageevalkit.results import Metric

_BY_FORM = (*TYPES, *LENGTHS)
_COLUMNS: Mapping[Task, Sequence[str]] = {
    "alignment": _BY_FORM,
    "diversity": _BY_FORM,
    "reasoning": SUBJECTS,
    "style": tuple(STYLE_GROUPS),
    "text": tuple(f"{length}_{part}" for part in TEXT_PARTS for length in LENGTHS),
}
# a Chinese prompt has neither type nor length
_TASKS: Mapping[Language, Sequence[Task]] = {"en": tuple(_COLUMNS), "zh": ("reasoning", "style")}
_NO_PROMPTS, _NOT_A_NUMBER = "-", "nan"


def analysis_files(
    metrics: Mapping[str, Metric], tasks: Sequence[Task], rules: Rules, language: Language, model: str
) -> dict[str, str]:
    """``Alignment Model Scores.csv`` and so on, of the ``metrics`` of :func:`benchmarks.oneig.metric.metrics`.

    "-" where a group has no prompts. Officially "nan" where one of its prompts has no score; the script stops at such
    a text prompt, so that there is no table of texts then.
    """
    files = {}
    for task in _TASKS[language]:
        if task not in tasks:
            continue
        found = {column: metrics.get(metric_name(task, column)) for column in _COLUMNS[task]}
        stops = any(metric and metric.value is None for metric in found.values())
        if task == "text" and rules == "official" and stops:
            continue
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["Model", *found])
        writer.writerow([model, *(_shown(metric, task, rules) for metric in found.values())])
        files[f"{task.capitalize()} Model Scores.csv"] = text.getvalue()
    return files


def _shown(metric: Metric | None, task: Task, rules: Rules) -> str:
    if metric and metric.value is not None:
        return f"{metric.value:.3f}"
    # of styles without a prompt the script reads empty cells
    return _NOT_A_NUMBER if rules == "official" and (metric or task == "style") else _NO_PROMPTS
