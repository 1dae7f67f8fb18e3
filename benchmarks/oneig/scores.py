"""The scores of OneIG-Bench for a text, an image, a prompt and a run; the official fine-grained analysis.

The rules "official" reproduce the official scores, quirks included; "corrected" fixes the quirks that
docstrings name.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from benchmarks.oneig.data import TASKS, Edition, Language, Prompt, Task
from imageevalkit.benchmark.contract import Answers, Rules, ScoredItem
from imageevalkit.common.errors import CellFailure
from imageevalkit.metrics import arithmetic_mean, mean, mean_by, only_if, points
from imageevalkit.store.results import Metric, Score

TOTAL = "oneig_total"
OFFICIAL = {name: f"{name}_official" for name in ("text", "reasoning", TOTAL)}
"""Metric names for the values that the official programs print when whole prompts failed, by our metric."""

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
"""All 29 styles, in the official order."""
TEXT_PARTS = ("ED", "CR", "WAC")
_LENGTHS = [("length", "short"), ("length", "middle"), ("length", "long")]
_FORMS = [("type", "NP"), ("type", "T, P"), *_LENGTHS]
_SUBJECTS = (
    *("geography", "computer science", "biology", "mathematics", "physics", "chemistry", "common sense"),
)
COLUMNS: Mapping[Task, Mapping[str, tuple[str, str, str]]] = {
    "alignment": {group: ("alignment", key, group) for key, group in _FORMS},
    "diversity": {group: ("diversity", key, group) for key, group in _FORMS},
    "reasoning": {subject: ("reasoning", "label", subject) for subject in _SUBJECTS},
    "text": {f"{group}_{part}": (part, key, group) for part in TEXT_PARTS for key, group in _LENGTHS},
}
"""The official fine-grained analysis, except style. Each column is (value, key, group): the mean of the value
over prompts whose key equals the group.
"""


# ---- text: compares the text read in an image with the expected text

_ACCENTED = "àâäéèêëîïôöùûüç"
_IGNORED = re.compile(rf"[^\u4e00-\u9fa5a-zA-Z0-9\s{_ACCENTED}{_ACCENTED.upper()}]")
_CHINESE = re.compile("[\u4e00-\u9fa5]")
_NOTHING: Mapping[Rules, re.Pattern[str]] = {
    # quirk T2: the prompt tells judges to answer without the full stop, so that answer counts as read text
    "official": re.compile(r"No text recognized\."),
    "corrected": re.compile(r"No text recognized\.?"),
}

LARGEST_DISTANCE: Mapping[Language, float] = {"en": 100.0, "zh": 50.0}
"""From this mean ED on, CR and WAC alone decide the text score."""

# Qwen2.5's tokenizer, on texts of more than 35 words: at most 1.9 tokens per English word (2.9 with one word
# per line), 1.2 per Chinese character.
_TOKENS_PER_UNIT: Mapping[Language, int] = {"en": 3, "zh": 2}


def text_score(ed: float, cr: float, wac: float, language: Language) -> float:
    """Returns the text score, 0-1, from the means ``ed`` (characters), ``cr`` and ``wac`` (0-1) of all
    images."""
    top = LARGEST_DISTANCE[language]
    # the official order of operations yields the same last digit
    return 1 - min(top, ed) * (1 - cr) * (1 - wac) / top


@functools.cache
def check_package(benchmark: str) -> None:
    """Raises CellFailure if rapidfuzz, which computes ED, is missing. Call it before a judge costs money."""
    if not importlib.util.find_spec("rapidfuzz"):
        raise CellFailure(
            f"{benchmark}: package rapidfuzz is missing in this environment; bring it up to date with "
            "bash utils/make_env.sh"
        )


def clean_reading(reading: str, rules: Rules) -> str:
    """Returns the judge's reading without "No text recognized." and the hallucination "addCriterion"."""
    return _NOTHING[rules].sub("", reading.replace("addCriterion", ""))


