"""RISEBench (arXiv 2504.02826): 360 edits that need temporal, causal, spatial or logical reasoning. A judge
grades reasoning, consistency and visual plausibility, 1-5.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from imageevalkit.assets import Asset, UrlAsset, asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, ScoredItem, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Accepts, Answer, Encoding, Picture, PixelRule, Question, ask
from imageevalkit.common.text import csv_text
from imageevalkit.metrics import grouped, mean, mean_by, only_if, spread
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

SUBTASKS = {
    "temporal": (
        *("Life Progression", "Material Progression", "Environmental Cycles", "Societal Transformation"),
    ),
    "causal": (
        *("Structural Deformation", "State Transition", "Chemical and Biological Transformation"),
        "Physics Manifestation",
    ),
    "spatial": (
        *("Component Assembly", "Object Arrangement", "Viewpoint Generation", "Structural Inference"),
        "Layout Reasoning",
    ),
    "logical": ("Pattern Prediction", "Mathematical Derivation", "Puzzle Solving"),
}
GRADES = ("consistency", "reasoning", "plausibility")
"""The grades in the order of the official calls."""
_SHORT = {"temporal": "Temp", "causal": "Causal", "spatial": "Spa", "logical": "Logic"}
_LABELS = {
    "reasoning": ("Reasoning", "Reasoning"),
    "consistency": ("ApprConsistency", "Consistency"),
    "plausibility": ("VisualPlausibility_total", "Quality"),
}
"""The names of the grades in the official table: of the mean over all edits, and over a category."""
FILES = {360: "datav2_total_w_subtask.json", 64: "data/data_total.json"}
_HUB = "https://huggingface.co/datasets/PhoenixZ/RISEBench/resolve/main"
_LICENCE = "none stated (PhoenixZ/RISEBench)"
_KEYS = (
    *("index", "category", "subtask", "reference", "reference_img", "reference_txt"),
    *("consistency_free", "reasoning_img", "reasoning_wo_ins"),
)
_TOP, _TRIES, _LONGEST_SIDE = 5, 3, 768
_OFFICIAL = [re.compile(rf"{name}\*{{0,2}}:?([\d*\s,]*)", re.I) for name in ("final score", "final scores")]
# a heading or a sentence with the score: "**Final Score (1-5):** 4", "The score is 4"
_LABELLED = re.compile(
    r"(final\s+)?scores?\b[\s*_#:=]*(?:\([^)\n]{0,20}\)[\s*_#:=]*)?(?:is\b[\s*_:]*)?(\d+(?:\.\d+)?)",
    re.I,
)


@dataclass(frozen=True)
class RiseSettings(Settings):
    """``edits=64`` is the subset of the authors' repository. ``completion=2025`` is the older rule of
    accuracy: an edit without a grade of consistency is never complete."""

    edits: Literal[360, 64] = field(default=360, metadata={"decides": True})
    completion: Literal[2026, 2025] = field(default=2026, metadata={"decides": True})


class Rise(Benchmark):
    """The judge is asked about consistency, reasoning and, except for logical edits, visual plausibility."""

    name, title, aliases = "rise", "RISEBench", ("risebench",)
    version = "rise-5f22651"  # prompts and rules are from PhoenixZ810/RISEBench at this commit
    task = "edit"
    judge = "openai:gpt-4.1-2025-04-14"
    headline, official_headline = ("accuracy",), ("accuracy_official",)
    item_values = ("accuracy", "score_official", "score_intended", *GRADES)
    hub_dataset = "PhoenixZ/RISEBench"
    has_corrected_rules = True
    settings_class = RiseSettings

    settings: RiseSettings

    def __init__(self, settings: RiseSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.prompt_count = self.settings.edits
        # the official program never asks again, and accepts any number as a grade
        self.tries, self.unbounded = (1, ("*",)) if self.is_official else (_TRIES, ())
        self.accepts: Accepts = "text" if self.is_official else "ended"
        # quirk: the official program drops transparency instead of putting it on white
        on_white = () if self.is_official else ("RGBA", "LA")
        self.pixels: PixelRule = PixelRule("rise", turned=False, on_white=on_white, thumbnail=_LONGEST_SIDE)

    @property
    def assets(self) -> Sequence[Asset]:  # type: ignore[override]
        prompts = asset_list(Path(__file__).with_name("assets.txt"))
        if self.settings.edits == 64:
            return (*prompts, *asset_list(Path(__file__).with_name("assets_64.txt")))
        folder, seen = "benchmarks/rise/data", "data/temporal_reasoning_images/1.png"
        return (
            *prompts,
            UrlAsset(f"{_HUB}/{FILES[360]}", f"{folder}/{FILES[360]}", _LICENCE),
            UrlAsset(f"{_HUB}/data.zip", folder, _LICENCE, unpack=(seen,)),
        )

    def samples(self) -> Iterable[Sample]:
        file = FILES[self.settings.edits]
        rows = self.read_json(file, self.settings.edits)
        with self.content_of(file):
            # absent keys are in the official program's table if another edit has them
            known = {
                f"some_{key}": any(key in row for row in rows)
                for key in ("consistency_free", "reasoning_wo_ins")
            }
            # the two sets may give the same name to different edits
            folder = "images" if self.settings.edits == 360 else "images_64"
            for row in spread(grouped(rows, lambda row: (row["category"], row.get("subtask"))).values()):
                image = self.source_image(self.data / "data" / row["image"])
                data = {key: row.get(key) for key in _KEYS} | {"prompt": row["instruction"]} | known
                data["category"] = row["category"].removesuffix("_reasoning")
                path = f"{folder}/{row['category']}/{row['index']}.png"
                yield Sample(path, data=data, input_list=[image, row["instruction"]])

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the official layout, also in a folder of several models."""
        from imageevalkit.benchmark.image_files import find_named

        return find_named(
            source,
            items,
            ["{category}_reasoning/{index}", "{item.model}/images/{category}_reasoning/{index}", "{index}"],
        )

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterator[Question]:
        data, [first] = item.data, self.sources(item)
        consistency, reasoning, plausibility = self._texts(data)
        compared = first
        if reasoning.startswith(("spatial_ref_img", "logical_img")):
            answer = self.source_image(self.data / "data" / data["reference_img"])
            first = self._source(answer, f"the answer to {data['index']}")
            # quirk: consistency is that of the result with the answer instead of the source
            compared = first if self.is_official else compared
        if data["consistency_free"] is None:
            yield self._ask("consistency", consistency, data, compared, image)
        sees_result_only = reasoning in ("reasoning", "spatial_ref", "logical_txt")
        yield self._ask("reasoning", reasoning, data, *([] if sees_result_only else [first]), image)
        if plausibility:
            yield self._ask("plausibility", plausibility, data, image)

    def _texts(self, data: Mapping[str, Any]) -> tuple[str, str, str]:
        """Returns the names of the texts about consistency, reasoning and plausibility."""
        shown = "" if data["reasoning_img"] is None else "_w_input"
        if data["category"] == "spatial":
            reference = f"ref{shown}" if data["reference_img"] is None else "ref_img"
            return "spatial_cons", f"spatial_{reference}", "spatial_qual"
        if data["category"] != "logical":
            return "consist", f"reasoning{shown}", "generation"
        if data["reference_txt"] is not None:
            return "logical_cons_ans", "logical_txt", ""
        # quirk: one edit that is judged without its question is enough for all
        without = data["some_reasoning_wo_ins"] if self.is_official else data["reasoning_wo_ins"]
        return "logical_cons", f"logical_img{'_wo_q' if without else ''}", ""

    def _ask(self, name: str, text: str, data: Mapping[str, Any], *pictures: Picture) -> Question:
        is_logical = data["category"] == "logical"
        reference = data["reference_txt" if is_logical else "reference"]
        words = self.prompts[f"utils.py::prompt_{text}"].format(instruct=data["prompt"], reference=reference)
        shown = [one._replace(encoding=Encoding("JPEG"), detail="high") for one in pictures]
        return ask(name, words, *shown, max_tokens=4096, data=is_logical, accepts=self.accepts)

    def parse(self, question: Question, answer: Answer) -> list[int]:
        """Returns the numbers of a reply; by corrected rules one grade.

        Official rules accept any number. The official program stops if a reply has several, or if the two
        replies about a logical edit have more than three.
        """
        reply, is_logical = answer.text or "", question.data
        if self.is_official:
            numbers = numbers_in(reply)
            if not numbers:
                raise Unparsed("no final score", reply)
            if len(numbers) > 1 + is_logical:
                raise Unparsed("several final scores, which stop the official program", reply)
            return numbers
        labelled = _LABELLED.findall(reply)
        finals = [number for is_final, number in labelled if is_final]
        found = finals[:1] or list({number for _, number in labelled})
        grades = range(2) if is_logical else range(1, _TOP + 1)
        if len(found) != 1 or found[0] not in map(str, grades):
            raise Unparsed(f"no final score of {grades[0]} to {grades[-1]}", reply)
        return [int(found[0])]

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the grades, both weighted scores (1-5), and whether all grades are 5 (accuracy)."""
        category, is_free = item.data["category"], item.data["consistency_free"] is not None
        replies = {name: answers[name] for name in GRADES if name in answers}
        numbers = [number for one in replies.values() for number in one.value]
        if category == "logical" and len(numbers) != 3:
            # four numbers stop the official program: then the first of each reply counts here
            numbers = [4 * min(one.value[0], 1) + 1 for one in replies.values()]
        # quirk: three numbers of a logical edit are three grades, although its replies are 0 or 1
        grade = dict(zip([*GRADES][is_free:], numbers, strict=False))
        needed = [grade[name] for name in grade if (category, name) != ("logical", "plausibility")]
        is_complete = {*needed} == {_TOP} and not (is_free and self.settings.completion == 2025)
        # quirk: an edit that lacks the key counts as free of consistency if another edit has the key
        values = {
            "score_official": _weighted(grade, category, is_free or item.data["some_consistency_free"]),
            "score_intended": _weighted(grade, category, is_free),
        }
        if grade["reasoning"] == 1:
            values = {name: max(1, 0.5 * value) for name, value in values.items()}
        keys = {"category": category, "subtask": item.data["subtask"]}
        texts = {name: one.text for name, one in replies.items()}
        return Score({"accuracy": int(is_complete), **values, **grade}, keys, texts)

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics over all edits, by category and by subtask ("accuracy/spatial/Layout Reasoning").

        * ``accuracy``, 0-1: the share of edits whose grades are all 5. ``score_official``, 1-5: as the
          official program computes it; ``score_intended``: with the weights that it means to use.
        * ``reasoning``, ``consistency``, ``plausibility``, 1-5: the mean grade.
        * ``accuracy_official`` (official rules): an edit whose reply has no score counts as 0. There is no
          value if an edit has no reply, or if a reply stops the official program.
        """
        found: dict[str, Metric] = {}
        for name in self.item_values:
            found |= _means(scores, name, 1 if name == "accuracy" else _TOP)
        if self.is_official:
            statuses = [one.status for one in scores.items]
            is_whole = len(statuses) == self.prompt_count and {*statuses} <= {"judged", "unparsed"}
            is_whole = is_whole and not any(map(_stops, scores.items))
            zeros = [_zero(one) for one in scores.items if one.status == "unparsed"]
            everything = _means([*scores, *zeros], "accuracy", 1)
            found |= {
                name.replace("accuracy", "accuracy_official"): only_if(is_whole, metric)
                for name, metric in everything.items()
            }
        return found

    def official_files(self, scores: Scores) -> dict[str, str | bytes]:
        """``<model>_judge.csv``: the official table. ``<model>.pkl``: the replies, which the official program
        reads instead of asking again."""
        found, rules = self.metrics(scores), "official" if self.is_official else "intended"
        score, accuracy = f"score_{rules}", "accuracy_official" if self.is_official else "accuracy"
        # the name of a row, the metric of its score, and that of its accuracy
        rows = [("Overall", score, accuracy)]
        rows += [(one.title(), f"{score}/{one}", f"{accuracy}/{one}") for one in SUBTASKS]
        rows += [(f"Overall_{label}", name, "") for name, (label, _) in _LABELS.items()]
        rows += [
            (f"{one.title()}_{label}", f"{name}/{one}", "")
            for one in SUBTASKS
            for name, (_, label) in _LABELS.items()
            if (one, name) != ("logical", "plausibility")
        ]
        rows += [
            (f"{_SHORT[one]}-{subtask}", f"{score}/{one}/{subtask}", f"{accuracy}/{one}/{subtask}")
            for one, subtasks in SUBTASKS.items()
            for subtask in subtasks
            if f"{score}/{one}/{subtask}" in found
        ]
        values = {name: metric.value for name, metric in found.items()}
        table: list[list[Any]] = [["-", "Score-Origin", "Score-Percentage", "Accuracy"]]
        for label, name, share in rows:
            value = values.get(name)
            table.append([label, value, None if value is None else 25 * (value - 1), values.get(share)])
        replies = {
            one.item.data["index"]: {
                f"judge{number}": one.replies.get(name)
                for number, name in enumerate(GRADES, 1)
                if (number, one.item.data["category"]) != (3, "logical")
            }
            for one in scores.items
            if one.status in ("judged", "unparsed")
        }
        model = scores.items[0].item.model if scores.items else ""
        return {f"{model}_judge.csv": csv_text(table), f"{model}.pkl": pickle.dumps(replies)}


