"""GenExam (arXiv 2509.14232): 1,000 exam questions of ten subjects, each answered with a figure.

The judge compares the figure with a reference, answers weighted scoring points, and gives three grades from 0
to 2. ``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import (
    PILLOW,
    Accepts,
    Answer,
    Encoding,
    Message,
    Picture,
    Question,
    Sampling,
)
from imageevalkit.metrics import grouped, mean, mean_by, mean_of_means, spread
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import is_number
from imageevalkit.store.results import Metric, Score

SUBJECTS = (
    *("Biology", "Chemistry", "Computer_Science", "Economics", "Engineering", "Geography", "History"),
    *("Mathematics", "Music", "Physics"),
)
GRADES = {
    "spelling": "Spelling",
    "readability": "Clarity and Readability",
    "logical_consistency": "Logical Consistency",
}
"""The judge's names of the grades."""
_BEST, _ALL, _MINI, _TOKENS = 2, 1000, 250, 16384
_TEXT = "eval_prompt.py::prompt_for_eval"
# quirk: the judge sees small JPEGs
_JPEG = Encoding("JPEG", longest_side=768, floor=True)
# the errors raised by parsing a Python literal and by looking into the result
_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, SyntaxError, MemoryError, RecursionError)


@dataclass(frozen=True)
class GenExamSettings(Settings):
    """``subset="mini"`` selects the authors' 250 items."""

    subset: Literal["full", "mini"] = field(default="full", metadata={"decides": True})