def preprocess(text: str, rules: Rules, language: Language) -> str:
    """Returns the letters, digits and Chinese characters of a text, case kept.

    Words are one space apart; a text with a Chinese character has no spaces. Quirk T5: in the Chinese edition
    some expected texts have no Chinese character, so they are compared by words. Corrected rules remove all
    spaces there.
    """
    kept = _IGNORED.sub("", text)
    return ("" if _has_characters(kept, rules, language) else " ").join(kept.split())


def preprocess_expected(raw: str, rules: Rules, language: Language) -> str:
    """Returns the expected text, ready for comparison, from the raw column of the text file.

    The column is a printed Python list. Quirk T1: from a printed line break ``\\n`` only the backslash is
    removed, and the letter joins the next word. Parsing the list would break its ``\\times`` and ``\\frac``.
    """
    return preprocess(raw if rules == "official" else raw.replace("\\n", " "), rules, language)


def compare(raw: str, reading: str, rules: Rules, language: Language) -> dict[str, Any]:
    """Compares the judge's reading with the ``raw`` expected text. Returns AISBench's fields.

    ED is the edit distance in characters. CR is 1 if ED is 0, else 0. WAC is ``match`` / ``total``, the share
    (0-1) of expected units in the reading. Units are words, or characters if the expected text has a Chinese
    character. Order is ignored and surplus units cost nothing.
    """
    from rapidfuzz.distance import Levenshtein

    cleaned, expected = clean_reading(reading, rules), preprocess_expected(raw, rules, language)
    read = preprocess(cleaned, rules, language)
    wanted, found = (Counter(_units(one, expected, rules, language)) for one in (expected, read))
    distance, match, total = Levenshtein.distance(read, expected), (wanted & found).total(), wanted.total()
    texts = {"ocr_raw": reading, "ocr_cleaned": cleaned, "ocr_preprocessed": read}
    ratios = {"CR": int(distance == 0), "WAC": match / total if total else 0.0}
    return {**texts, "ED": distance, **ratios, "match": match, "total": total}


def _units(text: str, expected: str, rules: Rules, language: Language) -> Sequence[str]:
    return text if _has_characters(expected, rules, language) else text.split()


def _has_characters(text: str, rules: Rules, language: Language) -> bool:
    return bool(_CHINESE.search(text)) or (rules == "corrected" and language == "zh")


def max_tokens(prompt: Prompt, rules: Rules, language: Language) -> int:
    """Returns the token limit of the judge when it transcribes an image of ``prompt``.

    Official rules: 256 if the raw text has more than 60 space-separated words, else 128. This limit cuts
    three English texts and, as Chinese has no spaces, six Chinese texts. Corrected rules: 3 per word or 2 per
    Chinese character, rounded up to a multiple of 128; this limit cuts no text.
    """
    raw = prompt.expected_text
    if rules == "official":
        return 256 if len(raw.split()) > 60 else 128
    expected = preprocess_expected(raw, rules, language)
    needed = len(_units(expected, expected, rules, language)) * _TOKENS_PER_UNIT[language]
    return max(1, math.ceil(needed / 128)) * 128


# ---- scores of an image, a prompt, a run


def parsed_answer(answer: str, rules: Rules) -> str:
    """Returns a judge's ``answer`` in the form that is compared with "Yes".

    Official rules change nothing. Corrected rules accept "Yes" in any case, in Chinese, with surrounding
    spaces or with trailing punctuation.
    """
    if rules == "official":
        return answer
    stripped = answer.strip()
    while stripped and unicodedata.category(stripped[-1]).startswith(("P", "Z")):
        stripped = stripped[:-1]
    return "Yes" if stripped.lower() in ("yes", "是", "是的") else stripped


def filtered(yes: Mapping[int, bool], parents: Mapping[int, Sequence[int]], rules: Rules) -> dict[int, bool]:
    """Returns, by question number, whether a yes counts: all parents of the question must be yes too.

    Quirk: official rules look at direct parents only, so a no further up the chain has no effect. Corrected
    rules follow the chain to its root. Cycles do no harm.
    """
    lost = {number for number, answer in yes.items() if not answer}
    while True:
        children = {number for number in yes if not lost.isdisjoint(parents.get(number, ()))}
        if rules == "official" or children <= lost:
            return {number: number not in lost and number not in children for number in yes}
        lost |= children


