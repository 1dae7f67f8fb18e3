"""The results with the details of every sample, in the format of AISBench (``oneig_<task>.json``).

There a sample is a grid. Here its images are files of their own: ``image_path`` is the first of ``image_paths``, in
which null is an image that is not there, ``grid`` is how they would be arranged, and ``grid_idx`` a place among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.oneig import alignment, text_metric
from benchmarks.oneig.fine_grained import STYLES
from benchmarks.oneig.prompt_scores import (
    CLASSES,
    comparisons,
    image_score,
    in_order,
    mean,
    pair_distances,
    prompt_score,
    scorable,
    style_similarities,
)
from benchmarks.oneig.rows import of_task
from benchmarks.oneig.scored import Language, ScoredPrompt, Task
from imageevalkit.benchmark.contract import Rules
from imageevalkit.cell import REPO
from imageevalkit.grids import Grid


class Templates(NamedTuple):
    """What the judge was asked: ``question`` with the field ``{question}``, ``reading`` as it is."""

    question: str
    reading: str


class _Run(NamedTuple):
    prompts: Sequence[ScoredPrompt]
    rules: Rules
    language: Language
    model: str
    templates: Templates


def sample_files(
    prompts: Sequence[ScoredPrompt],
    tasks: Sequence[Task],
    rules: Rules,
    language: Language,
    model: str,
    templates: Templates,
) -> dict[str, str]:
    """The text of ``oneig_<task>.json`` of each of ``tasks`` by name; a line for each sample.

    ``accuracy`` is on a scale of 100, and null when no sample has a score. As there, samples without a score are left
    out, but for reasoning. What AISBench has not: ``image_paths``, and of each reading ``match`` and ``total``.
    """
    run = _Run(in_order(prompts), rules, language, model, templates)
    return {f"oneig_{task}.json": _json(_RESULTS[task](run)) for task in tasks}


def _json(result: Mapping[str, Any]) -> str:
    parts = []
    for key, value in result.items():
        text = "[\n" + ",\n".join(map(_dump, value)) + "\n]" if key == "details" else _dump(value)
        parts.append(f'"{key}":{text}')
    return "{" + ",\n".join(parts) + "}\n"


def _dump(value: Any) -> str:
    # a full run has 45,000 answers: no space between them
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _percent(score: float | None) -> float | None:
    return None if score is None else 100 * score


def _sample(scored: ScoredPrompt, task: Task, rules: Rules, **scores: Any) -> dict[str, Any]:
    """What the samples of all tasks tell."""
    paths = [image.path and _shown(image.path) for image in scored.images]
    grid = Grid.nearest_square(len(paths)) if paths else Grid(0, 0)
    return {
        "id": scored.prompt.id,
        "class_item": scored.prompt.class_item,
        **scores,
        "image_path": next(filter(None, paths), None),
        "image_paths": paths,
        "grid": f"{grid.rows}x{grid.cols}",
        "num_splits": len(scorable(scored, task, rules)),
    }


def _shown(path: Path) -> str:
    """Relative to the repository if below it, so that the folder can be copied to another machine."""
    resolved = path.resolve()
    return (resolved.relative_to(REPO) if resolved.is_relative_to(REPO) else resolved).as_posix()


def _alignment(run: _Run) -> dict[str, Any]:
    details = []
    for one in of_task(run.prompts, "alignment"):
        score = prompt_score(one, "alignment", run.rules)
        if score is not None:
            details.append(
                {
                    **_sample(one, "alignment", run.rules, score=score),
                    "judge_details": _judge_details(one, run),
                }
            )
    return {"accuracy": _percent(mean(one["score"] for one in details)), "details": details}


def _judge_details(scored: ScoredPrompt, run: _Run) -> list[dict[str, Any]]:
    prompt = scored.prompt
    answers = {
        place: image.answers
        for place, image in scorable(scored, "alignment", run.rules).items()
        if image.answers is not None
    }
    counted = {}
    for place, given in answers.items():
        yes = {
            number: alignment.parsed_answer(given[number], run.rules) == alignment.YES
            for number in prompt.questions
        }
        counted[place] = alignment.filtered(yes, prompt.parents, run.rules)
    return [
        {
            "question_id": number,
            "question": question,
            "judge_prompt": run.templates.question.format(question=question),
            "judge_outputs": [
                {
                    "grid_idx": place,
                    "raw_output": given[number],
                    "parsed_answer": (parsed := alignment.parsed_answer(given[number], run.rules)),
                    "score": float(parsed == alignment.YES),
                }
                for place, given in answers.items()
            ],
            "dependency": list(prompt.parents.get(number, ())) or [0],
            "filtered_scores": [float(of_image[number]) for of_image in counted.values()],
        }
        for number, question in prompt.questions.items()
    ]


def _text(run: _Run) -> dict[str, Any]:
    details, everything = [], []
    for one in of_task(run.prompts, "text"):
        compared = comparisons(one, run.rules, run.language)
        everything += compared
        scores = text_metric.of_prompt(compared)
        if scores is None:
            continue
        raw = one.prompt.expected_text
        readings = {place: image.reading or "" for place, image in scorable(one, "text", run.rules).items()}
        details.append(
            {
                **_sample(one, "text", run.rules, ED=scores.ed, CR=scores.cr, WAC=scores.wac),
                "expected_text": raw,
                "expected_text_preprocessed": text_metric.preprocess_expected(raw, run.rules, run.language),
                "ocr_prompt": run.templates.reading,
                "ocr_details": [
                    {
                        "grid_idx": place,
                        "ocr_raw": reading,
                        "ocr_cleaned": (cleaned := text_metric.clean_reading(reading, run.rules)),
                        "ocr_preprocessed": text_metric.preprocess(cleaned, run.rules, run.language),
                        "ED": comparison.distance,
                        "CR": comparison.complete,
                        "WAC": comparison.ratio,
                        "match": comparison.match,
                        "total": comparison.total,
                    }
                    for (place, reading), comparison in zip(readings.items(), compared, strict=True)
                ],
            }
        )
    whole = text_metric.of_model(everything)
    return {
        "accuracy": _percent(whole.score(run.language)) if whole else None,
        "details": details,
        "ED": whole.ed if whole else None,
        "CR": whole.cr if whole else None,
        "WAC": whole.wac if whole else None,
    }


def _reasoning(run: _Run) -> dict[str, Any]:
    details = [
        {
            **_sample(
                one,
                "reasoning",
                run.rules,
                subject=one.prompt.label,
                model_name=run.model,
                score=prompt_score(one, "reasoning", run.rules),
            ),
            "gt_answer": one.prompt.answer,
            "similarity_details": [
                {"grid_idx": place, "similarity": image_score(one.prompt, image, "reasoning", run.rules)}
                for place, image in scorable(one, "reasoning", run.rules).items()
            ],
        }
        for one in of_task(run.prompts, "reasoning")
    ]
    scores = [one["score"] for one in details if one["score"] is not None]
    return {"accuracy": _percent(mean(scores)), "details": details}


def _style(run: _Run) -> dict[str, Any]:
    details = []
    by_style: dict[str, list[float]] = {style: [] for style in STYLES}
    for one in of_task(run.prompts, "style"):
        score = prompt_score(one, "style", run.rules)
        if score is None:
            continue
        by_style[one.prompt.style].append(score)
        details.append(
            {
                **_sample(one, "style", run.rules, style_label=one.prompt.style, score=score),
                "encoder_details": _encoder_details(one, run.rules),
            }
        )
    return {
        "accuracy": _percent(mean(one["score"] for one in details)),
        "details": details,
        "style_scores": by_style,
    }


def _encoder_details(scored: ScoredPrompt, rules: Rules) -> list[dict[str, Any]]:
    details = []
    for place, image in scorable(scored, "style", rules).items():
        if image.style is not None:
            csd, se = style_similarities(image.style, rules)
            score = image_score(scored.prompt, image, "style", rules)
            details.append({"grid_idx": place, "csd_sim": csd, "se_sim": se, "style_score": score})
    return details


def _diversity(run: _Run) -> dict[str, Any]:
    details = []
    by_class: dict[str, list[float]] = {}
    for one in run.prompts:
        pairs = pair_distances(one, run.rules)
        score = mean(pair.distance for pair in pairs)
        if score is None:
            continue
        by_class.setdefault(one.prompt.class_item, []).append(score)
        details.append(
            {
                **_sample(one, "diversity", run.rules, score=score),
                "id": f"{one.prompt.class_item}_{one.prompt.id}",
                "pairwise_distances": [
                    {"grid_i": pair.first, "grid_j": pair.second, "distance": pair.distance} for pair in pairs
                ],
            }
        )
    return {
        "accuracy": _percent(mean(one["score"] for one in details)),
        "details": details,
        "class_scores": {name: by_class[name] for name in CLASSES if name in by_class},
    }


_RESULTS: Mapping[Task, Callable[[_Run], dict[str, Any]]] = {
    "alignment": _alignment,
    "text": _text,
    "reasoning": _reasoning,
    "style": _style,
    "diversity": _diversity,
}
