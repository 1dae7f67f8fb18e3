"""The CSV files of the official programs, as they would write them for one model (and without the time in the name).

The last digit of means that they leave to pandas (alignment, reasoning, style, total average) is that of no version.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.oneig import text
from benchmarks.oneig.data import Language, Task
from benchmarks.oneig.scores import (
    GROUPS,
    LENGTHS,
    STYLE_GROUPS,
    STYLES,
    TEXT_PARTS,
    Run,
    mean_or_none,
    value,
)
from benchmarks.oneig.text import Comparison
from imageevalkit.benchmark.contract import Rules
from imageevalkit.cell.scores import Score
from imageevalkit.metrics import mean, mean_by

# those of the analysis in the order of its script; a Chinese prompt has neither type nor length
_ANALYSED: Mapping[Language, Sequence[Task]] = {
    "en": ("alignment", "diversity", "reasoning", "style", "text"),
    "zh": ("reasoning", "style"),
}
_NO_PROMPTS, _NOT_A_NUMBER = "-", "nan"

_Cell = float | str | None
_Groups = Mapping[str, Sequence[float | None]]
"""The scores of each column; None of a prompt, or of a style, that the script finds without one."""


def score_files(run: Run) -> dict[str, str]:
    """The files by name, of what :func:`benchmarks.oneig.scores.metrics` says of the images.

    ``alignment_score_EN.csv`` has the scores of the model, ``alignment_prompt_score_EN.csv`` those of its prompts, and
    so on; ``style_style_score_EN.csv`` those of the 29 styles. Under official rules a task whose program stops with an
    error leaves none (quirks T3, T6, R1).
    """
    tables: dict[str, str] = {}
    for task in run.tasks:
        if task == "text":
            tables |= _text_tables(run)
        elif _is_written(run, task):
            tables |= _tables(run, task)
    return {f"{name}_{run.edition.mode}.csv": table for name, table in tables.items()}


def analysis_files(run: Run) -> dict[str, str]:
    """The tables of the official ``fine_grained_analysis.py``, one row for the model, numbers with 3 decimals.

    ``Alignment Model Scores.csv`` and so on, of what the official programs write. "-" where a group has no line there.
    Officially "nan" where one of its lines has no score, and the script stops at such a text, and at a task whose
    program wrote no file: there are no tables from there on.
    """
    files: dict[str, str] = {}
    for task in _ANALYSED[run.edition.language]:
        if task not in run.tasks:
            continue
        groups = _text_groups(run) if task == "text" else _groups(run, task)
        if groups is None:
            break
        row = [run.model, *(_shown(scores, run.rules) for scores in groups.values())]
        files[f"{task.capitalize()} Model Scores.csv"] = _csv([["Model", *groups], row])
    return files


def _is_written(run: Run, task: Task) -> bool:
    """Whether the program of ``task``, any but text, comes to its end."""
    return not (task == "reasoning" and run.stops_at_reasoning)


def _compared_texts(run: Run) -> list[Sequence[Comparison]]:
    """What the text program compares of each text prompt; empty where it stops (quirks T3, T6), or nothing was read."""
    compared = run.text_comparisons or []
    return compared if any(compared) else []


def _tables(run: Run, task: Task) -> dict[str, str]:
    scores = run.scores(task)
    columns: dict[str, list[float | None]] = {task: [mean(scores, value(task), interval=False).value]}
    if task == "diversity":
        columns = _means(scores, task, "class_item", run.edition.sizes) | {"total average": columns[task]}
    lines = {_line(score, task): score.values.get(task) for score in scores if score.keys["is_listed"]}
    tables = {
        f"{task}_score": _table([run.model], columns),
        f"{task}_prompt_score": _table(sorted(lines), {run.model: [lines[name] for name in sorted(lines)]}),
    }
    if task == "style":
        tables["style_style_score"] = _table([run.model], _means(scores, task, "style", STYLES))
    return tables


def _means(
    scores: Sequence[Score], task: Task, key: str, names: Iterable[str]
) -> dict[str, list[float | None]]:
    found = mean_by(scores, value(task), key, interval=False)
    return {name: [found[name].value if name in found else None] for name in names}


def _line(score: Score, task: Task) -> str:
    class_item, prompt_id = score.keys["class_item"], score.keys["id"]
    return f"{class_item}_{prompt_id}" if task in ("alignment", "diversity") else prompt_id


def _text_tables(run: Run) -> dict[str, str]:
    compared = _compared_texts(run)
    scores = text.of_model([one for of_prompt in compared for one in of_prompt])
    if not scores:
        return {}
    values = [*scores, scores.score(run.edition.language)]
    columns = {name: [one] for name, one in zip((*TEXT_PARTS, "text score"), values, strict=True)}
    of_prompts = [text.of_prompt(one) for one in compared]
    return {
        "text_score": _table([run.model], columns),
        "text_prompt_score": _table(
            [one.prompt.id for one in run.of("text")],
            {run.model: [str(list(one)) if one else None for one in of_prompts]},
        ),
    }


def _groups(run: Run, task: Task) -> _Groups | None:
    if not _is_written(run, task):
        return None
    scores = run.scores(task)
    if task == "style":
        styles = _means(scores, task, "style", STYLES)
        return {group: [styles[style][0] for style in members] for group, members in STYLE_GROUPS.items()}
    listed = [score for score in scores if score.keys["is_listed"]]
    return {
        name: [score.values.get(task) for score in listed if score.keys[key] == name]
        for key, names in GROUPS[task].items()
        for name in names
    }


def _text_groups(run: Run) -> _Groups | None:
    scores = [text.of_prompt(one) for one in _compared_texts(run)]
    if not scores or (run.rules == "official" and None in scores):
        return None
    lengths = [one.prompt.length for one in run.of("text")]
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
    whole = mean_or_none(known)
    return _NO_PROMPTS if whole is None else f"{whole:.3f}"


def _table(index: Sequence[str], columns: Mapping[str, Sequence[_Cell]]) -> str:
    """As pandas writes a frame: the index first, under an empty name, and nothing for what is missing."""
    return _csv([["", *columns], *zip(index, *columns.values(), strict=True)])


def _csv(rows: Iterable[Iterable[_Cell]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