def image_score(prompt: Prompt, answers: Answers, rules: Rules, language: Language) -> Score:
    """Returns the values of an image by task (text: by part; diversity: none, as it scores pairs of images).

    The detail holds the answers by task in AISBench's fields; for alignment each question with whether it
    counts. A task without all of its answers has no value.

    Reasoning is the cosine of image and reference answer, in the official precision; corrected in float32.
    Style is the mean over two encoders of the similarity with the nearest reference, at least 0. The
    similarities are dot products: CSD in float32, SE in the official bfloat16; corrected in float32.
    """
    values, details = dict[str, float](), dict[str, Any]()
    said = {n: answers[f"alignment/{n}"].value for n in prompt.questions if f"alignment/{n}" in answers}
    if said and len(said) == len(prompt.questions):
        parsed = {n: parsed_answer(answer, rules) for n, answer in said.items()}
        yes = {n: answer == "Yes" for n, answer in parsed.items()}
        counted = filtered(yes, prompt.parents, rules)
        details["alignment"] = {
            n: ({"raw_output": said[n], "parsed_answer": parsed[n], "score": float(yes[n])}, float(counts))
            for n, counts in counted.items()
        }
        values["alignment"] = sum(counted.values()) / len(counted)
    if "text" in answers:
        details["text"] = text = compare(prompt.expected_text, answers["text"].value, rules, language)
        values |= {name: text[name] for name in (*TEXT_PARTS, "match", "total")}
    if "reasoning" in answers:
        official, exact = answers["reasoning"].value
        values["reasoning"] = float(official if rules == "official" else exact)
        details["reasoning"] = {"similarity": values["reasoning"]}
    if "style" in answers:
        csds, se_official, se_exact = answers["style"].value
        csd, se = max(0.0, *csds), max(0.0, *(se_official if rules == "official" else se_exact))
        values["style"] = (csd + se) / 2
        details["style"] = {"csd_sim": csd, "se_sim": se, "style_score": values["style"]}
    if "diversity" in answers:
        details["diversity"] = answers["diversity"].text
    return Score(values, detail=details)


def shown_score(prompt: Prompt, answers: Answers, rules: Rules, language: Language) -> Score:
    """Returns the score of an image with keys and details for users. An image without answers is black."""
    keys = {"class_item": prompt.class_item, **({"label": prompt.label} if prompt.label else {})}
    if not answers:
        return Score({}, keys, {"left out": "entirely black: padding to the official splitter"})
    score = image_score(prompt, answers, rules, language)
    questions = score.detail.get("alignment", {}).items()
    shown = {prompt.questions[n]: said["raw_output"] for n, (said, _) in questions if not said["score"]}
    if text := score.detail.get("text"):
        shown |= {"expected": prompt.expected_text, "read": text["ocr_raw"]}
    if style := score.detail.get("style"):
        shown |= {"style": prompt.style, "CSD": f"{style['csd_sim']:.4f}", "SE": f"{style['se_sim']:.4f}"}
    values = {name: value for name, value in score.values.items() if name not in ("match", "total")}
    return Score(values, keys, shown)


