"""The scores of OneIG-Bench: of an image, of a prompt, and of a run with the official fine-grained analysis.

Under the rules "official" they are the official ones, quirks included; "corrected" mends what the docstrings name.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from benchmarks.oneig import text
from benchmarks.oneig.data import CLASSES, TASKS, Edition, Language, Prompt, Task
from benchmarks.oneig.text import Comparison
from imageevalkit.benchmark.contract import Answers, Rules, ScoredItem
from imageevalkit.cell.results import Metric
from imageevalkit.cell.scores import Score
from imageevalkit.metrics import arithmetic_mean, mean, mean_by

TOTAL = "oneig_total"

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
LENGTHS = ("short", "middle", "long")
_FORMS = {"type": ("NP", "T, P"), "length": LENGTHS}
_SUBJECTS = (
    *("geography", "computer science", "biology", "mathematics", "physics", "chemistry", "common sense"),
)
GROUPS: Mapping[Task, Mapping[str, Sequence[str]]] = {
    "alignment": _FORMS,
    "diversity": _FORMS,
    "reasoning": {"label": _SUBJECTS},
}
"""By which keys of a prompt's score the official analysis breaks a task down, and their values in its order."""
TEXT_PARTS = ("ED", "CR", "WAC")

_YES = "Yes"
_ALSO_YES = frozenset({"yes", "是", "是的"})


def parsed_answer(answer: str, rules: Rules) -> str:
    """A judge's ``answer`` as it is compared with "Yes".

    Official: as it came. Corrected: "Yes" in any case, with space around or punctuation behind it, or in Chinese.
    """
    if rules == "official":
        return answer
    stripped = answer.strip()
    while stripped and unicodedata.category(stripped[-1]).startswith(("P", "Z")):
        stripped = stripped[:-1]
    return _YES if stripped.lower() in _ALSO_YES else stripped


def is_yes(answer: str, rules: Rules) -> bool:
    """Whether ``answer`` counts as yes."""
    return parsed_answer(answer, rules) == _YES


def filtered(yes: Mapping[int, bool], parents: Mapping[int, Sequence[int]], rules: Rules) -> dict[int, bool]:
    """Which questions count: those answered yes whose parents all are.

    Quirk: officially a parent that a parent of its own takes away still counts as answered, so a chain is followed one
    level only. Corrected: to its root. A question that is its own ancestor takes nothing away by that.
    """
    lost = {number for number, answer in yes.items() if not answer}
    while True:
        children = {number for number in yes if not lost.isdisjoint(parents.get(number, ()))}
        if rules == "official" or children <= lost:
            return {number: number not in lost and number not in children for number in yes}
        lost |= children


def replies(prompt: Prompt, answers: Answers) -> dict[int, str]:
    """The judge's words to the questions of ``prompt``, as far as there are answers, by number."""
    return {n: answers[f"alignment/{n}"].value for n in prompt.questions if f"alignment/{n}" in answers}


def counted_questions(prompt: Prompt, answers: Answers, rules: Rules) -> dict[int, bool]:
    """Which questions about an image count; there is an answer to each."""
    yes = {number: is_yes(answer, rules) for number, answer in replies(prompt, answers).items()}
    return filtered(yes, prompt.parents, rules)


def style_similarities(answers: Answers, rules: Rules) -> tuple[float, float]:
    """CSD's and SE's similarity with the nearest reference of the style, negative ones as 0.

    They are dot products: of the CSD encoder in float32, of the SE encoder in the official bfloat16 and, for corrected
    rules, from the same features in float32.
    """
    csd, se, se_exact = answers["style"].value
    return max(0.0, *csd), max(0.0, *(se if rules == "official" else se_exact))


def image_score(prompt: Prompt, answers: Answers, task: Task, rules: Rules) -> float:
    """One image's score in alignment, reasoning or style, of which there are all ``answers``; no other task has one.

    Of reasoning it is the cosine of image and reference answer: in the official precision, corrected in float32.
    """
    if task == "alignment":
        counted = counted_questions(prompt, answers, rules)
        return sum(counted.values()) / len(counted)
    if task == "reasoning":
        official, exact = answers["reasoning"].value
        return float(official if rules == "official" else exact)
    return sum(style_similarities(answers, rules)) / 2


