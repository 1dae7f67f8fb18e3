"""WiseEdit (arXiv 2512.00387): 1,220 edits that need knowledge and creativity, each in English and Chinese, with
one to five input images. A judge gives four or five grades of 1-10, which become 0-100.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from imageevalkit.assets import HubAsset, asset_list
from imageevalkit.assets.check import commit_of, snapshot_folder
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Accepts, Answer, Encoding, Picture, PixelRule, Question, ask
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.text import csv_text
from imageevalkit.metrics import arithmetic_mean, grouped, mean, mean_of_means, spread
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

GRADES = {
    "DP": "detail_preserving",
    "IF": "instruction_following",
    "VQ": "visual_quality",
    "KF": "knowledge_fidelity",
    "CF": "creative_fusion",
}
_BASIC = ("DP", "IF", "VQ", "KF")
TASKS = {
    "awareness": _BASIC,
    "interpretation": _BASIC,
    "imagination": ("DP", "IF", "VQ", "CF"),
    "complex": tuple(GRADES),
}
"""The grades of each task."""
SUBSETS = {
    "Awareness_1": "awareness",
    "Interpretation_1": "interpretation",
    "Imagination_1": "imagination",
    "WiseEdit_Complex_2": "complex",
    "Awareness_2": "awareness",
    "Imagination_2": "imagination",
    "WiseEdit_Complex_3": "complex",
    "Imagination_3": "imagination",
    "WiseEdit_Complex_4": "complex",
    "Imagination_4": "imagination",
    "Imagination_5": "imagination",
}
"""The subsets, each with its task, in an order in which the first few cover all tasks. The number at the end is
that of the input images."""
LANGUAGES = ("en", "cn")
HUB = HubAsset("123123chen/WiseEdit-Benchmark", type="dataset")
_CASES, _TRIES = 1220, 5
_PINNED = "openai:gpt-4o-2024-11-20"
_HINT = "Evaluation/evaluation_utils.py::build_message_for_metric[hint]"
_OBJECT = re.compile(r"\{[^{}]*score[^{}]*\}", re.DOTALL)
_NUMBER = r"(10|[1-9])"
_PATTERNS = [
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"['\"]?\s*score\s*['\"]?\s*[:：]\s*{_NUMBER}\b",
        rf"score\s*[:：]\s*{_NUMBER}\b",
        rf"rating\s*[:：]\s*{_NUMBER}\b",
        rf"{_NUMBER}\s*/\s*10",
        rf"{_NUMBER}\s+out\s+of\s+10",
        rf"\b{_NUMBER}\b",
    )
]
# the last pattern takes any number, so corrected rules do without it
_CORRECTED_PATTERNS = _PATTERNS[:-1]


@dataclass(frozen=True)
class WiseEditSettings(Settings):
    """``report=single`` keeps the three subsets with one input image that GenEditEvalKit reports."""

    report: Literal["full", "single"] = field(default="full", metadata={"decides": True})


class WiseEdit(Benchmark):
    """The judge sees the inputs, the result and, for some grades, a hint and reference images."""

    name, title = "wiseedit", "WiseEdit"
    version = "wiseedit-58cadba"  # prompts and rules are from beepkh/WiseEdit at this commit
    task = "edit"
    assets = (*asset_list(Path(__file__).with_name("assets.txt")), HUB)
    judge = "openai:gpt-4o"
    official_judges = (judge, _PINNED)
    item_values = ("average", *GRADES)
    needs_all_items = "each of its scores covers the edits of one language"
    tries = _TRIES
    hub_dataset = HUB.hub
    has_corrected_rules = True
    settings_class = WiseEditSettings

    settings: WiseEditSettings

    def __init__(self, settings: WiseEditSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        if not (judge or self.is_official):
            self.judge = _PINNED
        is_full = self.settings.report == "full"
        self.subsets = [name for name in SUBSETS if is_full or name.endswith("_1")]
        self.prompt_count = 2 * _CASES if is_full else 0
        self.headline: Sequence[str] = ("en/basic", "cn/basic", *(["complex"] if is_full else []))
        if self.is_official:
            self.official_headline = tuple(f"{name}_official" for name in self.headline)
        # quirk: the official program drops transparency instead of putting it on white
        on_white = () if self.is_official else ("RGBA", "LA")
        # quirk: no image has a side above 512 pixels
        self.pixels: PixelRule = PixelRule("wiseedit", turned=False, on_white=on_white, thumbnail=512)

    @property
    def data(self) -> Path:
        """The folder of the dataset in the cache of the hub."""
        return snapshot_folder(HUB, commit_of(HUB) or "main")

    def samples(self) -> Iterable[Sample]:
        rows = [(subset, row) for subset in self.subsets for row in self.read_csv(_file(subset)) if _key(row)]
        if self.settings.report == "full" and len(rows) != _CASES:
            raise CellFailure(
                f"benchmark wiseedit: its subsets hold {len(rows)} cases, not {_CASES}; run: "
                "bash eval.sh prefetch --ds_names wiseedit"
            )
        for subset, row in spread(grouped(rows, lambda one: one[0]).values()):
            names = [(row.get(f"input_{n}") or "").strip() for n in range(1, int(subset[-1]) + 1)]
            with self.content_of(_file(subset)):
                images = [self.source_image(self.data / name) for name in names if name]
                data = {
                    "subset": subset,
                    "task": SUBSETS[subset],
                    "key": _key(row),
                    "prompt": row["prompt"],
                    "hint": (row.get("hint") or "").strip(),
                    "references": references((row.get("ref") or "").strip()),
                }
                for language, column in (("en", "prompt"), ("cn", "promptcn")):
                    file = f"images/{subset}/{language}/{_key(row)}.png"
                    yield Sample(file, data=data | {"language": language}, input_list=[*images, row[column]])

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the official layout, also in a folder of several models."""
        from imageevalkit.benchmark.image_files import find_named

        place = "{subset}/{language}/{key}"
        return find_named(source, items, [place, f"{{item.model}}/{place}"])

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        data, inputs = item.data, self.sources(item)
        several = len(inputs) > 1
        labels = [f"Input image #{n}:" for n in range(1, len(inputs) + 1)] if several else ["Input image:"]
        shown = [part for pair in zip(labels, inputs, strict=False) for part in pair]
        for grade in TASKS[data["task"]]:
            kind = "multi" if several and grade != "VQ" else "single"
            end = "" if grade == "VQ" else f"_{kind}"
            text = self.prompts[f"Evaluation/prompt_{kind}.py::prompt_{GRADES[grade]}{end}"]
            if grade == "VQ":
                yield self._ask(grade, text, "Image:", image)
                continue
            # quirk: results of Chinese instructions are judged by the English one
            parts = [f"{text}\n\nEditing instruction: {data['prompt']}", *shown, "Edited image:", image]
            if grade in ("IF", "KF"):
                parts += [self.prompts[_HINT].format(hint=data["hint"])] if data["hint"] else []
                for number, name in enumerate(data["references"]):
                    where = f"reference {number} of item {item.id}"
                    parts += ["Reference image:", self._source(self.source_image(self.data / name), where)]
            yield self._ask(grade, *parts)

    def _ask(self, grade: str, *parts: str | Picture) -> Question:
        encoding = Encoding("JPEG", 90)
        shown = [one._replace(encoding=encoding) if isinstance(one, Picture) else one for one in parts]
        temperature = None if self.is_official else 0.0
        accepts: Accepts = "text" if self.is_official else "ended"
        return ask(grade, *shown, max_tokens=1000, temperature=temperature, accepts=accepts)

    def parse(self, question: Question, answer: Answer) -> int:
        """Returns the grade in a reply, 1-10. Raises Unparsed without one: the question is asked again."""
        reply = answer.text or ""
        value = grade_in(reply, _PATTERNS if self.is_official else _CORRECTED_PATTERNS)
        if value is None:
            raise Unparsed("no score of 1 to 10", reply)
        return value

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the grades on the scale 0-100, and their mean."""
        grades = {name: answers[name].value for name in TASKS[item.data["task"]]}
        values = {name: (value - 1) / 9 * 100 for name, value in grades.items()}
        keys = {key: item.data[key] for key in ("language", "task", "subset", "key")}
        texts = {name: answer.text for name, answer in answers.items()}
        return Score({"average": arithmetic_mean(values.values()), **values}, keys, texts)

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics by language, 0-100; ``n`` counts images.

        * ``en/basic``: the mean of awareness, interpretation and imagination. ``complex``: the mean of
          ``en/complex`` and ``cn/complex``. ``en/awareness``, …: the mean of the grades of a task.
          ``en/awareness/DP``, …: of one grade.
        * ``…_official`` (official rules): only cases with all grades in both languages (quirk), and means of
          grades rounded to one decimal. No value if a subset has no image: the official program then counts
          grades of 1.
        """
        found = _means(scores)
        if self.is_official:
            cases = grouped(scores, lambda score: (score.keys["subset"], score.keys["key"])).values()
            pairs = [score for case in cases if len(case) == len(LANGUAGES) for score in case]
            is_whole = {score.keys["subset"] for score in scores} == {*self.subsets}
            found |= {
                f"{name}_official": metric for name, metric in _rounded(_means(pairs), is_whole).items()
            }
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``score_<subset>.csv``: the grades of each case, 0 without a grade."""
        files = {}
        for subset, of_subset in grouped(scores.items, lambda one: one.item.data["subset"]).items():
            columns = [(grade, language) for language in ("cn", "en") for grade in GRADES]
            rows: list[list[Any]] = [["idx", *(f"{grade}_score_{language}" for grade, language in columns)]]
            for key, case in grouped(of_subset, lambda one: one.item.data["key"]).items():
                of_language: dict[str, Mapping[str, Answer]] = {
                    one.item.data["language"]: one.answers for one in case
                }
                row: list[Any] = [key]
                for grade, language in columns:
                    answer = of_language.get(language, {}).get(grade)
                    is_asked = grade in TASKS[SUBSETS[subset]]
                    row.append((answer.value if answer else 0) if is_asked else "")
                rows.append(row)
            files[f"score_{subset}.csv"] = csv_text(rows, "\r\n")
        return files


def _means(scores: Sequence[Score]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for language in LANGUAGES:
        mine = [score for score in scores if score.keys["language"] == language]
        basic = [score for score in mine if score.keys["task"] != "complex"]
        found[f"{language}/basic"] = mean_of_means(basic, "average", "task", TASKS, top=100)
        for task, of_task in grouped(mine, lambda score: score.keys["task"]).items():
            found[f"{language}/{task}"] = mean(of_task, "average", top=100)
            for grade in TASKS[task]:
                found[f"{language}/{task}/{grade}"] = mean(of_task, grade, top=100)
    hard = [score for score in scores if score.keys["task"] == "complex"]
    return {**found, "complex": mean_of_means(hard, "average", "language", LANGUAGES, top=100)}


def _rounded(means: Mapping[str, Metric], is_whole: bool) -> dict[str, Metric]:
    """Returns the metrics of tasks and above, computed from rounded means of grades as officially."""
    values: dict[str, float] = {}
    for language in LANGUAGES:
        for task, grades in TASKS.items():
            of_task = [means.get(f"{language}/{task}/{grade}") for grade in grades]
            known = [_percent(one.value, one.n) for one in of_task if one and one.value is not None]
            if len(known) == len(grades):
                values[f"{language}/{task}"] = sum(known) / len(known)
        basic = [values.get(f"{language}/{task}") for task in ("imagination", "awareness", "interpretation")]
        if None not in basic:
            values[f"{language}/basic"] = sum(one for one in basic if one is not None) / len(basic)
    if {"cn/complex", "en/complex"} <= values.keys():
        values["complex"] = (values["cn/complex"] + values["en/complex"]) / 2
    return {
        name: replace(metric, value=values.get(name) if is_whole else None, interval=None)
        for name, metric in means.items()
        if name.count("/") < 2
    }


def _percent(value: float, count: int) -> float:
    """Returns the mean of ``count`` grades on the scale 0-100, with one decimal; ``value`` is the same, exact.

    The official program scales the mean of the grades 1-10. So does this, because of ties.
    """
    total = count + round(value * count * 9 / 100)
    return round((total / count - 1) / 9 * 100, 1)


def grade_in(reply: str, patterns: Sequence[re.Pattern[str]]) -> int | None:
    """Returns the score in a reply, 1-10: that of the first JSON object, else of the first pattern; or None."""
    if found := _OBJECT.search(reply):
        try:
            value = json.loads(found[0]).get("score")
            number = None if value is None else int(value)
        except (ValueError, TypeError, OverflowError, RecursionError):
            number = None
        if number is not None:
            return number if 1 <= number <= 10 else None
    for pattern in patterns:
        if match := pattern.search(reply):
            return int(match[1])
    return None


def references(cell: str) -> list[str]:
    """Returns the paths in a cell: a JSON list, a JSON text, paths between "|" or ";", or one path."""
    try:
        value = json.loads(cell) if cell else []
    except ValueError:
        value = next((cell.split(mark) for mark in "|;" if mark in cell), [cell])
    paths = value if isinstance(value, list) else [value]
    return [str(path).strip() for path in paths if str(path).strip()]


def _file(subset: str) -> str:
    task = SUBSETS[subset]
    folder = "WiseEdit-Complex" if task == "complex" else f"WiseEdit/{task.title()}"
    return f"{folder}/{subset}/{subset}.csv"


def _key(row: Mapping[str, str]) -> str:
    return (row.get("idx") or "").strip()