def is_padding(item: ScoredItem) -> bool:
    """Returns whether the image had no questions because it is black: padding to the official splitter."""
    return item.score is not None and not item.answers


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt with its ``items`` in the order of their repetition; missing images included.

    If no image of the prompt was attempted, ``items`` is empty: the official programs then have no file of
    the prompt. Otherwise their file has black cells for missing images.
    """

    prompt: Prompt
    items: Sequence[ScoredItem]
    rules: Rules
    language: Language

    @cached_property
    def images(self) -> Sequence[Score]:
        """The :func:`image_score` of each item."""
        return [image_score(self.prompt, one.answers, self.rules, self.language) for one in self.items]

    def counted(self, task: Task) -> dict[int, Any]:
        """Returns the details in ``task`` by place (from 0), for the images with all answers of the task."""
        return {place: one.detail[task] for place, one in enumerate(self.images) if task in one.detail}

    @property
    def has_failed(self) -> bool:
        """True if the official grid is entirely black: every image is missing or black."""
        return bool(self.items) and all(item.image is None or is_padding(item) for item in self.items)

    @cached_property
    def pairs(self) -> Sequence[tuple[int, int, float]]:
        """(place, place, distance) for all pairs of images that count: DreamSim's 1 - cosine, in float64."""
        from eval_models.encoders.dreamsim import distances, read_embedding  # the driver lacks its packages

        counted = self.counted("diversity")
        if len(counted) < 2:
            return []
        found = distances([read_embedding(text) for text in counted.values()])
        pairs = itertools.combinations(enumerate(counted), 2)
        return [(i, j, found[row][column]) for (row, i), (column, j) in pairs]

    @cached_property
    def score(self) -> Score:
        """The mean over the images that count, by task (0-1; cosines may be below 0) and by part of text.

        Diversity is the mean over all pairs of images. A task without counted images has no value. The points
        are the images in their order. The score carries the item id of the first image, because score files
        have no prompts.
        """
        known = [*(image.values for image in self.images), *({"diversity": pair[2]} for pair in self.pairs)]
        values = {
            name: arithmetic_mean(of_name)
            for name in (*TASKS, *TEXT_PARTS)
            if (of_name := [values[name] for values in known if name in values])
        }
        prompt = self.prompt
        keys = {
            "class_item": prompt.class_item,
            "id": prompt.id,
            "type": prompt.type,
            "length": prompt.length,
            "label": prompt.label,
            "style": prompt.style,
            "has_file": bool(self.items),
        }
        first = self.items[0].item.id if self.items else "/".join(prompt.key)
        return Score(values, keys, points=self.images).of_item(first)


class Run(NamedTuple):
    """The ``prompts`` of ``model`` in the order in which the official programs process them."""

    prompts: Sequence[ScoredPrompt]
    tasks: Sequence[Task]
    rules: Rules
    edition: Edition
    model: str

    def of(self, task: Task) -> list[ScoredPrompt]:
        """Returns the prompts that ``task`` scores."""
        return [one for one in self.prompts if task in one.prompt.tasks]

    def printed(self, task: Task) -> list[Score] | None:
        """Returns the scores that the official program of ``task`` uses, or None if that program stops.

        Text stops if no image has a reading (quirk T6). With official rules reasoning stops at an entirely
        black grid (quirk R1). Text scores such a grid with the readings of the prompt before; for the first
        prompt it stops (quirk T3).
        """
        prompts = self.of(task)
        scores = [one.score for one in prompts]
        if self.rules == "official" and task == "reasoning" and any(one.has_failed for one in prompts):
            return None
        if self.rules == "official" and task == "text":
            before = None
            for n, one in enumerate(prompts):
                if one.has_failed:
                    if not before:
                        return None
                    scores[n] = replace(one, items=before.items).score.of_item(one.score.item)
                elif one.counted(task):
                    before = one
        if task == "text" and not any(is_scored(score, task) for score in scores):
            return None
        return [score for score in scores if is_listed(score, task)]


def is_scored(score: Score, task: Task) -> bool:
    """Returns whether the prompt of ``score`` has a value in ``task``."""
    return ("ED" if task == "text" else task) in score.values


def is_listed(score: Score, task: Task) -> bool:
    """Returns whether the official program writes a line, possibly empty, for the prompt.

    Alignment and text write one per prompt, reasoning and style one per file, diversity one per score.
    """
    if task in ("alignment", "text"):
        return True
    return is_scored(score, task) if task == "diversity" else bool(score.keys["has_file"])


def value(name: str) -> Callable[[Score], float | None]:
    """Returns a function that returns the value ``name`` of a score, or None if the score lacks it."""
    return lambda score: score.values.get(name)


