"""DPG-Bench (arXiv 2403.05135): 1,065 long prompts, each with yes/no questions that depend on each other.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import (
    Answers,
    Benchmark,
    Sample,
    ScoredItem,
    Scores,
    Settings,
    Unparsed,
    json_value,
)
from imageevalkit.benchmark.question import Answer, Picture, Question, ask, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.grids import Grid
from imageevalkit.common.redaction import one_line
from imageevalkit.metrics import arithmetic_mean, grouped, mean, mean_by, points, spread
from imageevalkit.store.cell import portable_path
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

_QUESTIONS = "dpgbench.csv"
_GRID = Grid(2, 2, whole=True)
_WORD = re.compile(r"[a-z]+")


class Proposition(NamedTuple):
    """One yes/no question about a prompt. It counts as answered no if the answer to one of its parents is no.

    ``parents`` holds question numbers (0: no parent); ``kind`` is a category such as "entity - whole".
    """

    question: str
    parents: Sequence[int]
    kind: str


@dataclass(frozen=True)
class DPGBenchSettings(Settings):
    """``weights`` maps the name of the mPLUG model to a local path."""

    weights: Mapping[str, str] = field(default_factory=dict)


class DPGBench(Benchmark):
    """Four images per prompt. mPLUG answers the questions; with ``--judges`` the metric is a different
    one."""

    name, title = "dpgbench", "DPG-Bench"
    version = "dpgbench-85b5e15"  # the data are from the kit at this commit
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count, images_per_prompt = 1065, 4
    judge = "mplug"
    takes = "vqa"
    headline = ("overall",)
    item_values = ("score",)
    official_headline = ("overall_official",)
    has_corrected_rules = True
    settings_class = DPGBenchSettings

    settings: DPGBenchSettings

    @property
    def judge_options(self) -> Mapping[str, Any]:
        return {"weights": self.settings.weights}

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """Returns our own prompt for a judge. mPLUG needs none: it gets the bare question."""
        return {"question": "{question} Answer with yes or no alone."} if self.backend else {}

    def samples(self) -> Iterable[Sample]:
        """Yields the samples. The prompt sources are interleaved in proportion to their sizes."""
        prompts = [
            (file.removesuffix(".txt"), text)
            for file, text in self.read_json("dpgbench_prompts.json", self.prompt_count).items()
        ]
        sources = grouped(prompts, lambda pair: re.sub(r"\d+$", "", pair[0]))
        for name, prompt in spread(sources.values()):
            for repetition in range(self.images_per_prompt):
                data = {"prompt_id": name, "repetition": repetition}
                yield Sample(f"images/{name}/{repetition}.png", prompt, repetition, data)

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds the cells of the official grid ``<prompt>.png``; without a grid, the files
        ``<prompt>/<repetition>.png``.

        The grid has priority because the official program reads only the grid.
        """
        # the driver imports this module before packages are installed
        from imageevalkit.benchmark.image_files import Place, only_one
        from imageevalkit.common.images import IMAGE_SUFFIXES

        def found(folder: Path) -> dict[str, Place]:
            files = (file for depth in ("*", "*/*") for file in sorted(folder.glob(depth)))
            named = grouped(
                (file for file in files if file.suffix.lower() in IMAGE_SUFFIXES),
                lambda file: file.relative_to(folder).with_suffix("").as_posix(),
            )
            places = dict[str, Place]()
            for item in items:
                name, repetition = item.data["prompt_id"], item.data["repetition"]
                if grids := named.get(name):
                    places[item.id] = only_one(grids, _GRID, repetition)
                elif own := named.get(f"{name}/{repetition}"):
                    places[item.id] = only_one(own)
            return places

        return max(map(found, (source, source / "images")), key=len) or None

    @cached_property
    def _propositions(self) -> dict[str, dict[int, Proposition]]:
        """The questions of each prompt, by question number, in file order. Raises CellFailure if the file is
        invalid."""
        rows = self.read_csv(_QUESTIONS)
        found: dict[str, dict[int, Proposition]] = {}
        before = ""
        with self.content_of(_QUESTIONS):
            for row in rows[1:] if self.is_official else rows:  # quirk: row 1 is read as a header
                name = row["item_id"]
                if name not in found or (self.is_official and name != before):
                    found[name] = {}  # quirk: if a prompt's rows are not adjacent, only its last block counts
                parents = [int(number) for number in row["dependency"].split(",")]
                kind = row["tuple"].partition("(")[0].strip()
                question = row["question_natural_language"]
                found[name][int(row["proposition_id"])] = Proposition(question, parents, kind)
                before = name
        return found

    def _of(self, item: Item) -> Mapping[int, Proposition]:
        name = item.data["prompt_id"]
        if name not in self._propositions:
            raise CellFailure(f"benchmark dpgbench: {_QUESTIONS} has no questions about prompt {name}")
        return self._propositions[name]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        for number, proposition in self._of(item).items():
            name, text = f"question/{number}", proposition.question
            if self.backend:
                # the answer is one word, but some judges think first
                words = self.prompts["question"].format(question=text)
                yield ask(name, image, words, max_tokens=2048)
            else:
                yield measure(name, image, text)

    def parse(self, question: Question, answer: Answer) -> int:
        """Returns 1 for yes, 0 for no. mPLUG must answer exactly "yes" (quirk); for a judge the first word
        counts."""
        text = answer.text if self.backend else json_value(answer)
        if not isinstance(text, str):
            raise Unparsed("the record holds no words")
        if not self.backend:
            return int(text == "yes")
        word = _WORD.search(text.lower())
        if word is None or word[0] not in ("yes", "no"):
            raise Unparsed(f"neither yes nor no in '{text[:100]}'")
        return int(word[0] == "yes")

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the share of questions that count as yes: a no to a parent also makes its children a no.

        Each question is one point of the score. The score has no value where the official program fails: a
        question depends on the question that the program skipped as a header (quirk).
        """
        propositions = self._of(item)
        raw = {number: answers[f"question/{number}"].value for number in propositions}
        counted = _counted(raw, propositions, is_official=self.is_official)
        keys = {key: item.data[key] for key in ("prompt_id", "repetition")}
        if counted is None:
            return Score({}, keys, {"left out": "a question depends on one that the official program skips"})
        kinds = {number: proposition.kind for number, proposition in propositions.items()}
        return Score(
            {"score": arithmetic_mean(counted.values())},
            keys,
            {one.question: "yes" if raw[number] else "no" for number, one in propositions.items()},
            [
                Score(
                    {"raw": raw[number], "counted": counted[number]},
                    {"l1": kind.partition("-")[0].strip(), "l2": kind},
                )
                for number, kind in kinds.items()
            ],
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics by name, in percent. Confidence intervals treat the images of a prompt as one
        cluster.

        * ``overall``: the mean over all images. Official rules leave out prompts at which the official
          program fails (quirk) and add ``overall_official``: the mean over prompts with four images.
        * ``l1/<category>``, ``l2/<category>``: the share of yes. Official rules use only the last image of
          each prompt with four images, and ignore dependencies (quirk). Corrected rules use all images, and a
          question with a parent answered no counts as no; ``l1_raw`` and ``l2_raw`` ignore dependencies.
        """
        of_prompt = grouped(scores, lambda score: score.keys["prompt_id"])
        counted = [mine for mine in of_prompt.values() if all(one.values for one in mine)]
        options: dict[str, Any] = {"percent": True, "cluster": "prompt_id"}
        found = {"overall": mean(chain(*counted), "score", **options)}
        if self.is_official:
            whole = [*chain(*(mine for mine in counted if len(mine) == self.images_per_prompt))]
            found["overall_official"] = mean(whole, "score", **options)
            last = points(score for score in whole if score.keys["repetition"] == self.images_per_prompt - 1)
        for level in ("l1", "l2"):
            if self.is_official:
                found |= mean_by(last, "raw", level, prefix=f"{level}/", **options)
            else:
                found |= mean_by(points(scores), "counted", level, prefix=f"{level}/", **options)
                found |= mean_by(points(scores), "raw", level, prefix=f"{level}_raw/", **options)
        return found

    def notes(self, scores: Scores) -> Sequence[str]:
        lost = sorted({score.keys["prompt_id"] for score in scores if not score.values})
        if not lost:
            return ()
        return [
            f"no image of {', '.join(lost)} counts, because the official program fails there "
            "(rules=corrected counts them)"
        ]

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``dpgbench.txt`` has a line per prompt with four images, then the scores. ``dpgbench_detail.txt``
        has a line per question; the line names the image's own file and its full size instead of a grid and a
        cell."""
        metrics = self.metrics(scores)
        of_prompt = grouped(scores.items, lambda one: one.item.data["prompt_id"])
        lines, details = [], []
        for items in of_prompt.values():
            done = sorted((one for one in items if one.score), key=lambda one: one.item.data["repetition"])
            details += [line for one in done for line in self._detail(one)]
            values = [one.score.values["score"] for one in done if one.score and one.score.values]
            if len(values) == self.images_per_prompt:
                shown = ", ".join(map(str, [*values, arithmetic_mean(values)]))
                lines.append(f"{portable_path(items[0].item.path.parent)}.png, {shown}")
        first = scores.items[0].item
        lines.append(f"Model: {first.model}")
        for level in ("l1", "l2"):
            lines.append(f"{level.upper()} category scores:")
            named = {
                key.partition("/")[2]: metric.value
                for key, metric in metrics.items()
                if key.startswith(f"{level}/")
            }
            lines += [f"\t{key}: {named[key]}" for key in sorted(named)]
        headline = metrics.get("overall_official", metrics["overall"])
        value = math.nan if headline.value is None else headline.value
        lines += [
            f"Image path: {portable_path(first.path.parent.parent)}",
            "Save results to: dpgbench.txt",
            f"DPG-Bench score: {value}",
        ]
        return {"dpgbench.txt": "\n".join(lines) + "\n", "dpgbench_detail.txt": "\n".join(details) + "\n"}

    def _detail(self, one: ScoredItem) -> list[str]:
        from imageevalkit.common.images import (
            opened,  # the driver imports this module before packages are installed
        )

        file = one.image or one.item.path
        where = f"{portable_path(file)}, {(0, 0, *opened(file).size)}"
        values_by_question = {
            name: text if self.backend else json.loads(text) for name, text in one.replies.items()
        }
        return [
            f"{where}, {proposition.question}, {one_line(values_by_question[f'question/{number}'])}"
            for number, proposition in self._of(one.item).items()
        ]


def _counted(
    raw: Mapping[int, int], propositions: Mapping[int, Proposition], *, is_official: bool
) -> dict[int, int] | None:
    """Returns the answers by question number; an answer becomes 0 if the answer to one of its parents is 0.

    Official rules make one pass in file order: a parent that becomes 0 does not change a child before it
    (quirk). Official rules return None if a parent does not exist.
    """
    counted = dict(raw)
    for _ in range(1 if is_official else len(raw)):
        for number, proposition in propositions.items():
            for parent in filter(None, proposition.parents):
                if parent not in counted and is_official:
                    return None
                if not counted.get(parent, 1):
                    counted[number] = 0
                    break
    return counted
