"""OmniContext (arXiv 2506.18871): 400 images of persons, objects and scenes that reference images show. A judge
grades prompt following and subject consistency, 0-10.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gedit.viescore import repaired
from imageevalkit.assets import TableAsset, asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import (
    Accepts,
    Answer,
    Encoding,
    Message,
    Picture,
    PixelRule,
    Question,
    Sampling,
)
from imageevalkit.metrics import grouped, mean_by, mean_of_means, spread
from imageevalkit.store.cell import portable_path
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import is_number
from imageevalkit.store.results import Metric, Score

TYPES = (
    *("single_character", "single_object"),
    *("multi_character", "multi_object", "multi_character_object"),
    *("scene_character", "scene_object", "scene_character_object"),
)
GROUPS = ("single", "multi", "scene")
GRADES = ("following", "consistency")
"""The official names are PF and SC."""
PASSES = 3
ROWS = TableAsset(
    *("rows.jsonl", "OmniGen2/OmniContext", ("*.parquet", "*.arrow"), "none stated (OmniGen2/OmniContext)"),
    columns=("key", "task_type", "instruction", "instruction_language", "input_images"),
)
_COUNT, _SCALE, _MOST, _MULTIPLE = 400, 10, 1024 * 1024, 16
_TEXT = "omnicontext/prompt_generator.py::{}"
_RULE = "_prompts_0shot_in_context_generation_rule_{}_{}"
_PINNED = "openai:gpt-4.1-2025-04-14"
_SIDE = 1024
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)


class OmniContext(Benchmark):
    """The judge always sees all references and the result."""

    name, title = "omnicontext", "OmniContext"
    version = "omnicontext-0f72fa9"  # prompts and rules are from VectorSpaceLab/OmniGen2 at this commit
    task = "edit"
    assets = (*asset_list(Path(__file__).with_name("assets.txt")), ROWS)
    prompt_count = _COUNT
    judge = "openai:gpt-4.1"
    official_judges = (judge, _PINNED)
    headline = ("overall",)
    item_values = ("overall", *GRADES)
    hub_dataset = "OmniGen2/OmniContext"
    has_corrected_rules = True

    def __init__(self, settings: Settings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        if not (judge or self.is_official):
            self.judge = _PINNED
        # the official program has its own passes, and accepts any number as a grade
        self.tries, self.unbounded = (1, ("*",)) if self.is_official else (PASSES, ())
        self.pixels: PixelRule = PixelRule("omnicontext", turned=True, on_white=self._on_white)

    @property
    def _on_white(self) -> tuple[str, ...]:
        # quirk: the official program drops transparency instead of putting it on white
        return () if self.is_official else ("RGBA", "LA")

    def samples(self) -> Iterable[Sample]:
        rows = self.read_jsonl(ROWS.path, _COUNT)
        with self.content_of(ROWS.path):
            for row in spread(grouped(rows, lambda row: row["task_type"]).values()):
                images = [self.source_image(self.data / path) for path in row["input_images"]]
                data = {"key": row["key"], "type": row["task_type"], "prompt": row["instruction"]}
                file = f"images/fullset/{row['task_type']}/{row['key']}.png"
                yield Sample(file, data=data, input_list=[*images, row["instruction"]])

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the official layout."""
        from imageevalkit.benchmark.image_files import find_named

        return find_named(source, items, ["fullset/{type}/{key}", "{type}/{key}"])

    def text(self, grade: str, type: str) -> str:
        """Returns the question about a grade, with ``<instruction>``."""
        name, is_scene = {"following": "PF", "consistency": "SC"}[grade], "scene" in type
        # quirk: the question about following is never that of scenes
        is_scene = is_scene and not (self.is_official and grade == "following")
        rule = _RULE.format(name, "Scene" if is_scene else "Single_and_Multiple")
        return "".join(self.prompts[_TEXT.format(part)] for part in ("_context_no_delimit", rule))

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        shown = [self._shown(picture, size) for picture, size in self._pictures(item, image)]
        accepts: Accepts = "text" if self.is_official else "ended"
        sampling = Sampling(1400, None if self.is_official else 0.0)
        # quirk: the program asks three times also after a usable reply
        for number in range(PASSES if self.is_official else 1):
            for grade in GRADES:
                text = self.text(grade, item.data["type"]).replace("<instruction>", item.data["prompt"])
                message = Message("user", (text, *shown))
                name = f"{grade}/{number}"
                yield Question(name, (message,), sampling, accepts=accepts, repeat=number)

    def _pictures(self, item: Item, image: Picture) -> Iterable[tuple[Picture, tuple[int, int] | None]]:
        """Yields all images, the result last, each with the size to which the official program resizes it."""
        for picture, source in zip(self.sources(item), item.input_list or (), strict=False):
            width, height = source.size
            is_turned = source.getexif().get(_ORIENTATION) in _TURNED
            yield picture, reduced((height, width) if is_turned else (width, height))
        yield image, None

    def _shown(self, picture: Picture, size: tuple[int, int] | None) -> Picture:
        if not self.is_official:
            return picture._replace(encoding=Encoding("PNG", longest_side=_SIDE))
        name = "omnicontext" if size is None else f"omnicontext {size[0]}x{size[1]}"
        pixels = self.pixels._replace(name=name, size=size)
        return picture._replace(pixels=pixels, encoding=Encoding("JPEG"))

    def parse(self, question: Question, answer: Answer) -> Any:
        """Returns the grade in a reply.

        By official rules: a list with any JSON value (the program stops at most of them), or None if the
        program cannot read the reply. By corrected rules a number from 0 to 10.
        """
        found = object_in(answer.text or "")
        if self.is_official:
            is_whole = found is not None and "score" in found and "reasoning" in found
            return None if found is None else [found["score"] if is_whole else None]
        grade: Any = (found or {}).get("score")
        grade = grade[0] if isinstance(grade, list) and len(grade) == 1 else grade
        if not is_number(grade) or not 0 <= grade <= _SCALE:
            raise Unparsed("no grade of 0 to 10", answer.text or "")
        return grade

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns both grades and the root of their product; nothing where the official program stops."""
        keys = {"type": item.data["type"], "group": item.data["type"].partition("_")[0]}
        texts: dict[str, Any] = {name: answer.text for name, answer in answers.items()}
        if self.is_official:
            grades, guesses = self._official_grades(item, answers)
        else:
            grades, guesses = {grade: answers[f"{grade}/0"].value for grade in GRADES}, 0
        if not all(is_number(one) and one >= 0 for one in grades.values()):
            return Score({}, keys, texts | {"left out": "a grade that stops the official program"})
        overall = math.sqrt(grades["following"] * grades["consistency"])
        return Score({"overall": overall, **grades}, keys, texts | {"guessed": guesses})

    def _official_grades(self, item: Item, answers: Answers) -> tuple[dict[str, Any], int]:
        """Returns the last grades that the program read, and the number of guesses.

        quirk: they may come from different passes. A grade that it never read is a random number.
        """
        last: dict[str, Any] = {}
        for number in range(PASSES):
            for grade in GRADES:
                value = answers[f"{grade}/{number}"].value
                if value is None:
                    break  # the program goes on with the next pass
                last[grade] = value[0]
        draw = random.Random(item.id)
        missing = {grade: draw.randint(0, _SCALE) for grade in GRADES if grade not in last}
        return last | missing, len(missing)

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics, 0-10; ``n`` counts images.

        * ``overall``, ``following``, ``consistency``: the mean of the types.
        * ``overall/single_object``, …: of a type; ``overall/scene``, …: the mean of the types of a group.
        """
        found: dict[str, Metric] = {}
        having = [score for score in scores if score.values]
        for value in self.item_values:
            found[value] = mean_of_means(having, value, "type", TYPES, top=_SCALE)
            found |= mean_by(having, value, "type", prefix=f"{value}/", order=TYPES, top=_SCALE)
            for group in GROUPS:
                part = [score for score in having if score.keys["group"] == group]
                found[f"{value}/{group}"] = mean_of_means(part, value, "type", top=_SCALE)
        return found

    def notes(self, scores: Scores) -> Sequence[str]:
        guesses = sum(score.detail.get("guessed", 0) for score in scores)
        stops = sum(not score.values for score in scores)
        found = []
        if guesses:
            whole = f"{guesses} of {2 * len(scores)} grades are random numbers, as in the official program"
            found.append(f"{whole}: the judge's replies have no grade")
        if stops:
            found.append(f"{stops} images do not count: their grades stop the official program")
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``gpt4dot1/<type>/score.jsonl``: the grades of a type's images."""
        files = dict.fromkeys((f"gpt4dot1/{type}/score.jsonl" for type in TYPES), "")
        for item, score in ((one.item, one.score) for one in scores.items if one.score and one.score.values):
            row = {
                "key": item.data["key"],
                "task_type": item.data["type"],
                "instruction": item.data["prompt"],
                "instruction_language": "en",
                "output_image_path": portable_path(item.path),
                "PF_score": score.values["following"],
                "SC_score": score.values["consistency"],
            }
            files[f"gpt4dot1/{item.data['type']}/score.jsonl"] += json.dumps(row, ensure_ascii=False) + "\n"
        return files


def reduced(size: tuple[int, int]) -> tuple[int, int]:
    """Returns the (width, height) of a reference for the judge: at most a megapixel, in multiples of 16."""
    width, height = size
    if width * height > _MOST:
        ratio = math.sqrt(_MOST / (width * height))
        width, height = int(width * ratio), int(height * ratio)
    # the official program stops at an image with a side below 16
    return max(width // _MULTIPLE, 1) * _MULTIPLE, max(height // _MULTIPLE, 1) * _MULTIPLE


def object_in(reply: str) -> dict[str, Any] | None:
    """Returns the JSON object in a reply as the official program reads it, also repaired; None: it has none."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        if start < 0 or end < 0:
            number = int(reply)
            return {"score": number, "reasoning": ""} if 0 <= number <= _SCALE else None
        text = reply[start : end + 1].strip().replace("\n", "")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = json.loads(repaired(text))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