def image_values(prompt: Prompt, answers: Answers, rules: Rules, language: Language) -> dict[str, float]:
    """What one image is worth by task (``ED``, ``CR``, ``WAC`` of text), with ``answers`` to every question."""
    values: dict[str, float] = {}
    for task in prompt.tasks:
        if not _is_answered(prompt, answers, task) or task == "diversity":
            continue
        if task == "text":
            (one,) = text.compare_all(prompt.expected_text, [answers["text"].value], rules, language)
            values |= {"ED": one.distance, "CR": one.complete, "WAC": one.ratio}
        else:
            values[task] = image_score(prompt, answers, task, rules)
    return values


def is_black(item: ScoredItem) -> bool:
    """Whether there is an image about which nothing was asked: to the official splitter black is padding."""
    return item.score is not None and not item.answers


def _is_answered(prompt: Prompt, answers: Answers, task: Task) -> bool:
    if task == "alignment":
        return 0 < len(prompt.questions) == len(replies(prompt, answers))
    return task in answers


def _is_there(item: ScoredItem) -> bool:
    return item.image is not None and not is_black(item)


def mean_or_none(values: Iterable[float]) -> float | None:
    """None without values."""
    values = list(values)
    return arithmetic_mean(values) if values else None


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt with its ``items``, as many as were to be made, in the order of their repetition.

    Without items nobody has tried to make one: officially there is no file of the prompt, else one with black cells.
    """

    prompt: Prompt
    items: Sequence[ScoredItem]
    rules: Rules
    language: Language

    def counted(self, task: Task) -> dict[int, Answers]:
        """The answers about the images that count in ``task``, by their place from 0.

        That are those that are there and of which all was said. What is missing in one task only is missing there.
        """
        return {
            place: item.answers
            for place, item in enumerate(self.items)
            if _is_there(item) and _is_answered(self.prompt, item.answers, task)
        }

    @property
    def has_failed(self) -> bool:
        """Whether the official grid is black all over: of the images none was made, or each one black."""
        return bool(self.items) and not any(map(_is_there, self.items))

    def is_listed(self, task: Task) -> bool:
        """Whether the official program has a line for it, if an empty one: in alignment it goes through the prompts, in
        reasoning and style through the files, and in diversity it writes one only where there is a score."""
        if task == "alignment":
            return True
        return task in self.scores if task == "diversity" else bool(self.items)

    @cached_property
    def scores(self) -> Mapping[Task, float]:
        """By task, the mean over the images that count, in diversity over all pairs of them; nothing where none do.

        0-1, but for cosines below 0. The text task has no score of a single prompt; see :attr:`comparisons`.
        """
        found: dict[Task, float | None] = {
            task: mean_or_none(
                image_score(self.prompt, answers, task, self.rules) for answers in self.counted(task).values()
            )
            for task in self.prompt.tasks
            if task not in ("text", "diversity")
        }
        found["diversity"] = mean_or_none(distance for _, _, distance in self.pairs)
        return {task: score for task, score in found.items() if score is not None}

    @cached_property
    def pairs(self) -> Sequence[tuple[int, int, float]]:
        """DreamSim's distance, 1 - cosine in float64, of all pairs of images that count, behind their places."""
        from eval_models.encoders.dreamsim import distances, read_embedding  # the driver lacks its packages

        counted = self.counted("diversity")
        if len(counted) < 2:
            return []
        found = distances([read_embedding(answers["diversity"].text or "") for answers in counted.values()])
        pairs = itertools.combinations(enumerate(counted), 2)
        return [(i, j, found[row][column]) for (row, i), (column, j) in pairs]

    @cached_property
    def comparisons(self) -> Sequence[Comparison]:
        """The text task: what was read in each image that counts, against the expected text."""
        return self.compared(self.readings)

    @property
    def readings(self) -> list[str]:
        """What was read in each image that counts."""
        return [answers["text"].value for answers in self.counted("text").values()]

    def compared(self, readings: Sequence[str]) -> list[Comparison]:
        """``readings``, of whatever images, against the expected text."""
        return text.compare_all(self.prompt.expected_text, readings, self.rules, self.language)


