"""Preference models on any prompts: each model scores all images in a column of its own.

``quirk`` comments mark odd behaviour of the official programs. A fix would change published numbers.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.prefer import unifiedreward
from benchmarks.prefer.models import DEFAULT, MODELS, WITH_TEXTS, question_of, value_of
from imageevalkit import registry
from imageevalkit.assets import Asset, BenchmarkFiles, FileAsset, PromptsAsset, asset_list, how_to_get
from imageevalkit.benchmark.answerer import digest
from imageevalkit.benchmark.contract import JUDGE, Answers, Benchmark, Measurer, Sample, Scores, Settings
from imageevalkit.benchmark.question import PILLOW, Answer, Picture, PixelRule, Question
from imageevalkit.common.errors import CellFailure, UserError, suggest
from imageevalkit.metrics import mean, mean_by, spread
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

KINDS = ("color", "shape", "texture", "spatial", "3d_spatial", "non_spatial", "numeracy", "complex")
SETS = {
    "pickscore": {"": "dataset/pickscore/test.txt"},
    "t2i-compbench": {kind: f"examples/dataset/{kind}_val.txt" for kind in KINDS},
}
"""The files of each published set of prompts, by group."""
_SIZES = {"pickscore": 2048, "t2i-compbench": 2400}
# quirk: the official programs drop transparency and ignore EXIF rotation
_CORRECTED = PixelRule("prefer", turned=True, on_white=("RGBA", "LA"))


@dataclass(frozen=True)
class PreferSettings(Settings):
    """``prompts`` is a published set ("pickscore", "t2i-compbench"), another benchmark, or a file: a text
    with a prompt per line, or a JSON list of texts. ``models`` selects models ("clipscore,aesthetic"); the
    default are all but UnifiedReward, which is a judge.
    ``weights`` maps names of their weights to paths or hub ids."""

    prompts: str = "pickscore"
    images_per_prompt: int = 1
    models: str = ",".join(DEFAULT)
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
    official_judges = unifiedreward.OFFICIAL
    has_corrected_rules = True
    unbounded = ("*",)
    settings_class = PreferSettings

    settings: PreferSettings

    def __init__(self, settings: PreferSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.source = self.settings.prompts
        self.models = self.headline = self.settings.chosen
        self.judge = self.judge or unifiedreward.DEFAULT if unifiedreward.NAME in self.models else ""
        self.images_per_prompt = self.settings.images_per_prompt
        self.prompt_count = _SIZES.get(self.source, 0)
        self.other: Benchmark | None = None
        if self.source not in (*SETS, self.name) and registry.benchmark_class(self.source):
            self.other = registry.make_benchmark(self.source, {}, "")
            self.prompt_count, self.images_per_prompt = self.other.prompt_count, self.other.images_per_prompt

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
    def assets(self) -> Sequence[Asset]:  # type: ignore[override]
        """The prompts of a published set, and the texts of the models. Another benchmark has its own prompts."""
        files = SETS.get(self.source, {}).values()
        prompts = [one for one in _listed("") if isinstance(one, FileAsset) and one.path in files]
        return [*prompts, *(one for name in WITH_TEXTS if name in self.models for one in _listed(f"_{name}"))]

    def files(self) -> BenchmarkFiles:
        return _Files(self.name, self.assets)

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        return self.files().prompts()

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """The judge's text only: the texts of other models must not change the judge's name."""
        key = unifiedreward.key_of(self.judge)
        return {key: self._texts[key]} if self.judge else {}

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        options = {"weights": dict(self.settings.weights)}
        found = ((name, MODELS[name].measurer) for name in self.models)
        return {name: Measurer(measurer, options) if measurer else JUDGE for name, measurer in found}

    @property
    def item_values(self) -> Sequence[str]:  # type: ignore[override]
        own = {unifiedreward.NAME: unifiedreward.values_of(self.judge)}
        return [value for name in self.models for value in own.get(name, [name])]

    @property
    def identity(self) -> Mapping[str, Any]:
        """The identity includes the prompts: scores of other prompts do not compare."""
        source = f"{self.source} {self.other.version}" if self.other else self.source
        if not self.other and self.source not in SETS:
            source = f"file {digest(self._lines(str(self._file)))[:16]}"
        return {**super().identity, "prompts": source}

    @property
    def _file(self) -> Path:
        return Path(self.source).expanduser().absolute()

    def _lines(self, file: str) -> list[str]:
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
            [(f"{group}/{n:05d}", group, text) for n, text in enumerate(self._lines(file))]
            for group, file in files.items()
        ]
        for name, group, text in spread(prompts):
            for repetition in range(self.images_per_prompt):
                file = f"images/{name.lstrip('/')}_{repetition}.png"
                yield Sample(file, text, repetition, {"group": group})

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images in the layouts of the benchmark that the prompts belong to."""
        return self.other.find_images(source, items) if self.other else None

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        image = image._replace(pixels=PILLOW if self.is_official else _CORRECTED)
        for name in self.models:
            if name == unifiedreward.NAME:
                [template] = self.prompts.values()
                yield unifiedreward.question(self.judge, template, image, item.prompt or "")
            else:
                yield question_of(name, image, item.prompt or "", self._texts)

    def parse(self, question: Question, answer: Answer) -> Mapping[str, float]:
        """Returns the values of the image by the model that the question's name says."""
        if question.name == unifiedreward.NAME:
            return unifiedreward.parse(self.judge, answer.text or "", self.is_official)
        return {question.name: value_of(question.name, answer)}

    def score(self, item: Item, answers: Answers) -> Score:
        values = {value: number for name in self.models for value, number in answers[name].value.items()}
        return Score(values, {"group": None if self.other else item.data["group"] or None})

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

        for name in self.item_values:
            top, values = MODELS[name.partition("/")[0]].top, [score.values[name] for score in scores]
            found[name] = mean(scores, name, top=top, cluster=prompt)
            found |= mean_by(scores, name, "group", prefix=f"{name}/", order=KINDS, top=top, cluster=prompt)
            if len(values) > 1:
                found[f"{name}/deviation"] = Metric(statistics.stdev(values), len(values), scale=top)
            if len({*images.values()}) > 1:
                whole = mean(scores, partial(part, name), weight=share, top=top, cluster=prompt)
                found[f"{name}/of_prompts"] = whole
        return found


class _Files(BenchmarkFiles):
    def explain(self, problems: Sequence[str]) -> str:
        # prefetch without the settings gets other files
        how = how_to_get(
            problems, "--ds_names prefer with the --ds_kwargs of this run", "benchmarks/prefer/data"
        )
        return f"benchmark prefer: {how}"


def _listed(end: str) -> list[FileAsset | PromptsAsset]:
    """Returns the assets in ``assets<end>.txt``. The texts of each list have a file of their own."""
    found = asset_list(Path(__file__).with_name(f"assets{end}.txt"))
    texts = f"prompts/texts{end}.json"
    return [one._replace(path=texts) if isinstance(one, PromptsAsset) else one for one in found]
