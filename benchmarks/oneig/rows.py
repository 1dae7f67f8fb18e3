"""The scores of a run's prompts, a row for each, and the metrics that are means of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.oneig.editions import looks_at
from benchmarks.oneig.prompt_scores import comparisons, mean, prompt_score
from benchmarks.oneig.scored import Language, Prompt, ScoredPrompt, Task
from benchmarks.oneig.text_metric import LARGEST_DISTANCE, Comparison
from imageevalkit.benchmark.contract import Rules
from imageevalkit.cell.results import Metric
from imageevalkit.metrics.intervals import interval


class Row(NamedTuple):
    """A prompt's score in one task. ``listed``: the official program has a line for it, if an empty one."""

    prompt: Prompt
    score: float | None
    listed: bool


class TextRow(NamedTuple):
    """What was read in a prompt's images, against its expected text."""

    prompt: Prompt
    compared: Sequence[Comparison]


def of_task(prompts: Iterable[ScoredPrompt], task: Task) -> list[ScoredPrompt]:
    """Those that ``task`` looks at."""
    return [one for one in prompts if looks_at(task, one.prompt)]


def rows(prompts: Iterable[ScoredPrompt], task: Task, rules: Rules) -> list[Row]:
    """Of any task but text."""
    scores = [(one, prompt_score(one, task, rules)) for one in of_task(prompts, task)]
    return [Row(one.prompt, score, _is_listed(one, task, score)) for one, score in scores]


def text_rows(prompts: Iterable[ScoredPrompt], rules: Rules, language: Language) -> list[TextRow]:
    """Of the text task."""
    return [TextRow(one.prompt, comparisons(one, rules, language)) for one in of_task(prompts, "text")]


def mean_metric(scores: Sequence[float | None], scale: float = 1.0) -> Metric:
    """The mean of those prompts' ``scores`` that are there."""
    known = [score for score in scores if score is not None]
    return Metric(mean(known), len(known), interval([(score, 1) for score in known], scale), scale)


def text_scale(part: str, language: Language) -> float:
    """The top of ED, CR or WAC; beyond it a larger ED changes no score."""
    return float(LARGEST_DISTANCE[language]) if part == "ED" else 1.0


def _is_listed(scored: ScoredPrompt, task: Task, score: float | None) -> bool:
    """The official programs go through the prompts in alignment, through the files in reasoning and style, and write a
    line in diversity only where there is a score."""
    if task == "alignment":
        return True
    return score is not None if task == "diversity" else bool(scored.images)