def numbers_in(reply: str) -> list[int]:
    """Returns the numbers after the first "Final Score" with a number, as the official program reads them.

    quirk: the numbers may go on in the next lines, so a list after the score adds its own.
    """
    for label in _OFFICIAL:
        for run in label.findall(reply):
            if numbers := re.findall(r"\d+", run):
                return [int(number) for number in numbers if len(number) <= 300]
    return []


def _weighted(grade: Mapping[str, int], category: str, is_free: bool) -> float:
    """Returns the score before the rule for a reasoning of 1. The order of the terms decides the last digit."""
    if category == "logical":
        return 0.3 * grade["consistency"] + 0.7 * grade["reasoning"]
    if is_free:
        return 0.2 * grade["plausibility"] + 0.8 * grade["reasoning"]
    return 0.3 * grade["consistency"] + 0.5 * grade["reasoning"] + 0.2 * grade["plausibility"]


def _means(scores: Sequence[Score], name: str, top: float) -> dict[str, Metric]:
    """Returns the mean of a value over the scores that have it, over each category and each subtask."""
    having = [score for score in scores if name in score.values]
    order = [(one, subtask) for one, subtasks in SUBTASKS.items() for subtask in subtasks]
    return {
        name: mean(having, name, top=top),
        **mean_by(having, name, "category", prefix=f"{name}/", order=SUBTASKS, top=top),
        **mean_by(having, name, ("category", "subtask"), prefix=f"{name}/", order=order, top=top),
    }


def _zero(one: ScoredItem) -> Score:
    keys = {key: one.item.data[key] for key in ("category", "subtask")}
    return Score({"accuracy": 0}, keys).of_item(one.item.id)


def _stops(one: ScoredItem) -> bool:
    """Returns whether the replies about an edit have more numbers than the official program can use."""
    numbers = [numbers_in(reply) for reply in one.replies.values()]
    is_logical = one.item.data["category"] == "logical"
    return all(numbers) and sum(map(len, numbers)) > len(numbers) + is_logical