class GenExam(Benchmark):
    """One image per item. The subjects alternate in proportion to their sizes."""

    name, title = "genexam", "GenExam"
    version = "genexam-6f324dd"  # data, prompt and rules are from OpenGVLab/GenExam at this commit
    headline = ("strict", "relaxed")
    item_values = ("strict", "relaxed", "semantic_correctness", *GRADES)
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    hub_dataset = "OpenGVLab/GenExam"
    judge = "openai:gpt-5-2025-08-07"
    tries = 3
    has_corrected_rules = True
    settings_class = GenExamSettings

    settings: GenExamSettings

    def __init__(self, settings: GenExamSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.prompt_count = _MINI if self.settings.subset == "mini" else _ALL
        # quirk: the official program drops transparency, so four references become partly black
        white = PILLOW._replace(name="pillow on white", on_white=("RGBA", "LA"))
        self.pixels = PILLOW if self.is_official else white
        self.unbounded = ("*",) if self.is_official else ()

    def samples(self) -> Iterable[Sample]:
        records = self.read_jsonl("annotations/All_Subjects.jsonl", _ALL)
        if self.settings.subset == "mini":
            chosen = set(self.read_text("mini_sample_ids.txt").split())
            records = [record for record in records if record["id"] in chosen]
        for record in spread(grouped(records, lambda one: one["subject"]).values()):
            yield Sample(f"images/{record['id']}.png", record["prompt"], data=record)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        path = self.data / "images" / item.data["image_path"]
        reference = self._source(self.source_image(path), f"reference image of item {item.id}")
        shown = (one._replace(encoding=_JPEG, detail="high") for one in (image, reference))
        asked = [point["question"] for point in item.data["scoring_points"]]
        text = self.prompts[_TEXT].format(prompt=item.prompt, scoring_points=asked)
        # gpt-5 needs other parameters than other judges
        extra = {"max_completion_tokens": _TOKENS, "reasoning_effort": "low", "verbosity": "medium"}
        sampling = Sampling(None, None, extra=extra) if "gpt-5" in self.judge else Sampling(_TOKENS)
        # the official program reads only the content of a reply
        accepts: Accepts = "any" if self.is_official else "ended"
        message = Message("user", (text, *shown))
        return [Question("exam", (message,), sampling, data=len(asked), accepts=accepts)]

    def parse(self, question: Question, answer: Answer) -> dict[str, Any]:
        """Returns the ``answers`` (0 or 1) and the grades by name."""
        text = answer.text or ""
        try:
            reply = _read(text)
            answers = [point["answer"] for point in reply["answers"]]
            grades = reply["global_evaluation"]
            is_valid = len(answers) == question.data and all(one in (0, 1) for one in answers)
            is_valid = is_valid and all(name in grades for name in GRADES.values())
        except _UNREADABLE:
            is_valid = False
        if not is_valid:
            raise Unparsed("no answer to every scoring point, or no grades", text)
        try:
            found = {name: grades[label]["score"] for name, label in GRADES.items()}
        except _UNREADABLE:
            found = dict.fromkeys(GRADES)
        if not self.is_official and not all(map(_is_grade, found.values())):
            raise Unparsed(f"a grade that is no whole number from 0 to {_BEST}", text)
        # quirk: the official program accepts any grade, and its report stops at one that is no number
        if not all(isinstance(one, bool) or is_number(one) for one in found.values()):
            raise Unparsed("a grade that is no number: the official report stops", text, final=True)
        return {"answers": [int(one == 1) for one in answers], **found}

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the strict score (1: all is right) and the relaxed score (a weighted sum), both 0-1."""
        value, points = answers["exam"].value, item.data["scoring_points"]
        marked = [*zip(points, value["answers"], strict=True)]
        correct = round(sum(point["score"] for point, mark in marked if mark), 4)
        grades = {name: value[name] for name in GRADES}
        relaxed = correct * 0.7
        for grade in grades.values():
            relaxed += grade * 0.1 / 2
        is_perfect = all(value["answers"]) and all(grade == _BEST for grade in grades.values())
        return Score(
            {
                "strict": int(is_perfect),
                # quirk: the official program rounds the score of each item
                "relaxed": round(relaxed, 3) if self.is_official else relaxed,
                "semantic_correctness": correct,
                **grades,
            },
            {key: item.data[key] for key in ("subject", "difficulty", "img_type", "taxonomy")},
            {point["question"]: mark for point, mark in marked},
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics; ``n`` counts items.

        * ``strict``, ``relaxed``: the mean over items in percent. ``strict_subjects``, …: the mean of the
          subjects' means, as in the paper. ``strict/Music``, ``strict/difficulty/easy``,
          ``strict/img_type/maps``, …: a group.
        * ``semantic_correctness`` (0-1) and the grades (0-2), also by subject.
        """
        found: dict[str, Metric] = {}
        for name in ("strict", "relaxed"):
            found[name] = mean(scores, name, percent=True)
            found[f"{name}_subjects"] = mean_of_means(scores, name, "subject", SUBJECTS, percent=True)
            found |= mean_by(scores, name, "subject", prefix=f"{name}/", order=SUBJECTS, percent=True)
            for key in ("difficulty", "img_type"):
                found |= mean_by(scores, name, key, prefix=f"{name}/{key}/", percent=True)
        for name in ("semantic_correctness", *GRADES):
            top = _BEST if name in GRADES else 1
            found[name] = mean(scores, name, top=top)
            found |= mean_by(scores, name, "subject", prefix=f"{name}/", order=SUBJECTS, top=top)
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``eval_results/<id>.json``: the judge's reply and the item. Paths are relative to the result."""
        found = {}
        for one in (one for one in scores.items if one.score):
            data = dict(one.item.data)
            reference = data.pop("image_path")
            paths = {"gen_img_path": f"{one.item.id}.png", "gt_img_path": f"data/images/{reference}"}
            record = {**_read(one.replies["exam"]), **data, **paths}
            record.pop("image_path", None)
            found[f"eval_results/{data['id']}.json"] = json.dumps(record, indent=4, ensure_ascii=False)
        return found


def _read(reply: str) -> Any:
    """Returns the value in the last JSON block, else of the whole reply. Raises an error of
    ``_UNREADABLE``."""
    text = reply.split("```json")[-1].split("```")[0]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ast.literal_eval(text)


def _is_grade(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _BEST
