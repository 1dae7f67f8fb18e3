"""The score of each prompt of OneIG-Bench in each task: the mean over those of its images that can be scored."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.oneig import alignment, text_metric
from benchmarks.oneig.editions import CHINESE
from benchmarks.oneig.scored import Language, Prompt, ScoredImage, ScoredPrompt, StyleSimilarities, Task
from benchmarks.oneig.text_metric import Comparison
from eval_models.encoders.embedding import distances
from imageevalkit.benchmark.contract import Rules

CLASSES = tuple(CHINESE.sizes)
"""The classes of prompts in the official order; English has no multilingualism."""


class PairDistance(NamedTuple):
    """DreamSim's distance of two of a prompt's images, by their places."""

    first: int
    second: int
    distance: float


def mean(values: Iterable[float]) -> float | None:
    """None without values."""
    values = list(values)
    # not sum(): from Python 3.12 on its last digit differs from the official programs'
    return functools.reduce(operator.add, values) / len(values) if values else None


def in_order(prompts: Iterable[ScoredPrompt]) -> list[ScoredPrompt]:
    """``prompts`` in the order in which the official programs go through them: on it a mean's last digit depends."""
    return sorted(prompts, key=lambda one: (CLASSES.index(one.prompt.class_item), one.prompt.id))


def scorable(scored: ScoredPrompt, task: Task, rules: Rules) -> dict[int, ScoredImage]:
    """The images that count in ``task``, by their place from 0: those that are there and of which the evaluator said
    something. The official splitter takes black ones for padding, so they only count under corrected rules."""
    return {
        place: image
        for place, image in enumerate(scored.images)
        if _is_there(image, rules) and _was_evaluated(image, scored.prompt, task)
    }


def has_failed(scored: ScoredPrompt) -> bool:
    """Whether the official grid of a prompt is black all over: of its images, none was made, or each one black."""
    return bool(scored.images) and not any(_is_there(image, "official") for image in scored.images)


def _is_there(image: ScoredImage, rules: Rules) -> bool:
    return image.path is not None and not (image.black and rules == "official")


def _was_evaluated(image: ScoredImage, prompt: Prompt, task: Task) -> bool:
    if task == "alignment":
        return image.answers is not None and prompt.questions.keys() <= image.answers.keys()
    of_task = {
        "text": image.reading,
        "reasoning": image.similarity,
        "style": image.style,
        "diversity": image.embedding,
    }
    return of_task[task] is not None


def prompt_score(scored: ScoredPrompt, task: Task, rules: Rules) -> float | None:
    """The mean over the images that count, in diversity over all pairs of them; None when there is none.

    0-1, but for cosines below 0. The text task has no score of a single prompt; see :func:`comparisons`.
    """
    if task == "diversity":
        return mean(pair.distance for pair in pair_distances(scored, rules))
    images = scorable(scored, task, rules).values()
    return mean(image_score(scored.prompt, image, task, rules) for image in images)


def image_score(prompt: Prompt, image: ScoredImage, task: Task, rules: Rules) -> float:
    """One image's score in alignment, reasoning or style; it counts in that task."""
    if task == "alignment" and image.answers is not None:
        return alignment.image_score(prompt, image.answers, rules)
    if task == "reasoning" and image.similarity is not None:
        return image.similarity.official if rules == "official" else image.similarity.exact
    if task == "style" and image.style is not None:
        return sum(style_similarities(image.style, rules)) / 2
    raise ValueError(f"no single image has a score in {task}, or this one was not evaluated")


def style_similarities(similarities: StyleSimilarities, rules: Rules) -> tuple[float, float]:
    """CSD's and SE's similarity with the nearest reference of the style, negative ones as 0."""
    se = similarities.se if rules == "official" else similarities.se_exact
    return max(0.0, *similarities.csd), max(0.0, *se)


def pair_distances(scored: ScoredPrompt, rules: Rules) -> list[PairDistance]:
    """1 - cosine, in float64, of all pairs of the images that count; empty when there are fewer than two."""
    images = scorable(scored, "diversity", rules)
    if len(images) < 2:
        return []
    found = distances([image.embedding for image in images.values() if image.embedding is not None])
    pairs = itertools.combinations(enumerate(images), 2)
    return [PairDistance(i, j, found[row][column]) for (row, i), (column, j) in pairs]


def comparisons(scored: ScoredPrompt, rules: Rules, language: Language) -> list[Comparison]:
    """The text task: what was read in each image that counts, against the expected text."""
    images = scorable(scored, "text", rules).values()
    readings = [image.reading for image in images if image.reading is not None]
    return text_metric.compare_all(scored.prompt.expected_text, readings, rules, language)


def comparisons_of_program(
    prompts: Sequence[ScoredPrompt], language: Language
) -> list[list[Comparison]] | None:
    """The text task as the official program scores ``prompts``; None where it stops with an error.

    Quirk T3: a prompt whose grid is black all over is scored with what was read in the images of the prompt before it;
    when that is the first, there is nothing to take.
    """
    compared = []
    readings: list[str] = []
    for one in prompts:
        images = scorable(one, "text", "official").values()
        mine = [image.reading for image in images if image.reading is not None]
        failed = has_failed(one)
        if failed and not readings:
            return None
        readings = mine or readings
        taken = readings if failed else mine
        compared.append(text_metric.compare_all(one.prompt.expected_text, taken, "official", language))
    return compared
