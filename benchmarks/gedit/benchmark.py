"""GEdit-Bench (arXiv 2504.17761): 606 edits of eleven types, each in English and in Chinese. VIEScore grades
the edit and the look of the result, 0-10.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.gedit.viescore import GUESS, STOPS, UNUSABLE, Stops, grade, scores_in
from imageevalkit.assets import TableAsset, asset_list
from imageevalkit.benchmark.contract import (
    Answers,
    Benchmark,
    Sample,
    ScoredItem,
    Scores,
    Settings,
    Unparsed,
)
from imageevalkit.benchmark.question import (
    Accepts,
    Answer,
    Encoding,
    Message,
    Picture,
    PixelRule,
    Question,
    Sampling,
    of_checkpoint,
)
from imageevalkit.common.text import csv_text
from imageevalkit.metrics import grouped, groups, mean_by, mean_of_means, only_if, spread
from imageevalkit.store.cell import portable_path
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

TYPES = (
    *("background_change", "color_alter", "material_alter", "motion_change", "ps_human", "style_change"),
    *("subject-add", "subject-remove", "subject-replace", "text_change", "tone_transfer"),
)
LANGUAGES = ("en", "cn")
VALUES = ("overall", "semantics", "quality")
ROUNDS = 20
"""The most rounds of questions by official rules. The official program has no limit and may never end."""
TWICE = ("ae3bf75e9abe53ab8e24052ef129d1ef", "bc8d567ee91ca1521adaa8d4a486851f")
"""Each key names an edit of subject-remove and another of subject-replace."""
_SCALE, _EDITS, _TRIES, _SEED = 10, 606, 3, 42
ROWS = TableAsset(
    *("rows.jsonl", "stepfun-ai/GEdit-Bench", ("*.arrow", "*.parquet"), "MIT (stepfun-ai/GEdit-Bench)"),
    revision="58159f3de6689982b1df7f1a6c557ded16548a24",
    # not the sources in their original size, which no program needs
    columns=(
        *("key", "task_type", "instruction", "instruction_language", "input_image", "Intersection_exist"),
    ),
)
_TEXT = "GEdit-Bench/viescore/vie_prompts.py::{}"
_PINNED = "openai:gpt-4.1-2025-04-14"
_QWEN = "Qwen/Qwen2.5-VL-72B-Instruct-AWQ"
_COLUMNS = [
    *("source_image", "edited_image", "instruction", "sementics_score", "quality_score"),
    *("intersection_exist", "instruction_language"),
]


@dataclass(frozen=True)
class GEditSettings(Settings):
    """``language`` selects instructions; "zh" is another name of "cn". ``edits=604`` leaves out two edits
    that share their key with another one: other toolkits lose these two."""

    language: Literal["both", "en", "cn", "zh"] = "both"
    edits: Literal[606, 604] = field(default=606, metadata={"decides": True})


class GEdit(Benchmark):
    """The judge is asked twice: about source and result (semantics), and about the result alone (quality)."""

    name, title = "gedit", "GEdit-Bench"
    version = "gedit-570eba6"  # prompts and rules are from Step1X-Edit at this commit
    task = "edit"
    assets = (*asset_list(Path(__file__).with_name("assets.txt")), ROWS)
    judge = "openai:gpt-4.1"
    official_judges = (judge, _PINNED, f"vllm:{_QWEN}", f"transformers:{_QWEN}")
    item_values = VALUES
    hub_dataset = "stepfun-ai/GEdit-Bench"
    has_corrected_rules = True
    settings_class = GEditSettings

    settings: GEditSettings

    def __init__(self, settings: GEditSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        if not (judge or self.is_official):
            self.judge = _PINNED
        self.languages = {"both": LANGUAGES, "zh": ("cn",)}.get(
            self.settings.language, (self.settings.language,)
        )
        self.prompt_count = self.settings.edits * len(self.languages)
        self.headline = tuple(f"{language}/overall" for language in self.languages)
        if len(self.languages) > 1:
            self.needs_all_items = "each of its scores covers the edits of one language"
        self.is_local = self.backend != "openai"
        # corrected rules ask the same question again; official rules ask new rounds of both questions
        self.tries, self.unbounded = (1, ("*",)) if self.is_official else (_TRIES, ())
        if self.is_official:
            self.official_headline = tuple(f"{name}_official" for name in self.headline)
        # the official program reads only the content of a reply
        self.accepts: Accepts = "text" if self.is_official else "ended"
        # quirk: the official program drops transparency instead of putting it on white
        on_white = () if self.is_official else ("RGBA", "LA")
        self.pixels: PixelRule = PixelRule(
            "gedit", not self.is_local, on_white, 28 if self.is_local else None
        )

    def samples(self) -> Iterable[Sample]:
        rows = self.read_jsonl(ROWS.path, _EDITS * len(LANGUAGES))
        with self.content_of(ROWS.path):
            kept = [row for row in rows if row["instruction_language"] in self.languages]
            of_group = grouped(kept, lambda row: (row["task_type"], row["instruction_language"]))
            ordered = spread(of_group[type, language] for type in TYPES for language in self.languages)
            for row in ordered:
                type, language, key = row["task_type"], row["instruction_language"], row["key"]
                if self.settings.edits != _EDITS and type == "subject-remove" and key in TWICE:
                    continue
                data = {"key": key, "type": type, "language": language, "prompt": row["instruction"]}
                data["intersection"] = bool(row["Intersection_exist"])
                image = self.source_image(self.data / row["input_image"])
                file = f"images/fullset/{type}/{language}/{key}.png"
                yield Sample(file, data=data, input_list=[image, row["instruction"]])

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the official layout."""
        from imageevalkit.benchmark.image_files import find_named

        return find_named(source, items, ["fullset/{type}/{language}/{key}", "{type}/{language}/{key}"])

    @property
    def texts(self) -> tuple[str, str]:
        """The questions about semantics (with ``<instruction>``) and quality."""
        names = ("_context_no_delimit", "_prompts_0shot_two_image_edit_rule", "_prompts_0shot_tie_rule_SC")
        context, *rules = (self.prompts[_TEXT.format(name)] for name in names)
        return "\n".join(
            [context, *rules]
        ), f"{context}\n{self.prompts[_TEXT.format('_prompts_0shot_rule_PQ')]}"

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        if not self.is_official:
            return self._round(item, image)
        return self._rounds(item, image, answers)

    def _rounds(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        """Yields both questions until both replies of a round have scores."""
        attempt = 0
        for number in range(ROUNDS):
            # quirk: if one reply is not readable, both questions are asked again
            asked = [replace(one, name=f"{one.name}/{number}") for one in self._round(item, image)]
            data = (attempt > 0, number + 1 == ROUNDS)
            yield from (replace(one, repeat=number, data=data) for one in asked)
            if not all(one.name in answers for one in asked):
                return
            found = [answers[one.name].value for one in asked]
            if None in found and STOPS not in found:
                attempt += 1  # quirk: from the second attempt on, the official program guesses
            elif STOPS in found or UNUSABLE in found:
                attempt = 0  # the official program starts the item again
            else:
                return

    def _round(self, item: Item, image: Picture) -> list[Question]:
        semantics, quality = self.texts
        [source] = self.sources(item)
        width, height = item.input_list[0].size if item.input_list else (0, 0)
        rule = self.pixels
        if self.is_official:
            # quirk: the result is squeezed to the size of the source
            image = image._replace(pixels=rule._replace(name=f"gedit {width}x{height}", size=(width, height)))
            if not self.is_local:
                source, image = (one._replace(encoding=Encoding("JPEG")) for one in (source, image))
        else:
            image = image._replace(encoding=Encoding("PNG", longest_side=max(width, height)))
        return [
            self._ask("semantics", semantics.replace("<instruction>", item.data["prompt"]), source, image),
            self._ask("quality", quality, image),
        ]

    def _ask(self, name: str, text: str, *pictures: Picture) -> Question:
        if self.is_local:
            message = Message("user", (*pictures, text))
            return Question(name, (message,), of_checkpoint(self.backend, 512), accepts=self.accepts)
        sampling = Sampling(1400, None if self.is_official else 0.0)
        return Question(name, (Message("user", (text, *pictures)),), sampling, accepts=self.accepts)

    def parse(self, question: Question, answer: Answer) -> Any:
        """Returns the lower of the two scores of a reply, 0-10.

        Official rules accept any scores (:func:`grade`), and a round may have none. Corrected rules take
        exactly two numbers from 0 to 10.
        """
        reply = answer.text or ""
        if self.is_official:
            gives_up, is_last = question.data
            found = grade(reply, gives_up)
            if is_last and found in (None, STOPS, UNUSABLE):
                raise Unparsed(f"no scores in {ROUNDS} rounds; the official program never ends", reply)
            return found
        try:
            scores = scores_in(reply)
        except Stops:
            scores = None
        if not (isinstance(scores, list) and len(scores) == 2 and all(map(_is_score, scores))):
            raise Unparsed("not two scores of 0 to 10", reply)
        return min(scores)

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns semantics, quality and the root of their product. Official rules may guess scores."""
        number = len(answers) // 2 - 1
        names = [f"{name}/{number}" if self.is_official else name for name in ("semantics", "quality")]
        found = [answers[name].value for name in names]
        # quirk: an unreadable reply becomes a random score. The program sets the seed for Qwen alone.
        draw = random.Random(_SEED if self.is_local else f"{item.id}/{number}")
        semantics, quality = (draw.randint(0, _SCALE) if one == GUESS else one for one in found)
        return Score(
            {"overall": math.sqrt(semantics * quality), "semantics": semantics, "quality": quality},
            {key: item.data[key] for key in ("language", "type", "intersection")},
            {**{name: answers[name].text for name in names}, "guessed": found.count(GUESS)},
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics by language, 0-10; ``n`` counts edits.

        * ``en/overall``, ``en/semantics``, ``en/quality``: the mean of the means of the types.
          ``en/overall/text_change``, …: a type. ``en_intersection/…``: edits that all models of the paper
          answered.
        * ``en/overall_official`` (official rules): no value if a type has no score, or if the official
          program would not end. An average over the intersection has no value either if a type has no score.
        """
        found: dict[str, Metric] = {}
        of_language = groups(scores, "language", self.languages)
        for language in self.languages:
            everything = of_language.get(language, [])
            shared = [score for score in everything if score.keys["intersection"]]
            for name, part in ((language, everything), (f"{language}_intersection", shared)):
                is_whole = len({score.keys["type"] for score in part}) == len(TYPES)
                for value in VALUES:
                    average = mean_of_means(part, value, "type", TYPES, top=_SCALE)
                    if part is shared and self.is_official:
                        average = only_if(is_whole, average)
                    found[f"{name}/{value}"] = average
                    found |= mean_by(part, value, "type", prefix=f"{name}/{value}/", order=TYPES, top=_SCALE)
                if part is everything and self.is_official:
                    ends = all(one.score or not one.image for one in scores.items if _is_in(one, language))
                    found[f"{name}/overall_official"] = only_if(is_whole and ends, found[f"{name}/overall"])
        return found

    def notes(self, scores: Scores) -> Sequence[str]:
        guesses = sum(score.detail["guessed"] for score in scores)
        whole = f"{guesses} of {2 * len(scores)} scores are random numbers, as in the official program"
        return [f"{whole}: the judge's replies have no scores"] if guesses else []

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``eval_results_new/<model>_<type>_gpt_score.csv``: an edit per row; ``…_combined_…``: all."""
        tables: dict[str, list[list[Any]]] = {type: [] for type in TYPES}
        for item, score in ((one.item, one.score) for one in scores.items if one.score):
            source = portable_path(self.sources(item)[0].path)
            row = [source, portable_path(item.path), item.data["prompt"]]
            row += [score.values["semantics"], score.values["quality"]]
            tables[item.data["type"]].append([*row, item.data["intersection"], item.data["language"]])
        tables["combined"] = [row for rows in tables.values() for row in rows]
        model = scores.items[0].item.model if scores.items else ""
        return {
            f"eval_results_new/{model}_{name}_gpt_score.csv": csv_text([_COLUMNS, *rows], "\r\n")
            for name, rows in tables.items()
        }


def _is_score(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _SCALE


def _is_in(one: ScoredItem, language: str) -> bool:
    return bool(one.item.data["language"] == language)
