"""The groups by which the official ``fine_grained_analysis.py`` breaks scores down.

Officially a group has no value when one of its prompts is listed without a score, and the script stops in the text task
then. Corrected, such prompts are left out. A group none of whose prompts is in the run is left out under both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.oneig import text_metric
from benchmarks.oneig.prompt_scores import CLASSES, mean
from benchmarks.oneig.rows import Row, TextRow, mean_metric, text_scale
from benchmarks.oneig.scored import Language, Prompt
from imageevalkit.benchmark.contract import Rules
from imageevalkit.cell.results import Metric

STYLE_GROUPS: Mapping[str, tuple[str, ...]] = {
    "traditional": (
        *("abstract_expressionism", "art_nouveau", "baroque", "chinese_ink_painting", "cubism", "fauvism"),
        *("impressionism", "line_art", "minimalism", "pointillism", "pop_art", "rococo", "ukiyo-e"),
    ),
    "media": (
        *("clay", "crayon", "graffiti", "lego", "comic", "pencil_sketch", "stone_sculpture", "watercolor"),
    ),
    "anime": ("celluloid", "chibi", "cyberpunk", "ghibli", "impasto", "pixar", "pixel_art", "3d_rendering"),
}
STYLES = tuple(style for styles in STYLE_GROUPS.values() for style in styles)
"""All 29, in the official order."""

TEXT_PARTS = ("ED", "CR", "WAC")
TYPES = ("NP", "T, P")
LENGTHS = ("short", "middle", "long")
SUBJECTS = (
    *("geography", "computer science", "biology", "mathematics", "physics", "chemistry", "common sense"),
)


def by_class(rows: Sequence[Row]) -> dict[str, Metric]:
    """Diversity of each class of prompts: no part of the script, and always of the prompts that have a score."""
    there = {row.prompt.class_item for row in rows}
    return {
        name: mean_metric([row.score for row in rows if row.prompt.class_item == name])
        for name in CLASSES
        if name in there
    }


def by_form(rows: Sequence[Row], rules: Rules, language: Language) -> dict[str, Metric]:
    """Alignment and diversity by type and by length of the prompt, which only English ones have."""
    if language == "zh":
        return {}
    return {
        **_groups(rows, TYPES, lambda prompt: prompt.type, rules),
        **_groups(rows, LENGTHS, lambda prompt: prompt.length, rules),
    }


def by_subject(rows: Sequence[Row], rules: Rules) -> dict[str, Metric]:
    """Reasoning by the subject of the prompt."""
    return _groups(rows, SUBJECTS, lambda prompt: prompt.label, rules)


def _groups(
    rows: Sequence[Row], keys: Sequence[str], key_of: Callable[[Prompt], str], rules: Rules
) -> dict[str, Metric]:
    result = {}
    for key in keys:
        group = [row for row in rows if key_of(row.prompt) == key]
        if group:
            poisoned = rules == "official" and any(row.listed and row.score is None for row in group)
            metric = mean_metric([row.score for row in group])
            # "T,P", "computer_science"
            result[key.replace(", ", ",").replace(" ", "_")] = Metric(None, metric.n) if poisoned else metric
    return result


def by_style(rows: Sequence[Row], rules: Rules) -> dict[str, Metric]:
    """The three groups of styles, each the mean of its styles' scores, then each style."""
    there = {row.prompt.style for row in rows}
    styles = {
        style: mean_metric([row.score for row in rows if row.prompt.style == style])
        for style in STYLES
        if style in there
    }
    groups = {}
    for name, members in STYLE_GROUPS.items():
        of_group = [styles[style] for style in members if style in there]
        if of_group:
            scores = [metric.value for metric in of_group if metric.value is not None]
            poisoned = rules == "official" and len(scores) < len(members)
            groups[name] = Metric(None if poisoned else mean(scores), sum(metric.n for metric in of_group))
    return groups | styles


def text_by_length(rows: Sequence[TextRow], rules: Rules, language: Language) -> dict[str, Metric]:
    """ED, CR and WAC by length of the prompt: means over prompts, in WAC too. English only."""
    if language == "zh":
        return {}
    poisoned = rules == "official" and not all(row.compared for row in rows)
    result = {}
    for position, part in enumerate(TEXT_PARTS):
        for length in LENGTHS:
            group = [text_metric.of_prompt(row.compared) for row in rows if row.prompt.length == length]
            if group:
                scale = text_scale(part, language)
                metric = mean_metric([scores[position] if scores else None for scores in group], scale)
                result[f"{length}_{part}"] = Metric(None, metric.n, scale=scale) if poisoned else metric
    return result
