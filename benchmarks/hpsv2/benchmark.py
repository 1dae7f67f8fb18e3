"""HPSv2 (arXiv 2306.09341): 3,200 prompts in four styles, scored by a CLIP trained on human preferences.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import (
    Answers,
    Benchmark,
    Sample,
    Scores,
    Settings,
    Unparsed,
    measurement,
)
from imageevalkit.benchmark.question import Answer, Picture, Question, measure
from imageevalkit.common.errors import UserError
from imageevalkit.metrics import arithmetic_mean, grouped, groups, mean, spread
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import Number, Reader
from imageevalkit.store.results import Metric, Score

STYLES = ("anime", "concept-art", "paintings", "photo")
VERSIONS = ("v2.1", "v2.0")  # versions of the HPSv2 model; their scales are not comparable
_CHUNK = 80
_QUESTION = "preference"
_NUMBERS = Reader(dict[str, Number])


@dataclass(frozen=True)
class HPSv2Settings(Settings):
    """``antialias=False`` resizes images as torchvision did by default before 0.17: use it to compare with
    numbers published before 2024. ``weights`` maps names of model weights to paths or hub ids."""

    antialias: bool = field(default=True, metadata={"decides": True})
    weights: Mapping[str, str] = field(default_factory=dict)


class HPSv2(Benchmark):
    """One image per prompt, in the official folder of its style."""

    name, title = "hpsv2", "HPSv2"
    version = "hpsv2-866735e"  # prompts and rules are from tgxs002/HPSv2 at this commit
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count = 3200
    judge = "hpsv2"
    takes = "preference"
    headline = VERSIONS
    item_values = VERSIONS
    has_corrected_rules = True
    unbounded = ("*",)  # a cosine can be negative
    settings_class = HPSv2Settings

    settings: HPSv2Settings

    @property
    def judge_options(self) -> Mapping[str, Any]:
        return {"antialias": self.settings.antialias, "weights": self.settings.weights}

    def parse(self, question: Question, answer: Answer) -> dict[str, float]:
        """Returns the HPSv2 score of the image by model version."""
        numbers = measurement(answer, _NUMBERS)
        if missing := [version for version in VERSIONS if version not in numbers]:
            raise Unparsed(f"the record holds no measurement: '{missing[0]}' is missing")
        return {version: numbers[version] for version in VERSIONS}

    def check(self) -> None:
        """Raises UserError if ``--judges`` names a judge: only the HPSv2 model computes this score."""
        if self.backend:
            raise UserError(
                f"benchmark hpsv2: the HPSv2 model scores it, not the judge '{self.judge}': leave out --judges"
            )

    def samples(self) -> Iterable[Sample]:
        prompts = grouped(
            self.read_json("prompts_extracted.json", self.prompt_count), lambda row: row["style"]
        )
        for row in spread(prompts[style] for style in STYLES):
            file = f"images/{row['style']}/{row['idx']:05d}.jpg"
            yield Sample(file, row["prompt"], data={"style": row["style"], "index": row["idx"]})

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return [measure(_QUESTION, image, item.prompt or "")]

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the cosine of image and prompt, in percent, by model version."""
        value = answers[_QUESTION].value
        keys = {key: item.data[key] for key in ("style", "index")}
        return Score({version: value[version] for version in VERSIONS}, keys)

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns, in percent, ``v2.1`` and ``v2.0``, the means over all images, and ``v2.1/anime``, … by
        style.

        With official rules the value of a style is the mean over chunks of 80 images in prompt order. (Quirk:
        the last chunk may be smaller.)
        """
        of_styles, found = _of_styles(scores), dict[str, Metric]()
        for version in VERSIONS:
            found[version] = mean(chain(*of_styles.values()), version, top=100.0)
            for style, mine in of_styles.items():
                metric = mean(mine, version, top=100.0)
                if self.is_official:
                    metric = replace(metric, value=arithmetic_mean(_chunk_means(mine, version)))
                found[f"{version}/{style}"] = metric
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``v2.1.txt`` and ``v2.0.txt``: the output of the official program for each version."""
        of_styles, files = _of_styles(scores), dict[str, str]()
        for version in VERSIONS:
            lines = ["-----------benchmark score ---------------- "]
            for style, mine in of_styles.items():
                chunks = _chunk_means(mine, version)
                deviation = statistics.pstdev(chunks)
                lines.append(f"images {style:<15} {arithmetic_mean(chunks):.2f} \t {deviation:.4f}")
            if of_styles:
                average = arithmetic_mean(score.values[version] for score in chain(*of_styles.values()))
                lines.append(f"images {'Average':<15} {average:.2f} \t")
            files[f"{version}.txt"] = "\n".join(lines) + "\n"
        return files


def _of_styles(scores: Scores) -> dict[str, list[Score]]:
    """Returns the scores of each style, in prompt order."""
    return groups(sorted(scores, key=lambda score: score.keys["index"]), "style", STYLES)


def _chunk_means(scores: Sequence[Score], version: str) -> list[float]:
    values = [score.values[version] for score in scores]
    return [arithmetic_mean(values[n : n + _CHUNK]) for n in range(0, len(values), _CHUNK)]
