"""The scores of OneIG-Bench: of a text, of an image, of a prompt, and of a run with the official fine-grained analysis.

Under the rules "official" they are the official ones, quirks included; "corrected" mends what the docstrings name.
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
from imageevalkit.cell.results import Metric, Score
from imageevalkit.errors import CellFailure
from imageevalkit.metrics import arithmetic_mean, mean, mean_by, only_if, points

TOTAL = "oneig_total"
OFFICIAL = {name: f"{name}_official" for name in ("text", "reasoning", TOTAL)}
"""The metrics that have what the official programs print when whole prompts failed, by the metric they stand for."""

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
"""The official fine-grained analysis but for style: each column is the mean of a value of the prompts with a key."""


# ---- text: how a reading of an image compares with what was asked for

_ACCENTED = "àâäéèêëîïôöùûüç"
_IGNORED = re.compile(rf"[^\u4e00-\u9fa5a-zA-Z0-9\s{_ACCENTED}{_ACCENTED.upper()}]")
_CHINESE = re.compile("[\u4e00-\u9fa5]")
_NOTHING: Mapping[Rules, re.Pattern[str]] = {
    # quirk T2: judges are told to answer without the full stop, and that answer counts as read text
    "official": re.compile(r"No text recognized\."),
    "corrected": re.compile(r"No text recognized\.?"),
}

LARGEST_DISTANCE: Mapping[Language, float] = {"en": 100.0, "zh": 50.0}
"""The mean ED at and above which neither completed nor matching text is worth anything."""

# Qwen2.5's tokenizer needs at most 1.9 tokens a word on the English texts of more than 35 words and 2.9 with every
# word on a line of its own, and 1.2 a character on the Chinese ones of more than 35
_TOKENS_PER_UNIT: Mapping[Language, int] = {"en": 3, "zh": 2}


def text_score(ed: float, cr: float, wac: float, language: Language) -> float:
    """0-1, of the means over all images: ``ed`` in characters (lower is better), ``cr`` and ``wac`` 0-1."""
    top = LARGEST_DISTANCE[language]
    # in the official order of operations, for the same last digit
    return 1 - min(top, ed) * (1 - cr) * (1 - wac) / top


@functools.cache
def check_package(benchmark: str) -> None:
    """Before a reading is paid for. Raises CellFailure: rapidfuzz, which compares them, is not there."""
    if not importlib.util.find_spec("rapidfuzz"):
        raise CellFailure(
            f"{benchmark}: package rapidfuzz is missing in this environment; bring it up to date with "
            "bash utils/make_env.sh"
        )


def clean_reading(reading: str, rules: Rules) -> str:
    """What the judge read, without its "nothing here" sentence and a word it is known to make up."""
    return _NOTHING[rules].sub("", reading.replace("addCriterion", ""))


def preprocess(text: str, rules: Rules, language: Language) -> str:
    """What is compared of a text: letters, digits and Chinese characters, case kept.

    Words are one space apart; a text with a Chinese character has no spaces. Quirk T5: in Chinese, some expected texts
    have no Chinese character, and are compared by words. Corrected: Chinese texts never have spaces.
    """
    kept = _IGNORED.sub("", text)
    return ("" if _has_characters(kept, rules, language) else " ").join(kept.split())


def preprocess_expected(raw: str, rules: Rules, language: Language) -> str:
    """The expected text as it is compared, of the raw column of the text file.

    That column is a Python list as it is printed. Quirk T1: of a printed line break ``\\n`` only the backslash
    vanishes, and the letter is glued to the text. Reading the list back would break its ``\\times`` and ``\\frac``.
    """
    return preprocess(raw if rules == "official" else raw.replace("\\n", " "), rules, language)


def compare(raw: str, reading: str, rules: Rules, language: Language) -> dict[str, Any]:
    """What the judge read against the ``raw`` expected text, in AISBench's fields.

    ED is the edit distance in characters, CR 1 when it is 0 (else 0), and WAC the share, 0-1, of the expected units
    that were read: ``match`` of ``total``. Units are words, or characters where the expected text has a Chinese one;
    order is ignored and surplus units cost nothing.
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
    """How many tokens the judge may need to write down what it reads in an image of ``prompt``.

    Official: 256 if the raw text has more than 60 words by its spaces, else 128; that cuts three English texts and, as
    Chinese has no spaces, six Chinese ones. Corrected: 3 for a word or 2 for a Chinese character, rounded up to a
    multiple of 128, which cuts none.
    """
    raw = prompt.expected_text
    if rules == "official":
        return 256 if len(raw.split()) > 60 else 128
    expected = preprocess_expected(raw, rules, language)
    needed = len(_units(expected, expected, rules, language)) * _TOKENS_PER_UNIT[language]
    return max(1, math.ceil(needed / 128)) * 128


# ---- an image, a prompt, a run


def parsed_answer(answer: str, rules: Rules) -> str:
    """A judge's ``answer`` as it is compared with "Yes".

    Official: as it came. Corrected: "Yes" in any case, with space around or punctuation behind it, or in Chinese.
    """
    if rules == "official":
        return answer
    stripped = answer.strip()
    while stripped and unicodedata.category(stripped[-1]).startswith(("P", "Z")):
        stripped = stripped[:-1]
    return "Yes" if stripped.lower() in ("yes", "是", "是的") else stripped


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


