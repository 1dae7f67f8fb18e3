"""Preference models on any prompts: each model scores all images in a column of its own.

``quirk`` comments mark odd behaviour of the official programs. A fix would change published numbers.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imageevalkit import registry
from imageevalkit.assets import Asset, asset_list
from imageevalkit.benchmark.answerer import digest
from imageevalkit.benchmark.contract import (
    Answers,
    Benchmark,
    Measurer,
    Sample,
    Scores,
    Settings,
    Unparsed,
    json_value,
)
from imageevalkit.benchmark.question import PILLOW, Answer, Picture, PixelRule, Question, measure
from imageevalkit.common.errors import CellFailure, UserError, suggest
from imageevalkit.metrics import mean, mean_by, spread
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import is_number
from imageevalkit.store.results import Metric, Score


class Model(NamedTuple):
    """``measurer`` is a name in ``eval_models/measurers.py``. ``top`` is the end of the usual scale.

    If the answer is an object, ``key`` names the score in it.
    """

    measurer: str
    top: float
    key: str = ""
    takes_prompt: bool = True


MODELS = {
    "imagereward": Model("imagereward", 2.0),
    "pickscore": Model("pickscore", 26.0),
    "hpsv2.1": Model("hpsv2", 100.0, "v2.1"),
    "clipscore": Model("clipscore", 2.5),
    "aesthetic": Model("aesthetic_predictor", 10.0, takes_prompt=False),
}
KINDS = ("color", "shape", "texture", "spatial", "3d_spatial", "non_spatial", "numeracy", "complex")
SETS = {
    "pickscore": {"": "dataset/pickscore/test.txt"},
    "t2i-compbench": {kind: f"examples/dataset/{kind}_val.txt" for kind in KINDS},
}
"""The files of each published set of prompts, by group."""
_SIZES = {"pickscore": 2048, "t2i-compbench": 2400}
_ASSETS = {one.path: one for one in asset_list(Path(__file__).with_name("assets.txt"))}
# quirk: the official programs drop transparency and ignore EXIF rotation
_CORRECTED = PixelRule("prefer", turned=True, on_white=("RGBA", "LA", "PA", "P"))


@dataclass(frozen=True)
class PreferSettings(Settings):
    """``prompts`` is a published set ("pickscore", "t2i-compbench"), another benchmark, or a file: a text
    with a prompt per line, or a JSON list of texts. ``models`` selects models ("clipscore,aesthetic").
    ``weights`` maps names of their weights to paths or hub ids."""

    prompts: str = "pickscore"
    images_per_prompt: int = 1
    models: str = ",".join(MODELS)
    weights: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := [name for name in self.chosen if name not in MODELS]:
            near = suggest(unknown[0], MODELS)
            raise UserError(f"models has no '{unknown[0]}'{near}; known: {', '.join(MODELS)}")
        if not self.chosen or self.images_per_prompt < 1:
            raise UserError("models names at least one model, and images_per_prompt is at least 1")

    @property
    def chosen(self) -> list[str]:
        """The names of the chosen models, without duplicates."""
        return list(dict.fromkeys(self.models.replace(",", " ").replace(";", " ").split()))


class Prefer(Benchmark):
    """No number here is an average over models: their scales do not compare."""

    name, title = "prefer", "Preference models"
    version = "prefer-ac4c86e-1b70949"  # the commits of the two published sets of prompts
    has_corrected_rules = True
    unbounded = ("*",)
    settings_class = PreferSettings

    settings: PreferSettings

    def __init__(self, settings: PreferSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.source = self.settings.prompts
        self.models = self.headline = self.item_values = self.settings.chosen
        self.images_per_prompt = self.settings.images_per_prompt
        self.prompt_count = _SIZES.get(self.source, 0)
        self.other: Benchmark | None = None
        if self.source not in (*SETS, self.name) and registry.benchmark_class(self.source):
            self.other = registry.make_benchmark(self.source, {}, "")
            self.prompt_count, count = self.other.prompt_count, self.other.images_per_prompt
            self.images_per_prompt = count

    @property
    def assets(self) -> Sequence[Asset]:  # type: ignore[override]
        """The files of a published set. Another benchmark has its own."""
        return [_ASSETS[path] for path in SETS.get(self.source, {}).values()]

    def check(self) -> None:
        if self.other and (self.other.task != "t2i" or self.settings.images_per_prompt != 1):
            raise UserError(
                f"benchmark prefer: with prompts={self.source}, a text-to-image benchmark is needed, and its own "
                "number of images per prompt counts: leave out images_per_prompt"
            )
        if not self.other and self.source not in SETS and not self._file.is_file():
            raise UserError(
                f"benchmark prefer: prompts={self.source} is no file{suggest(self.source, SETS)}; name a file, a "
                f"benchmark, or one of {', '.join(SETS)}"
            )

    @property
    def _file(self) -> Path:
        return Path(self.source).expanduser().absolute()

    def _texts(self, file: str) -> list[str]:
        if file.endswith(".json"):
            texts = self.read_json(file)
        else:
            lines = (line.strip() for line in self.read_text(file).split("\n"))
            texts = [line for line in lines if line]
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise CellFailure(f"benchmark prefer: {file} must hold prompts: lines, or a JSON list of texts")
        return texts

    def samples(self) -> Iterable[Sample]:
        if self.other:
            yield from self.other.samples()
            return
        files = SETS.get(self.source, {"": str(self._file)})
        prompts = [
            list(enumerate((group, text) for text in self._texts(file))) for group, file in files.items()
        ]
        for n, (group, text) in spread(prompts):
            for repetition in range(self.images_per_prompt):
                file = f"images/{group}/{n:05d}_{repetition}.png".replace("//", "/")
                yield Sample(file, text, repetition, {"group": group})

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the layouts of the benchmark that the prompts belong to."""
        return self.other.find_images(source, items) if self.other else None

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        options = {"weights": dict(self.settings.weights)}
        return {name: Measurer(MODELS[name].measurer, options) for name in self.models}

    @property
    def identity(self) -> Mapping[str, Any]:
        """The identity includes the prompts: scores of other prompts do not compare."""
        source = f"{self.source} {self.other.version}" if self.other else self.source
        if not self.other and self.source not in SETS:
            source = f"file {digest(self._texts(str(self._file)))[:16]}"
        return {**super().identity, "prompts": source}

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        image = image._replace(pixels=PILLOW if self.settings.rules == "official" else _CORRECTED)
        for name in self.models:
            yield measure(name, image, *([item.prompt or ""] if MODELS[name].takes_prompt else []))

    def parse(self, question: Question, answer: Answer) -> float:
        """Returns the score of the image by the model that the question's name says."""
        value, key = json_value(answer), MODELS[question.name].key
        if key and isinstance(value, Mapping):
            value = value.get(key)
        if not is_number(value):
            raise Unparsed("the record holds no number")
        return float(value)

    def score(self, item: Item, answers: Answers) -> Score:
        group = "" if self.other else item.data["group"]
        return Score({name: answers[name].value for name in self.models}, {"group": group or None})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns, by model, the mean over all images, and as ``<model>/<group>`` over a group of prompts.

        ``<model>/deviation`` is the standard deviation over images. ``<model>/of_prompts``, the mean over
        prompts of the means of their images, is there if some prompts have more images than others.
        """
        prompt_of = {one.item.id: one.item.prompt for one in scores.items}
        images = Counter(prompt_of[score.item] for score in scores)
        found = dict[str, Metric]()

        def prompt(score: Score) -> str | None:
            return prompt_of[score.item]

        def share(score: Score) -> float:
            return 1 / images[prompt_of[score.item]]

        def part(name: str, score: Score) -> float:
            return score.values[name] * share(score)

        for name in self.models:
            top, values = MODELS[name].top, [score.values[name] for score in scores]
            found[name] = mean(scores, name, top=top, cluster=prompt)
            found |= mean_by(scores, name, "group", prefix=f"{name}/", order=KINDS, top=top, cluster=prompt)
            if len(values) > 1:
                found[f"{name}/deviation"] = Metric(statistics.stdev(values), len(values), scale=top)
            if len({*images.values()}) > 1:
                whole = mean(scores, partial(part, name), weight=share, top=top, cluster=prompt)
                found[f"{name}/of_prompts"] = whole
        return found