def metrics(run: Run) -> dict[str, Metric]:
    """Returns all metrics, in this order: each task (0-1); ``oneig_total``, the mean of all five; then the
    parts.

    With official rules the values that the official programs print (:data:`OFFICIAL`) precede the parts.
    """
    of_tasks = {task: task_metrics([one.score for one in run.of(task)], task, run) for task in run.tasks}
    result = {str(task): found[task] for task, found in of_tasks.items()}
    count = sum(bool(one.score.values) for one in run.prompts)
    result |= _total(result, TOTAL, count)
    if run.rules == "official":
        differ: list[Task] = [task for task in run.tasks if task in OFFICIAL]
        printed = {str(task): task_metrics(run.printed(task) or [], task, run)[task] for task in differ}
        result |= {OFFICIAL[task]: metric for task, metric in printed.items()}
        result |= _total(result | printed, OFFICIAL[TOTAL], count)
    for found in of_tasks.values():
        result |= found
    return result


def _total(of_tasks: Mapping[str, Metric], name: str, count: int) -> dict[str, Metric]:
    if not all(task in of_tasks for task in TASKS):
        return {}
    known = [score for task in TASKS if (score := of_tasks[task].value) is not None]
    return {name: Metric(arithmetic_mean(known) if len(known) == len(TASKS) else None, count)}


def task_metrics(scores: Sequence[Score], task: Task, run: Run) -> dict[str, Metric]:
    """Returns the metric of ``task`` (its value is None if no prompt has a score) and the parts of the
    metric.

    ED, CR and WAC are means over all images; long texts weigh more in WAC. Classes and styles follow the
    official tables, :data:`COLUMNS` and :data:`STYLE_GROUPS` the fine-grained analysis. With official rules a
    group has no value if one of its prompts is listed without a score. For text any listed prompt counts,
    because the script stops. Corrected rules ignore such prompts. Groups without prompts in the run are left
    out.
    """
    result = {str(task): mean(scores, value(task))}
    if task == "style":
        return result | _style_metrics(scores, run.rules)
    language = run.edition.language
    # beyond this top a larger ED changes no score
    tops = {"ED": LARGEST_DISTANCE[language]}
    if task == "text":
        images = points(scores)
        ed, cr = (mean(images, value(part), top=tops.get(part, 1.0)) for part in ("ED", "CR"))
        wac = mean(images, value("match"), weight=value("total"))
        whole = None if wac.value is None else text_score(ed.value or 0, cr.value or 0, wac.value, language)
        result = {task: Metric(whole, ed.n), "text/ED": ed, "text/CR": cr, "text/WAC": wac}
    if task == "diversity":
        result |= mean_by(scores, value(task), "class_item", prefix="diversity/")
    for column, (part, key, group) in COLUMNS[task].items():
        if of_group := [score for score in scores if score.keys[key] == group]:
            metric = mean(of_group, value(part), top=tops.get(part, 1.0))
            listed = [one for one in (scores if task == "text" else of_group) if is_listed(one, task)]
            whole = run.rules != "official" or all(is_scored(one, task) for one in listed)
            result[metric_of(task, column)] = only_if(whole, metric)
    return result


def metric_of(task: Task, column: str) -> str:
    """Returns the metric's name for an analysis ``column``: "alignment/T,P", "reasoning/computer_science"."""
    return f"{task}/{column.replace(', ', ',').replace(' ', '_')}"


def _style_metrics(scores: Sequence[Score], rules: Rules) -> dict[str, Metric]:
    """Returns the three style groups, each the mean of its styles' scores, then each style."""
    styles = mean_by(scores, value("style"), "style", prefix="style/", order=STYLES)
    result = {}
    for name, members in STYLE_GROUPS.items():
        of_group = [styles[f"style/{style}"] for style in members if f"style/{style}" in styles]
        if of_group:
            known = [metric.value for metric in of_group if metric.value is not None]
            lost = not known or (rules == "official" and len(known) < len(members))
            whole = None if lost else arithmetic_mean(known)
            result[f"style/{name}"] = Metric(whole, sum(metric.n for metric in of_group))
    return result | styles
