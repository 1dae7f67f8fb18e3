"""ImgEdit-Bench (arXiv 2505.20275), single-turn suite: 737 edits of nine types, each with three grades of
1-5.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Accepts, Answer, Picture, Question, ask
from imageevalkit.metrics import arithmetic_mean, grouped, mean_by, mean_of_means, only_if, spread
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

TYPES = ("extract", "style", "add", "alter", "background", "replace", "remove", "action", "compose")
_SCALE = 5
_EDITIONS = {
    "kit": "eval_prompts/basic_edit.json",
    "original": "imgedit_asset/Benchmark/singleturn/singleturn.json",
}
# the judge's prompt names each grade in a line such as "Prompt Compliance: A number from 1 to 5."
_NAMED = re.compile(r"^\W*([A-Z][^\n:]*): ?A number", re.MULTILINE)


@dataclass(frozen=True)
class ImgEditSettings(Settings):
    """``edition`` selects the instructions: "kit" (official kit) or "original" (the authors' current ones);
    57 of them differ."""

    edition: Literal["kit", "original"] = field(default="kit", metadata={"decides": True})


class ImgEdit(Benchmark):
    """The judge sees the source image and the edited image."""

    name, title = "imgedit", "ImgEdit-Bench"
    version = "imgedit-85b5e15"  # data and prompts are from the kit at this commit
    task = "edit"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count = 737
    judge = "openai:gpt-4.1"
    official_judges = ("openai:gpt-4.1", "openai:gpt-4o")  # kit, authors
    headline = ("overall",)
    item_values = ("overall",)
    official_headline = ("overall_official",)
    has_corrected_rules = True
    settings_class = ImgEditSettings

    settings: ImgEditSettings

    def __init__(self, settings: ImgEditSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        # the official program never retries a reply without grades, and accepts any number as a grade
        self.tries, self.unbounded = (1, ("*",)) if self.is_official else (3, ())

    def samples(self) -> Iterable[Sample]:
        edits = self.read_json(_EDITIONS[self.settings.edition]).items()
        of_type = grouped(edits, lambda pair: _type(pair[1]))
        for key, edit in spread(of_type[name] for name in TYPES):
            image = self.source_image(self.data / "imgedit_asset/Benchmark/singleturn" / edit["id"])
            data = {"key": key, "type": _type(edit), "prompt": edit["prompt"]}
            # the same key may mean a different edit in each edition, so each edition has its own folder
            folder = "images" if self.settings.edition == "kit" else "images_original"
            yield Sample(f"{folder}/{key}.png", data=data, input_list=[image, edit["prompt"]])

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images by key, for both editions."""
        from imageevalkit.benchmark.image_files import find_named

        return find_named(source, items, ["{key}"])

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        return self.read_json("eval_prompts/prompts.json")

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        text = self.prompts[item.data["type"]].replace("<edit_prompt>", item.data["prompt"])
        # the official program declares every file a PNG, even the JPEG sources
        declared = "image/png" if self.is_official else None
        pictures = [picture._replace(media_type=declared) for picture in (*self.sources(item), image)]
        # the official program reads only the content and ignores the finish reason
        accepts: Accepts = "text" if self.is_official else "ended"
        return [ask("grades", text, *pictures, max_tokens=None, temperature=None, accepts=accepts)]

    def parse(self, question: Question, answer: Answer) -> list[int]:
        """Returns the grades in a reply.

        Official rules take every number that follows ": " to the end of a line, under any name and in any
        count (quirk). Corrected rules take the three requested grades, each 1-5.
        """
        lines = _lines_with_grades(answer.text or "")
        if self.is_official and not all(_is_number(grade) for _, grade in lines):
            raise Unparsed("a grade that stops the official program", answer.text or "")
        stated = [(name, int(grade)) for name, grade in lines if _is_number(grade)]
        if not self.is_official:
            grades = {name.strip("*-# "): grade for name, grade in stated if 1 <= grade <= _SCALE}
            stated = [(name, grades[name]) for name in _NAMED.findall(question.text) if name in grades]
            if len(stated) != 3:
                raise Unparsed("not the three grades of 1 to 5", answer.text or "")
        if not stated:
            raise Unparsed("no line 'name: grade'", answer.text or "")
        return [grade for _, grade in stated]

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the mean of the grades, 1-5. Official rules round it to 2 decimals."""
        answer = answers["grades"]
        grade = sum(answer.value) / len(answer.value)
        return Score(
            {"overall": round(grade, 2) if self.is_official else grade},
            {"type": item.data["type"]},
            {"judge": answer.text},
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics by name, 1-5; ``n`` counts edits.

        * ``extract``, ``style``, …: the mean of a type. ``overall``: the mean over types that have a score.
        * Official rules round each mean to 2 decimals and compute ``overall`` from rounded means (quirk);
          ``overall_unrounded`` stays unrounded. ``overall_official`` has no value if an edit has no reply, or
          if a reply stops the official program, which then prints nothing.
        """
        types = mean_by(scores, "overall", "type", order=TYPES, top=_SCALE)
        whole = mean_of_means(scores, "overall", "type", TYPES, top=_SCALE)
        if not self.is_official:
            return {"overall": whole, **types}
        rounded = {name: round(metric.value or 0.0, 2) for name, metric in types.items()}
        overall = replace(whole, value=round(arithmetic_mean(rounded.values()), 2) if types else None)
        whole_set = sum(one.status in ("judged", "unparsed") for one in scores.items) == self.prompt_count
        replies = (reply for one in scores.items for reply in one.replies.values())
        stops = any(not _is_number(grade) for reply in replies for _, grade in _lines_with_grades(reply))
        return {
            "overall": overall,
            "overall_official": only_if(whole_set and not stops, overall),
            "overall_unrounded": whole,
            **{name: replace(metric, value=rounded[name]) for name, metric in types.items()},
        }

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``imgedit_bench.json`` holds the replies by edit, ``result.json`` the scores."""
        replies = {
            one.item.data["key"]: one.replies["grades"] for one in scores.items if "grades" in one.replies
        }
        metrics = self.metrics(scores)
        values = {name: metrics[name].value for name in TYPES if name in metrics}
        return {
            "imgedit_bench.json": json.dumps(replies, indent=4),
            "result.json": json.dumps(values | {"Overall": metrics["overall"].value}, indent=2),
        }


def _type(edit: Mapping[str, str]) -> str:
    """Returns the type of an edit in the kit's words: the authors' "adjust" is the kit's "alter", same
    prompts."""
    return {"adjust": "alter"}.get(edit["edit_type"], edit["edit_type"])


def _lines_with_grades(reply: str) -> list[list[str]]:
    """Returns [name, grade] for each line that the official program reads as a grade."""
    lines = [line.strip().split(": ") for line in reply.splitlines()]
    return [line for line in lines if len(line) == 2 and line[1].isdigit()]


def _is_number(digits: str) -> bool:
    """Returns whether the official program can read ``digits`` as a grade, and a mean of such grades is
    finite."""
    # isdigit() accepts superscripts, which int() cannot read
    return digits.isdecimal() and len(digits) <= 300
