"""HPSv2 (arXiv 2306.09341): 3,200 prompts in four styles, by a CLIP that was trained on people's choices.

``quirk`` comments name what a reader would otherwise mend, and with it change published numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from imageevalkit.assets import file_table, github
from imageevalkit.benchmark.contract import (
    Answers,
    Benchmark,
    Sample,
    Scores,
    Settings,
    Unparsed,
    grouped,
    json_value,
    spread,
)
from imageevalkit.benchmark.question import Answer, Picture, Question, measure
from imageevalkit.cell.items import Item
from imageevalkit.cell.jsonl import Shape
from imageevalkit.cell.results import Metric, Score
from imageevalkit.errors import UserError
from imageevalkit.metrics import arithmetic_mean, mean, mean_by

STYLES = ("anime", "concept-art", "paintings", "photo")
VERSIONS = ("v2.1", "v2.0")  # of the model; their scales do not compare
_CHUNK = 80
_QUESTION = "preference"


@dataclass(frozen=True)
class HPSv2Settings(Settings):
    """``antialias`` False shrinks images as torchvision did by default before 0.17, and as numbers published before
    2024 were measured. ``weights`` is the place of the models', by its name."""

    antialias: bool = True
    weights: Mapping[str, str] = field(default_factory=dict)


class HPSv2(Benchmark):
    """One image of each prompt, in the official folders of the styles."""

    name = "hpsv2"
    version = "hpsv2-866735e"  # prompts and rules are those of tgxs002/HPSv2 at this commit
    assets = github(
        "PenghaoYin/ImageEvalKit",
        "85b5e1511b867688fa37edee304ee0adc953e941",
        file_table(
            "prompts_extracted.json 525309 51f0c1acdbe5d4e51edb2761e2a931c384b9e2896e6e9a62ee7d59d808b8730d",
            "benchmarks/HPSv2/",
        ),
        licence="Apache-2.0 (tgxs002/HPSv2)",
    )
    prompt_count = 3200
    judge = "hpsv2"
    takes = "preference"
    headline = VERSIONS
    has_corrected_rules = True
    unbounded = ("*",)  # a cosine may be below 0
    settings_class = HPSv2Settings

    settings: HPSv2Settings

    @property
    def judge_options(self) -> Mapping[str, Any]:
        return {"antialias": self.settings.antialias, "weights": self.settings.weights}

    def parse(self, question: Question, answer: Answer) -> dict[str, float]:
        """The numbers by version."""
        try:
            numbers = Shape[dict[str, float]](dict.fromkeys(VERSIONS, float)).read(json_value(answer))
        except ValueError as error:
            raise Unparsed(f"the record holds no numbers of the versions: {error}") from None
        return {version: numbers[version] for version in VERSIONS}

    @property
    def identity(self) -> Mapping[str, Any]:
        return {**super().identity, **({} if self.settings.antialias else {"antialias": False})}

    def check(self) -> None:
        """Raises UserError: a judge is to say what only a number of the model is."""
        if self.backend:
            raise UserError(
                f"benchmark hpsv2: the model of that name measures, not the judge '{self.judge}': leave --judges out"
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
        """The cosine of image and prompt, in percent, by version."""
        value = answers[_QUESTION].value
        keys = {key: item.data[key] for key in ("style", "index")}
        return Score({version: value[version] for version in VERSIONS}, keys)

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """By version, in percent: ``v2.1`` the mean of all images, ``v2.1/anime``, … of a style.

        Official rules: that of a style is the mean of means of 80 images in the order of the prompts (quirk: the last
        of them may be of fewer).
        """
        ordered = sorted(scores, key=lambda score: (STYLES.index(score.keys["style"]), score.keys["index"]))
        found: dict[str, Metric] = {}
        for version in VERSIONS:
            found[version] = mean(ordered, version, top=100.0)
            styles = mean_by(ordered, version, "style", prefix=f"{version}/", top=100.0)
            if self.settings.rules == "official":
                for style, mine in grouped(ordered, lambda score: score.keys["style"]).items():
                    name = f"{version}/{style}"
                    chunks = _chunk_means([score.values[version] for score in mine])
                    styles[name] = replace(styles[name], value=arithmetic_mean(chunks))
            found |= styles
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``v2.1.txt``, ``v2.0.txt``: what the official program prints for each version."""
        ordered = sorted(scores, key=lambda score: (STYLES.index(score.keys["style"]), score.keys["index"]))
        files = {}
        for version in VERSIONS:
            lines = ["-----------benchmark score ---------------- "]
            for style, mine in grouped(ordered, lambda score: score.keys["style"]).items():
                chunks = _chunk_means([score.values[version] for score in mine])
                deviation = statistics.pstdev(chunks)
                lines.append(f"images {style:<15} {arithmetic_mean(chunks):.2f} \t {deviation:.4f}")
            if ordered:
                average = arithmetic_mean(score.values[version] for score in ordered)
                lines.append(f"images {'Average':<15} {average:.2f} \t")
            files[f"{version}.txt"] = "\n".join(lines) + "\n"
        return files


def _chunk_means(values: Sequence[float]) -> list[float]:
    return [arithmetic_mean(values[n : n + _CHUNK]) for n in range(0, len(values), _CHUNK)]
