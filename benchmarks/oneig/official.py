"""The files of a run beside its result: the CSV files of the official programs, and AISBench's details of every sample.

The former are as they would write them for one model, without the time in the name. The last digit of means that they
leave to pandas (alignment, reasoning, style, total average) is that of no version.

In AISBench a sample is a grid. Here its images are files of their own: ``image_path`` is the first of ``image_paths``,
in which null is an image that is not there, ``grid`` is how they would be arranged, ``grid_idx`` a place among them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.oneig.data import QUESTION_TEXT, READING_TEXT, Language, Task
from benchmarks.oneig.scores import (
    STYLE_GROUPS,
    STYLES,
    TEXT_PARTS,
    Run,
    ScoredPrompt,
    analysed,
    counted_questions,
    headline,
    is_listed,
    is_scored,
    is_yes,
    parsed_answer,
    replies,
    style_similarities,
    text_parts,
    value,
)
from benchmarks.oneig.text import clean_reading, preprocess, preprocess_expected
from imageevalkit.benchmark.contract import Rules
from imageevalkit.cell import portable_path
from imageevalkit.cell.results import Score
from imageevalkit.grids import Grid
from imageevalkit.metrics import arithmetic_mean, groups, mean_by

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
    tables: dict[str, Iterable[Iterable[Any]]] = {}
    for task in run.tasks:
        scores = run.printed(task)
        if scores is None:
            continue
        of_name = ("class_item", "id") if task in ("alignment", "diversity") else ("id",)
        lines = {
            "_".join(score.keys[key] for key in of_name): _cell(score, task)
            for score in scores
            if is_listed(score, task)
        }
        tables[f"{task}_score"] = _of_model(run, _columns(run, task, scores))
        tables[f"{task}_prompt_score"] = [["", run.model], *sorted(lines.items())]
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
    for task in _ANALYSED[run.edition.language]:
        if task not in run.tasks:
            continue
        scores = run.printed(task)
        if scores is None:
            break
        if task == "text" and run.rules == "official" and not all(is_scored(one, task) for one in scores):
            break
        cells = {name: _mean_cell(known, run.rules) for name, known in _groups(scores, task).items()}
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


def _mean_cell(scores: Sequence[float | None], rules: Rules) -> str:
    known = [score for score in scores if score is not None]
    if rules == "official" and len(known) < len(scores):
        return "nan"
    return f"{arithmetic_mean(known):.3f}" if known else "-"


def sample_files(run: Run, prompts: Mapping[str, str]) -> dict[str, str]:
    """The text of ``oneig_<task>.json`` of each task by name; a line for each sample.

    ``accuracy`` is on a scale of 100, and null when no sample has a score. As there, samples without a score are left
    out, but for reasoning. What AISBench has not: ``image_paths``, and of each reading ``match`` and ``total``.
    ``prompts`` are the official texts that a judge is asked with.
    """
    return {f"oneig_{task}.json": _json(_task_result(run, task, prompts)) for task in run.tasks}


def _json(result: Mapping[str, Any]) -> str:
    details = "[\n" + ",\n".join(map(_dump, result["details"])) + "\n]"
    parts = [f'"{key}":{details if key == "details" else _dump(value)}' for key, value in result.items()]
    return "{" + ",\n".join(parts) + "}\n"


def _dump(value: Any) -> str:
    # a full run has 45,000 answers: no space between them
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _task_result(run: Run, task: Task, prompts: Mapping[str, str]) -> dict[str, Any]:
    listed = [one for one in run.of(task) if task == "reasoning" or is_scored(one.score, task)]
    scores, language = [one.score for one in listed], run.edition.language
    accuracy = headline(scores, task, language).value
    result: dict[str, Any] = {
        "accuracy": None if accuracy is None else 100 * accuracy,
        "details": [_sample(one, task, run, prompts) for one in listed],
    }
    if task == "text":
        result |= {part: metric.value for part, metric in text_parts(scores, language).items()}
    if task == "style":
        result["style_scores"] = {style: [] for style in STYLES} | _values(scores, task, "style")
    if task == "diversity":
        result["class_scores"] = _values(scores, task, "class_item")
    return result


def _values(scores: Sequence[Score], task: Task, key: str) -> dict[str, list[float]]:
    return {
        group: [score.values[task] for score in of_group] for group, of_group in groups(scores, key).items()
    }


def _sample(one: ScoredPrompt, task: Task, run: Run, prompts: Mapping[str, str]) -> dict[str, Any]:
    paths = [item.image and portable_path(item.image) for item in one.items]
    grid = Grid.nearest_square(len(paths)) if paths else Grid(0, 0)
    values = one.score.values
    heads = {
        "reasoning": {"subject": one.prompt.label, "model_name": run.model},
        "style": {"style_label": one.prompt.style},
    }
    return {
        "id": one.prompt.id if task != "diversity" else "_".join(one.prompt.key),
        "class_item": one.prompt.class_item,
        **heads.get(task, {}),
        **({part: values[part] for part in TEXT_PARTS} if task == "text" else {"score": values.get(task)}),
        "image_path": next(filter(None, paths), None),
        "image_paths": paths,
        "grid": f"{grid.rows}x{grid.cols}",
        "num_splits": len(one.counted(task)),
        **_details(one, task, run.rules, prompts),
    }


def _details(one: ScoredPrompt, task: Task, rules: Rules, texts: Mapping[str, str]) -> dict[str, Any]:
    prompt, images = one.prompt, one.counted(task)
    if task == "alignment":
        said = {place: replies(prompt, answers) for place, answers in images.items()}
        counted = [counted_questions(prompt, answers, rules) for answers in images.values()]
        questions = [
            {
                "question_id": number,
                "question": question,
                "judge_prompt": texts[QUESTION_TEXT].format(question=question),
                "judge_outputs": [
                    {
                        "grid_idx": place,
                        "raw_output": of_image[number],
                        "parsed_answer": parsed_answer(of_image[number], rules),
                        "score": float(is_yes(of_image[number], rules)),
                    }
                    for place, of_image in said.items()
                ],
                "dependency": list(prompt.parents.get(number, ())) or [0],
                "filtered_scores": [float(of_image[number]) for of_image in counted],
            }
            for number, question in prompt.questions.items()
        ]
        return {"judge_details": questions}
    if task == "diversity":
        pairs = [{"grid_i": i, "grid_j": j, "distance": distance} for i, j, distance in one.pairs]
        return {"pairwise_distances": pairs}
    details = []
    for place, answers in images.items():
        values = one.score.points[place].values
        detail: dict[str, Any] = {"grid_idx": place}
        if task == "text":
            reading = answers["text"].value
            cleaned = clean_reading(reading, rules)
            compared = preprocess(cleaned, rules, one.language)
            detail |= {"ocr_raw": reading, "ocr_cleaned": cleaned, "ocr_preprocessed": compared, **values}
        elif task == "reasoning":
            detail |= {"similarity": values[task]}
        else:
            csd, se = style_similarities(answers, rules)
            detail |= {"csd_sim": csd, "se_sim": se, "style_score": values[task]}
        details.append(detail)
    if task == "text":
        return {
            "expected_text": prompt.expected_text,
            "expected_text_preprocessed": preprocess_expected(prompt.expected_text, rules, one.language),
            "ocr_prompt": texts[READING_TEXT],
            "ocr_details": details,
        }
    if task == "reasoning":
        return {"gt_answer": prompt.answer, "similarity_details": details}
    return {"encoder_details": details}