def image_score(prompt: Prompt, answers: Answers, rules: Rules, language: Language) -> Score:
    """What an image is worth, by task but for text, which has its parts; diversity is one of pairs. Its detail is what
    was said of it, by task, in AISBench's fields; of alignment that of each question, and whether it counts.

    Nothing of a task without all of its answers. Reasoning is the cosine of image and reference answer: in the official
    precision, corrected in float32. Style is the mean similarity with the nearest reference, negative ones as 0: dot
    products, of the CSD encoder in float32, of the SE encoder in the official bfloat16, corrected in float32.
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
    """The score of an image with the keys and the detail that are for reading; without answers it is black."""
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
    """Whether there is an image about which nothing was asked: a black one, to the official splitter."""
    return item.score is not None and not item.answers


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt with its ``items``, as many as were to be made, in the order of their repetition; without any where
    nobody has tried to make one. Officially there is no file of such a prompt, else one with black cells."""

    prompt: Prompt
    items: Sequence[ScoredItem]
    rules: Rules
    language: Language

    @cached_property
    def images(self) -> Sequence[Score]:
        """The :func:`image_score` of its items."""
        return [image_score(self.prompt, one.answers, self.rules, self.language) for one in self.items]

    def counted(self, task: Task) -> dict[int, Any]:
        """The details in ``task`` of the images that count, those of which all was said, by their place from 0."""
        return {place: one.detail[task] for place, one in enumerate(self.images) if task in one.detail}

    @property
    def has_failed(self) -> bool:
        """Whether the official grid is black all over: of the images none was made, or each one black."""
        return bool(self.items) and all(item.image is None or is_padding(item) for item in self.items)

    @cached_property
    def pairs(self) -> Sequence[tuple[int, int, float]]:
        """DreamSim's distance, 1 - cosine in float64, of all pairs of images that count, behind their places."""
        from eval_models.encoders.dreamsim import distances, read_embedding  # the driver lacks its packages

        counted = self.counted("diversity")
        if len(counted) < 2:
            return []
        found = distances([read_embedding(text) for text in counted.values()])
        pairs = itertools.combinations(enumerate(counted), 2)
        return [(i, j, found[row][column]) for (row, i), (column, j) in pairs]

    @cached_property
    def score(self) -> Score:
        """The mean over the images that count, by task (0-1, but for cosines below 0) and by part of text.

        In diversity it is over all pairs of them; nothing where none count. Its points are the images, in their order.
        It stands as that of the first image: files of scores have no lines of prompts.
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
    """The ``prompts`` of a run of ``model``, in the order in which the official programs go through them."""

    prompts: Sequence[ScoredPrompt]
    tasks: Sequence[Task]
    rules: Rules
    edition: Edition
    model: str

    def of(self, task: Task) -> list[ScoredPrompt]:
        """The prompts that ``task`` looks at."""
        return [one for one in self.prompts if task in one.prompt.tasks]

    def printed(self, task: Task) -> list[Score] | None:
        """The scores that the official program of ``task`` works with, of the prompts it lists; None where it stops.

        It stops when nothing was read in any image (quirk T6). Officially reasoning stops at a grid that is black all
        over (quirk R1). Text scores it with what was read for the prompt before; at the first one it stops (quirk T3).
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
    """Whether a prompt has a score in ``task``."""
    return ("ED" if task == "text" else task) in score.values


def is_listed(score: Score, task: Task) -> bool:
    """Whether the official program has a line for a prompt, if an empty one: in alignment and text it goes through the
    prompts, in reasoning and style through the files, and in diversity it writes one only where there is a score."""
    if task in ("alignment", "text"):
        return True
    return is_scored(score, task) if task == "diversity" else bool(score.keys["has_file"])


def value(name: str) -> Callable[[Score], float | None]:
    """The value called ``name`` of the scores that have one."""
    return lambda score: score.values.get(name)


def metrics(run: Run) -> dict[str, Metric]:
    """First each task, 0-1, and of all five ``oneig_total``, their mean; under official rules then the same of what the
    official programs work with (:data:`OFFICIAL`); then the parts of each task."""
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
    """The metric of ``task``, None where no prompt has a score, and its parts.

    ED, CR and WAC are over all images; long texts weigh more in WAC. Classes and styles are as in the official tables,
    the :data:`COLUMNS` and :data:`STYLE_GROUPS` as in the fine-grained analysis: officially one has no value when one
    of its prompts is listed without a score (the script stops at such a text). Corrected, such prompts are left out.
    Left out under both is a group none of whose prompts is in the run.
    """
    result = {str(task): mean(scores, value(task))}
    if task == "style":
        return result | _style_metrics(scores, run.rules)
    language = run.edition.language
    # beyond its top a larger ED changes no score
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
    """The metric in a ``column`` of the analysis: "alignment/T,P", "reasoning/computer_science"."""
    return f"{task}/{column.replace(', ', ',').replace(' ', '_')}"


def _style_metrics(scores: Sequence[Score], rules: Rules) -> dict[str, Metric]:
    """The three groups of styles, each the mean of its styles' scores, then each style."""
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
