"""Writes the CSV files of the official programs, AISBench's details of every sample, and AISBench's summary.

    python -m benchmarks.oneig.summary --model_names "a;b" --ds_name oneig-zh

prints the summary of evaluated models, one column per model.

The official programs compute some means (alignment, reasoning, style, total average) with pandas; the last
digit of these means may differ from every pandas version. In AISBench a sample is a grid; here its images are
single files. ``image_paths`` lists them (null: missing), and ``image_path`` is the first one. ``grid`` is the
layout that they would have, and ``grid_idx`` is an index into them.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.oneig.data import (
    CHINESE,
    ENGLISH,
    QUESTION_TEXT,
    READING_TEXT,
    TASKS,
    Edition,
    Language,
    Task,
)
from benchmarks.oneig.scores import (
    COLUMNS,
    OFFICIAL,
    STYLE_GROUPS,
    STYLES,
    TEXT_PARTS,
    TOTAL,
    Run,
    ScoredPrompt,
    is_scored,
    metric_of,
    preprocess_expected,
    task_metrics,
)
from imageevalkit.common.errors import Arguments, ExitStatus, UserError, run_main, show, suggest
from imageevalkit.common.grids import Grid
from imageevalkit.common.text import csv_text
from imageevalkit.metrics import groups
from imageevalkit.store.cell import Cell, output_root, portable_path, split_names
from imageevalkit.store.results import Metric, Result, Score, standing

# the tasks of the official analysis in its order; a Chinese prompt has neither type nor length
_ANALYSED: Mapping[Language, Sequence[Task]] = {
    "en": ("alignment", "diversity", "reasoning", "style", "text"),
    "zh": ("reasoning", "style"),
}


def score_files(run: Run) -> dict[str, str]:
    """Returns the official score files by name. A task whose official program stops has no files.

    For each task, ``alignment_score_EN.csv`` has the model's scores and ``alignment_prompt_score_EN.csv`` the
    scores of the prompts. ``style_style_score_EN.csv`` has the scores of the 29 styles.
    """
    parts = {part: f"text/{part}" for part in TEXT_PARTS}
    classes = {name: f"diversity/{name}" for name in run.edition.sizes}
    # the metric in each column; other tasks have a single column
    of_columns = {
        "text": parts | {"text score": "text"},
        "diversity": classes | {"total average": "diversity"},
    }
    tables: dict[str, list[list[Any]]] = {}
    for task in run.tasks:
        scores = run.printed(task)
        if scores is None:
            continue
        found = task_metrics(scores, task, run)
        of_name = ("class_item", "id") if task in ("alignment", "diversity") else ("id",)
        lines = {"_".join(score.keys[key] for key in of_name): _cell(score, task) for score in scores}
        tables[f"{task}_score"] = _of_model(run, found, of_columns.get(task, {task: task}))
        tables[f"{task}_prompt_score"] = [["", run.model], *map(list, sorted(lines.items()))]
        if task == "style":
            tables["style_style_score"] = _of_model(run, found, {style: f"style/{style}" for style in STYLES})
    return {f"{name}_{run.edition.mode}.csv": csv_text(rows) for name, rows in tables.items()}


def analysis_files(run: Run) -> dict[str, str]:
    """Returns ``Alignment Model Scores.csv`` and so on: the tables of the official
    ``fine_grained_analysis.py``.

    "-" marks a group without lines in the score files. With official rules "nan" marks a group with a line
    without score. The script stops at such a line in text, and at a task without score file; later tasks then
    have no table.
    """
    files: dict[str, str] = {}
    official = run.rules == "official"
    lost = "nan" if official else "-"
    for task in _ANALYSED[run.edition.language]:
        if task not in run.tasks:
            continue
        scores = run.printed(task)
        if scores is None or (
            task == "text" and official and not all(is_scored(one, task) for one in scores)
        ):
            break
        found = task_metrics(scores, task, run)
        row = {"Model": run.model}
        for column in STYLE_GROUPS if task == "style" else COLUMNS[task]:
            metric = found.get(metric_of(task, column))
            known = metric.value if metric else None
            # the file that the script reads has a column for every style, even for a style without prompts
            absent = lost if metric or task == "style" else "-"
            row[column] = absent if known is None else f"{known:.3f}"
        files[f"{task.capitalize()} Model Scores.csv"] = csv_text([list(row), list(row.values())])
    return files


def _of_model(run: Run, found: Mapping[str, Metric], columns: Mapping[str, str]) -> list[list[Any]]:
    values = [found[name].value if name in found else None for name in columns.values()]
    return [["", *columns], [run.model, *values]]


def _cell(score: Score, task: Task) -> float | str | None:
    if task == "text" and is_scored(score, task):
        return str([score.values[part] for part in TEXT_PARTS])
    return score.values.get(task)


def sample_files(run: Run, prompts: Mapping[str, str]) -> dict[str, str]:
    """Returns AISBench's ``oneig_<task>.json`` of each task, with a line per sample.

    ``accuracy`` has a scale of 100 and is null if no sample has a score. Samples without a score are left
    out, except in reasoning, as in AISBench. The fields ``image_paths`` and, for each reading, ``match`` and
    ``total`` are additions. ``prompts`` holds the official judge prompts.
    """
    return {f"oneig_{task}.json": _task_file(run, task, prompts) for task in run.tasks}


def _task_file(run: Run, task: Task, prompts: Mapping[str, str]) -> str:
    listed = [one for one in run.of(task) if task == "reasoning" or is_scored(one.score, task)]
    scores = [one.score for one in listed]
    found = task_metrics(scores, task, run)
    accuracy = found[task].value
    samples = ",\n".join(_json(_sample(one, task, run, prompts)) for one in listed)
    parts = {
        "accuracy": _json(None if accuracy is None else 100 * accuracy),
        "details": f"[\n{samples}\n]",
    }
    if task == "text":
        parts |= {part: _json(found[f"text/{part}"].value) for part in TEXT_PARTS}
    if task in ("style", "diversity"):
        of_groups = groups(scores, "style" if task == "style" else "class_item")
        names = STYLES if task == "style" else of_groups
        values = {name: [score.values[task] for score in of_groups.get(name, ())] for name in names}
        parts["style_scores" if task == "style" else "class_scores"] = _json(values)
    return "{" + ",\n".join(f'"{name}":{text}' for name, text in parts.items()) + "}\n"


def _json(value: Any) -> str:
    # a full run has 45,000 answers: spaces would enlarge the files
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


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
        **_details(one, task, run, prompts),
    }


def _details(one: ScoredPrompt, task: Task, run: Run, texts: Mapping[str, str]) -> dict[str, Any]:
    prompt, images = one.prompt, one.counted(task)
    if task == "alignment":
        questions = [
            {
                "question_id": number,
                "question": question,
                "judge_prompt": texts[QUESTION_TEXT].format(question=question),
                "judge_outputs": [
                    {"grid_idx": place, **answers[number][0]} for place, answers in images.items()
                ],
                "dependency": list(prompt.parents.get(number, ())) or [0],
                "filtered_scores": [answers[number][1] for answers in images.values()],
            }
            for number, question in prompt.questions.items()
        ]
        return {"judge_details": questions}
    if task == "diversity":
        pairs = [{"grid_i": i, "grid_j": j, "distance": distance} for i, j, distance in one.pairs]
        return {"pairwise_distances": pairs}
    details = [{"grid_idx": place, **of_image} for place, of_image in images.items()]
    if task == "reasoning":
        return {"gt_answer": prompt.answer, "similarity_details": details}
    if task == "style":
        return {"encoder_details": details}
    compared = preprocess_expected(prompt.expected_text, run.rules, run.edition.language)
    return {
        "expected_text": prompt.expected_text,
        "expected_text_preprocessed": compared,
        "ocr_prompt": texts[READING_TEXT],
        "ocr_details": details,
    }


# ---- the summary of one or several models


def summary_files(
    version: str, models: Mapping[str, Mapping[str, Metric]], edition: Edition
) -> dict[str, str]:
    """Returns ``summary.csv``, ``summary.md`` and ``summary.txt``; ``models`` maps model names to metrics."""
    table = summary_table(version, models, edition)
    return {"summary.csv": csv_text(table), "summary.md": _markdown(table), "summary.txt": _aligned(table)}


def summary_table(
    version: str, models: Mapping[str, Mapping[str, Metric]], edition: Edition
) -> list[list[str]]:
    """Returns the header and a row per metric of ``edition``, with 2 decimals; "accuracy" has a scale of 100.

    "-" marks a missing value. The total and the classes of diversity have "-" as version.
    """
    rows = list[tuple[str, str, str, str]]()  # dataset, version and metric in AISBench, our metric
    for task in TASKS:
        rows.append((f"oneig_{task}", version, "accuracy", task))
        if task == "text":
            rows += [("oneig_text", version, part, f"text/{part}") for part in TEXT_PARTS]
    rows.append(("oneig_total", "-", "accuracy", TOTAL))
    rows += [(f"oneig_diversity_{name}", "-", "accuracy", f"diversity/{name}") for name in edition.sizes]
    table = [["dataset", "version", "metric", "mode", *models]]
    for dataset, its_version, shown, name in rows:
        factor = 100.0 if shown == "accuracy" else 1.0
        found = [metrics[name].value if name in metrics else None for metrics in models.values()]
        values = ["-" if value is None else f"{factor * value:.2f}" for value in found]
        table.append([dataset, its_version, shown, "gen", *values])
    return table


def _markdown(table: Sequence[Sequence[str]]) -> str:
    header, *rows = ([cell.replace("|", "\\|") for cell in row] for row in table)
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, ["---"] * len(header), *rows])


def _width(text: str) -> int:
    """Returns the number of columns of ``text`` in a terminal; the environment of a benchmark has no rich."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        for row in table
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def main() -> ExitStatus:
    """Prints the summary. Raises UserError if a model has no result, or if no evaluation is common to all
    models."""
    # imported here: an evaluating process does not need these modules
    from imageevalkit.report.leaderboard import board_of, coverage_text

    editions = {edition.name: edition for edition in (ENGLISH, CHINESE)}
    parser = Arguments("python -m benchmarks.oneig.summary", "The summary of several models, side by side.")
    parser.add_argument("--model_names", required=True, help='names, as in eval.sh: "a;b"')
    parser.add_argument("--ds_name", default=ENGLISH.name, choices=editions)
    args = parser.parse_args()
    of_models: dict[str, dict[str, Result]] = {}
    for model in split_names(args.model_names):
        cell = Cell(model, args.ds_name)
        of_models[model] = {}
        # keyed by evaluation, latest result first; setdefault keeps the latest of several equal evaluations
        for result in standing(cell):
            of_models[model].setdefault(board_of(result).label("", with_version=True), result)
        if not of_models[model]:
            known = [path.parent.parent.name for path in output_root().glob(f"*/{args.ds_name}/result.json")]
            raise UserError(
                f"{model} has no result of {args.ds_name} in {cell.folder} that can be read{suggest(model, known)}; "
                f'evaluate it: bash eval.sh --model_names "{model}" --ds_names "{args.ds_name}"'
            )
    if not of_models:
        raise UserError('--model_names is empty; name models that were evaluated: "a;b"')
    first, *others = of_models.values()
    alike = next((label for label in first if all(label in results for results in others)), None)
    if alike is None:
        measured = "; ".join(f"{model} is {next(iter(results))}" for model, results in of_models.items())
        raise UserError(f"the models were evaluated differently: {measured}; evaluate them alike")
    columns = {model: _column(results[alike]) for model, results in of_models.items()}
    show(_aligned(summary_table(first[alike].benchmark_version, columns, editions[args.ds_name])) + alike)
    for model, results in of_models.items():
        result = results[alike]
        if result.withheld:
            show(f"withheld: {model}: {result.withheld}")
        elif not result.coverage.complete:
            show(f"{model}: {coverage_text(result.coverage)}, the others treated officially")
    return ExitStatus.COMPLETE


def _column(result: Result) -> Mapping[str, Metric]:
    stand_in = OFFICIAL if result.treatment == "official" else {}
    printed = {name: result.metrics[other] for name, other in stand_in.items() if other in result.metrics}
    return {} if result.withheld else {**result.metrics, **printed}


if __name__ == "__main__":
    run_main(main)