def comparisons_of_program(prompts: Sequence[ScoredPrompt]) -> list[Sequence[Comparison]] | None:
    """The text task as the official program scores ``prompts``; None where it stops with an error.

    Quirk T3: a prompt whose grid is black all over is scored with what was read in the images of the prompt before it;
    when that is the first, there is nothing to take.
    """
    compared = list[Sequence[Comparison]]()
    readings: list[str] = []
    for one in prompts:
        if one.has_failed and not readings:
            return None
        compared.append(one.compared(readings) if one.has_failed else one.comparisons)
        readings = one.readings or readings
    return compared


class Run(NamedTuple):
    """The ``prompts`` of a run of ``model``, in the order in which the official programs go through them."""

    prompts: Sequence[ScoredPrompt]
    tasks: Sequence[Task]
    rules: Rules
    edition: Edition
    model: str

    def of(self, task: Task) -> list[ScoredPrompt]:
        """The prompts that ``task`` looks at."""
        return [one for one in self.prompts if task in one.prompt.tasks]

    def scores(self, task: Task) -> list[Score]:
        """The score of each prompt that ``task`` looks at, without values where it has none."""
        return [_score(one, task) for one in self.of(task)]

    @property
    def stops_at_reasoning(self) -> bool:
        """Whether the official reasoning program stops, as it does at a grid that is black all over (quirk R1)."""
        return self.rules == "official" and any(one.has_failed for one in self.of("reasoning"))

    @property
    def text_comparisons(self) -> list[Sequence[Comparison]] | None:
        """What the official text program compares of each text prompt; None where it stops (quirk T3)."""
        prompts = self.of("text")
        if self.rules == "official":
            return comparisons_of_program(prompts)
        return [one.comparisons for one in prompts]


def in_order(prompts: Iterable[ScoredPrompt]) -> list[ScoredPrompt]:
    """In the order of the official programs, on which a mean's last digit depends."""
    return sorted(prompts, key=lambda one: (CLASSES.index(one.prompt.class_item), one.prompt.id))


def _score(one: ScoredPrompt, task: Task) -> Score:
    prompt = one.prompt
    values: dict[str, float] = {}
    if task == "text":
        if parts := text.of_prompt(one.comparisons):
            values = dict(zip(TEXT_PARTS, parts, strict=True)) | {
                "images": len(one.comparisons),
                "distance": sum(compared.distance for compared in one.comparisons),
                "complete": sum(compared.complete for compared in one.comparisons),
                "match": sum(compared.match for compared in one.comparisons),
                "total": sum(compared.total for compared in one.comparisons),
            }
    elif task in one.scores:
        values = {task: one.scores[task]}
    keys = {
        "class_item": prompt.class_item,
        "id": prompt.id,
        "type": prompt.type or None,
        "length": prompt.length or None,
        "label": prompt.label,
        "style": prompt.style,
        "is_listed": one.is_listed(task),
    }
    return Score(values, keys, item="/".join(prompt.key))


def value(name: str) -> Callable[[Score], float | None]:
    """The value called ``name`` of the prompts that have one."""
    return lambda score: score.values.get(name)


def official_name(metric: str) -> str:
    """The metric that has what the official programs print when whole prompts failed."""
    return f"{metric}_official"


def metrics(run: Run) -> dict[str, Metric]:
    """Every metric of a run by name, 0-1 (ED in characters); ``n`` counts prompts with a score.

    A prompt's score is the mean over its images that can be scored (see :class:`ScoredPrompt`); a prompt without such
    images is in no mean. To the official programs the grid of a prompt whose images all failed is black; a prompt
    without items is one whose file is missing.

    * each task, and ``oneig_total``, their mean, when all five are asked for; None without a score
    * official rules only: ``text_official``, ``reasoning_official``, ``oneig_total_official``: the text program scores
      a prompt that failed with the readings of another, or stops (quirk T3), the reasoning program stops (quirk R1)
    * ``text/ED``, ``text/CR``, ``text/WAC`` over all images, ``diversity/<class>``, ``style/<style>``
    * the groups of the official ``fine_grained_analysis.py``: ``alignment/NP``, ``diversity/short``,
      ``text/short_ED``, …, ``reasoning/<subject>``, ``style/traditional``, ``style/media``, ``style/anime``

    Officially a group has no value when one of its prompts is listed without a score, and the script stops in the text
    task then. Corrected, such prompts are left out. A group none of whose prompts is in the run is left out under both.

    Intervals (95 %, of other prompts) are of means over prompts or images.
    """
    scores = {task: run.scores(task) for task in TASKS if task in run.tasks}
    language = run.edition.language
    result: dict[str, Metric] = {
        task: _text_score([one.comparisons for one in run.of("text")], language)
        if task == "text"
        else mean(of_task, value(task))
        for task, of_task in scores.items()
    }
    count = len({score.item for of_task in scores.values() for score in of_task if score.values})
    result |= _total(result, TOTAL, count)
    if run.rules == "official":
        printed = {task: result[task] for task in ("text", "reasoning") if task in result}
        if "text" in printed:
            printed["text"] = _text_score(run.text_comparisons or [], language)
        if "reasoning" in printed and run.stops_at_reasoning:
            printed["reasoning"] = Metric(None, 0)
        result |= {official_name(task): metric for task, metric in printed.items()}
        result |= _total(result | printed, official_name(TOTAL), count)
    for task, of_task in scores.items():
        result |= _details(of_task, task, run)
    return result


