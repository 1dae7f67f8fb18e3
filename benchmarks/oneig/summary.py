"""The files of AISBench: the details of every sample (``oneig_<task>.json``), and the summary of one or several models.

    python -m benchmarks.oneig.summary --model_names "a;b" --ds_name oneig-zh

prints the summary of models that were evaluated, one column each.

In AISBench a sample is a grid. Here its images are files of their own: ``image_path`` is the first of ``image_paths``,
in which null is an image that is not there, ``grid`` is how they would be arranged, ``grid_idx`` a place among them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.oneig import text
from benchmarks.oneig.data import CHINESE, CLASSES, ENGLISH, QUESTION_TEXT, READING_TEXT, Edition, Task
from benchmarks.oneig.scores import (
    STYLES,
    TEXT_PARTS,
    TOTAL,
    Run,
    ScoredPrompt,
    counted_questions,
    image_score,
    is_yes,
    mean_or_none,
    official_name,
    parsed_answer,
    replies,
    style_similarities,
)
from imageevalkit.cell import REPO, Cell, output_root
from imageevalkit.cell.results import Metric, Result, standing
from imageevalkit.errors import Arguments, ExitStatus, UserError, run_main, show, suggest
from imageevalkit.grids import Grid
from imageevalkit.text import columns_of

_EDITIONS: Mapping[str, Edition] = {edition.name: edition for edition in (ENGLISH, CHINESE)}
_HEADER = ("dataset", "version", "metric", "mode")
_MODE = "gen"
_NONE = "-"

_Scores = dict[str, Any]
_Details = dict[str, Any]


def sample_files(run: Run, prompts: Mapping[str, str]) -> dict[str, str]:
    """The text of ``oneig_<task>.json`` of each task by name; a line for each sample.

    ``accuracy`` is on a scale of 100, and null when no sample has a score. As there, samples without a score are left
    out, but for reasoning. What AISBench has not: ``image_paths``, and of each reading ``match`` and ``total``.
    ``prompts`` are the official texts that a judge is asked with.
    """
    return {f"oneig_{task}.json": _json(_task_result(run, task, prompts)) for task in run.tasks}


def _json(result: Mapping[str, Any]) -> str:
    parts = []
    for key, value in result.items():
        shown = "[\n" + ",\n".join(map(_dump, value)) + "\n]" if key == "details" else _dump(value)
        parts.append(f'"{key}":{shown}')
    return "{" + ",\n".join(parts) + "}\n"


def _dump(value: Any) -> str:
    # a full run has 45,000 answers: no space between them
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _task_result(run: Run, task: Task, prompts: Mapping[str, str]) -> dict[str, Any]:
    listed = [one for one in run.of(task) if _is_listed(one, task)]
    details = [_sample(one, task, run, prompts) for one in listed]
    if task == "text":
        whole = text.of_model([compared for one in listed for compared in one.comparisons])
        accuracy = whole.score(run.edition.language) if whole else None
    else:
        accuracy = mean_or_none(one.scores[task] for one in listed if task in one.scores)
    result: dict[str, Any] = {"accuracy": None if accuracy is None else 100 * accuracy, "details": details}
    if task == "text":
        result |= dict(zip(TEXT_PARTS, whole or [None] * len(TEXT_PARTS), strict=True))
    if task == "style":
        result["style_scores"] = {
            style: [one.scores["style"] for one in listed if one.prompt.style == style] for style in STYLES
        }
    if task == "diversity":
        by_class = {
            name: [one.scores["diversity"] for one in listed if one.prompt.class_item == name]
            for name in CLASSES
        }
        result["class_scores"] = {name: scores for name, scores in by_class.items() if scores}
    return result


def _is_listed(one: ScoredPrompt, task: Task) -> bool:
    if task == "text":
        return bool(one.comparisons)
    return task == "reasoning" or task in one.scores


def _sample(one: ScoredPrompt, task: Task, run: Run, prompts: Mapping[str, str]) -> dict[str, Any]:
    paths = [item.image and _shown_path(item.image) for item in one.items]
    grid = Grid.nearest_square(len(paths)) if paths else Grid(0, 0)
    scores, details = _DETAILS[task](one, run, prompts)
    return {
        "id": one.prompt.id if task != "diversity" else "_".join(one.prompt.key),
        "class_item": one.prompt.class_item,
        **scores,
        "image_path": next(filter(None, paths), None),
        "image_paths": paths,
        "grid": f"{grid.rows}x{grid.cols}",
        "num_splits": len(one.counted(task)),
        **details,
    }


def _shown_path(path: Path) -> str:
    """Relative to the repository if below it, so that the folder can be copied to another machine."""
    resolved = path.resolve()
    return (resolved.relative_to(REPO) if resolved.is_relative_to(REPO) else resolved).as_posix()


def _alignment(one: ScoredPrompt, run: Run, prompts: Mapping[str, str]) -> tuple[_Scores, _Details]:
    prompt, images = one.prompt, one.counted("alignment")
    said = {place: replies(prompt, answers) for place, answers in images.items()}
    counted = [counted_questions(prompt, answers, run.rules) for answers in images.values()]
    questions = [
        {
            "question_id": number,
            "question": question,
            "judge_prompt": prompts[QUESTION_TEXT].format(question=question),
            "judge_outputs": [
                {
                    "grid_idx": place,
                    "raw_output": of_image[number],
                    "parsed_answer": parsed_answer(of_image[number], run.rules),
                    "score": float(is_yes(of_image[number], run.rules)),
                }
                for place, of_image in said.items()
            ],
            "dependency": list(prompt.parents.get(number, ())) or [0],
            "filtered_scores": [float(of_image[number]) for of_image in counted],
        }
        for number, question in prompt.questions.items()
    ]
    return {"score": one.scores["alignment"]}, {"judge_details": questions}


def _text(one: ScoredPrompt, run: Run, prompts: Mapping[str, str]) -> tuple[_Scores, _Details]:
    raw, rules, language = one.prompt.expected_text, run.rules, run.edition.language
    readings = []
    for place, reading, compared in zip(one.counted("text"), one.readings, one.comparisons, strict=True):
        cleaned = text.clean_reading(reading, rules)
        readings.append(
            {
                "grid_idx": place,
                "ocr_raw": reading,
                "ocr_cleaned": cleaned,
                "ocr_preprocessed": text.preprocess(cleaned, rules, language),
                "ED": compared.distance,
                "CR": compared.complete,
                "WAC": compared.ratio,
                "match": compared.match,
                "total": compared.total,
            }
        )
    return dict(zip(TEXT_PARTS, text.of_prompt(one.comparisons) or (), strict=True)), {
        "expected_text": raw,
        "expected_text_preprocessed": text.preprocess_expected(raw, rules, language),
        "ocr_prompt": prompts[READING_TEXT],
        "ocr_details": readings,
    }


def _reasoning(one: ScoredPrompt, run: Run, prompts: Mapping[str, str]) -> tuple[_Scores, _Details]:
    cosines = [
        {"grid_idx": place, "similarity": image_score(one.prompt, answers, "reasoning", run.rules)}
        for place, answers in one.counted("reasoning").items()
    ]
    return (
        {"subject": one.prompt.label, "model_name": run.model, "score": one.scores.get("reasoning")},
        {"gt_answer": one.prompt.answer, "similarity_details": cosines},
    )


def _style(one: ScoredPrompt, run: Run, prompts: Mapping[str, str]) -> tuple[_Scores, _Details]:
    encoders = []
    for place, answers in one.counted("style").items():
        csd, se = style_similarities(answers, run.rules)
        score = image_score(one.prompt, answers, "style", run.rules)
        encoders.append({"grid_idx": place, "csd_sim": csd, "se_sim": se, "style_score": score})
    return {"style_label": one.prompt.style, "score": one.scores["style"]}, {"encoder_details": encoders}


def _diversity(one: ScoredPrompt, run: Run, prompts: Mapping[str, str]) -> tuple[_Scores, _Details]:
    pairs = [{"grid_i": i, "grid_j": j, "distance": distance} for i, j, distance in one.pairs]
    return {"score": one.scores["diversity"]}, {"pairwise_distances": pairs}


_DETAILS: Mapping[Task, Callable[[ScoredPrompt, Run, Mapping[str, str]], tuple[_Scores, _Details]]] = {
    "alignment": _alignment,
    "text": _text,
    "reasoning": _reasoning,
    "style": _style,
    "diversity": _diversity,
}


def summary_files(
    version: str, models: Mapping[str, Mapping[str, Metric]], edition: Edition
) -> dict[str, str]:
    """``summary.csv``, ``summary.md`` and ``summary.txt`` of the metrics of ``models``, by name."""
    table = summary_table(version, models, edition)
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(table)
    return {"summary.csv": file.getvalue(), "summary.md": _markdown(table), "summary.txt": _aligned(table)}


def summary_table(
    version: str, models: Mapping[str, Mapping[str, Metric]], edition: Edition
) -> list[list[str]]:
    """The header and a row for each metric of ``edition``, with 2 decimals; "accuracy" is on a scale of 100.

    "-" where a model has no value. A part of another row has no version.
    """
    rows = [  # as AISBench calls it, and our name of the metric
        ("oneig_alignment", version, "accuracy", "alignment"),
        ("oneig_text", version, "accuracy", "text"),
        *(("oneig_text", version, part, f"text/{part}") for part in TEXT_PARTS),
        ("oneig_reasoning", version, "accuracy", "reasoning"),
        ("oneig_style", version, "accuracy", "style"),
        ("oneig_diversity", version, "accuracy", "diversity"),
        ("oneig_total", _NONE, "accuracy", TOTAL),
        *((f"oneig_diversity_{name}", _NONE, "accuracy", f"diversity/{name}") for name in edition.sizes),
    ]
    table = [[*_HEADER, *models]]
    for dataset, shown_version, shown, name in rows:
        factor = 100.0 if shown == "accuracy" else 1.0
        values = [_shown(metrics.get(name), factor) for metrics in models.values()]
        table.append([dataset, shown_version, shown, _MODE, *values])
    return table


def _shown(metric: Metric | None, factor: float) -> str:
    return _NONE if metric is None or metric.value is None else f"{factor * metric.value:.2f}"


def _markdown(table: Sequence[Sequence[str]]) -> str:
    header, *rows = ([cell.replace("|", "\\|") for cell in row] for row in table)
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _aligned(table: Sequence[Sequence[str]]) -> str:
    """The columns of ``table`` two spaces apart."""
    widths = [max(map(columns_of, column)) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - columns_of(cell)) for cell, width in zip(row, widths, strict=True))
        for row in table
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def main() -> ExitStatus:
    """Print the summary of models that were evaluated.

    Raises:
        UserError: a model has no result, or the models have none that were measured alike.
    """
    parser = Arguments("python -m benchmarks.oneig.summary", "The summary of several models, side by side.")
    parser.add_argument("--model_names", required=True, help='names, as in eval.sh: "a;b"')
    parser.add_argument("--ds_name", default=ENGLISH.name, help=f"{' or '.join(_EDITIONS)}")
    args = parser.parse_args()
    if args.ds_name not in _EDITIONS:
        raise UserError(
            f"--ds_name {args.ds_name} is no OneIG benchmark{suggest(args.ds_name, _EDITIONS)}; "
            f"there are {', '.join(_EDITIONS)}"
        )
    models = list(dict.fromkeys(name.strip() for name in args.model_names.split(";") if name.strip()))
    if not models:
        raise UserError('--model_names is empty; name models that were evaluated: "a;b"')
    results = _comparable([_results(model, args.ds_name) for model in models])
    first = results[0]
    columns = {result.model: _column(result) for result in results}
    show(
        _aligned(summary_table(first.benchmark_version, columns, _EDITIONS[args.ds_name])).removesuffix("\n")
    )
    limit = f", the first {first.limit} items only" if first.limit else ""
    show(f"{args.ds_name}, measured by {first.evaluator.id}{limit}")
    for result in results:
        coverage = result.coverage
        if result.withheld:
            show(f"withheld: {result.model}: {result.withheld}")
        elif not coverage.complete:
            show(
                f"{result.model}: {coverage.judged} of {coverage.expected} items, the others treated officially"
            )
    return ExitStatus.COMPLETE


def _results(model: str, benchmark: str) -> list[Result]:
    """One by each evaluator, the latest first."""
    cell = Cell(model, benchmark)
    found = standing(cell)
    if not found:
        known = [path.parent.parent.name for path in output_root().glob(f"*/{benchmark}/{cell.result.name}")]
        raise UserError(
            f"{model} has no result of {benchmark} in {cell.folder} that can be read{suggest(model, known)}; "
            f'evaluate it: bash eval.sh --model_names "{model}" --ds_names "{benchmark}"'
        )
    return found


def _comparable(of_models: Sequence[Sequence[Result]]) -> list[Result]:
    """One result of each model, all measured alike."""
    from imageevalkit.report.leaderboard import (
        board_of,
    )  # of the driver: an evaluating process has no use for it

    for one in of_models[0]:
        alike = [[other for other in results if board_of(other) == board_of(one)] for results in of_models]
        if all(alike):
            return [results[0] for results in alike]
    latest = [(results[0].model, board_of(results[0])) for results in of_models]
    (model, board), (other, its_board) = latest[0], next(pair for pair in latest if pair[1] != latest[0][1])
    what, here, there = next(
        (name, mine, its)
        for name, mine, its in zip(board._fields, board, its_board, strict=True)
        if mine != its
    )
    shown = [number or "all items" for number in (here, there)] if what == "limit" else [here, there]
    raise UserError(
        f"{model} and {other} cannot stand side by side: their {what} is {shown[0]} and {shown[1]}; evaluate both alike"
    )


def _column(result: Result) -> Mapping[str, Metric]:
    if result.withheld:
        return {}
    instead = {name: result.metrics.get(official_name(name)) for name in ("text", "reasoning", TOTAL)}
    official = {name: metric for name, metric in instead.items() if metric}
    return result.metrics | (official if result.treatment == "official" else {})


if __name__ == "__main__":
    run_main(main)