def _total(of_tasks: Mapping[Any, Metric], name: str, count: int) -> dict[str, Metric]:
    if not all(task in of_tasks for task in TASKS):
        return {}
    known = [score for task in TASKS if (score := of_tasks[task].value) is not None]
    return {name: Metric(mean_or_none(known) if len(known) == len(TASKS) else None, count)}


def _text_score(of_prompts: Sequence[Sequence[Comparison]], language: Language) -> Metric:
    scores = text.of_model([one for compared in of_prompts for one in compared])
    return Metric(scores.score(language) if scores else None, sum(map(bool, of_prompts)))


def _details(scores: Sequence[Score], task: Task, run: Run) -> dict[str, Metric]:
    """By the keys of the official script, and diversity by class, always of the prompts that have a score."""
    if task == "text":
        return _text_details(scores, run)
    if task == "style":
        return _style_details(scores, run.rules)
    result: dict[str, Metric] = {}
    if task == "diversity":
        result = mean_by(scores, value(task), "class_item", prefix=f"{task}/", order=CLASSES)
    for key, names in GROUPS[task].items():
        lost = {score.keys[key] for score in scores if score.keys["is_listed"] and not score.values}
        for name, metric in mean_by(scores, value(task), key, order=names).items():
            # "alignment/T,P", "reasoning/computer_science"
            shown = f"{task}/{name.replace(', ', ',').replace(' ', '_')}"
            result[shown] = _lost(metric) if run.rules == "official" and name in lost else metric
    return result


def _lost(metric: Metric) -> Metric:
    return replace(metric, value=None, interval=None)


def _style_details(scores: Sequence[Score], rules: Rules) -> dict[str, Metric]:
    """The three groups of styles, each the mean of its styles' scores, then each style."""
    styles = mean_by(scores, value("style"), "style", prefix="style/", order=STYLES)
    groups = {}
    for name, members in STYLE_GROUPS.items():
        of_group = [styles[f"style/{style}"] for style in members if f"style/{style}" in styles]
        if of_group:
            known = [metric.value for metric in of_group if metric.value is not None]
            lost = rules == "official" and len(known) < len(members)
            groups[f"style/{name}"] = Metric(
                None if lost else mean_or_none(known), sum(metric.n for metric in of_group)
            )
    return groups | styles


def _text_details(scores: Sequence[Score], run: Run) -> dict[str, Metric]:
    """ED, CR and WAC over all images; by length of the prompt they are means over prompts, in WAC too."""
    # beyond its top a larger ED changes no score
    tops = {"ED": float(text.LARGEST_DISTANCE[run.edition.language]), "CR": 1.0, "WAC": 1.0}
    sums = {"ED": ("distance", "images"), "CR": ("complete", "images"), "WAC": ("match", "total")}
    found = {
        f"text/{part}": mean(scores, value(total), weight=value(weight), top=tops[part])
        for part, (total, weight) in sums.items()
    }
    lost = run.rules == "official" and not all(score.values for score in scores)
    for part in TEXT_PARTS:
        lengths = mean_by(scores, value(part), "length", order=LENGTHS, top=tops[part])
        found |= {
            f"text/{length}_{part}": _lost(metric) if lost else metric for length, metric in lengths.items()
        }
    return found
