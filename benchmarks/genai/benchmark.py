"""GenAI-Bench (arXiv 2406.13743): 1,600 compositional prompts, or 527 of the VQAScore paper; metric VQAScore.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed, json_value
from imageevalkit.benchmark.question import Answer, Picture, Question, ask, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.metrics import grouped, mean, only_if, spread
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import is_number
from imageevalkit.store.results import Metric, Score

_BASIC = ("attribute", "scene", "spatial relation", "action relation", "part relation", "basic")
_ADVANCED = ("counting", "comparison", "differentiation", "negation", "universal", "advanced")
TAGS = (*_BASIC, *_ADVANCED)
_TABLES = {"basic": _BASIC, "advanced": _ADVANCED, "overall": ("basic", "advanced", "all")}
_FOLDERS = {1600: "genai1600", 527: "genai_527"}
_QUESTION = "vqascore"
_MODELS = "benchmarks/genai/t2v_metrics/models"
TEMPLATE = f"{_MODELS}/vqascore_models/clip_t5_model.py::default_question_template"
SYSTEM = "benchmarks/genai/t2v_metrics/constants.py::SYSTEM_MSG"


@dataclass(frozen=True)
class GenAISettings(Settings):
    """``prompts`` selects the set: 1600 of GenAI-Bench, or 527 of the earlier VQAScore paper. ``weights``
    maps names of CLIP-FlanT5 weights to paths or hub ids."""

    prompts: Literal[1600, 527] = field(default=1600, metadata={"decides": True})
    weights: Mapping[str, str] = field(default_factory=dict)


class GenAI(Benchmark):
    """One image per prompt. ``--judges`` may replace CLIP-FlanT5 with a judge that returns token
    probabilities."""

    name, title = "genai", "GenAI-Bench"
    version = "genai-85b5e15"  # data and question are from the kit at this commit
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    judge = "clip-flant5-xxl"
    takes = "vqascore"
    headline = ("basic", "advanced", "all")
    item_values = ("vqascore",)
    needs_all_items = "two of its scores cover only some of the images"
    official_headline = ("basic_official", "advanced_official", "all_official")
    has_corrected_rules = True
    settings_class = GenAISettings

    settings: GenAISettings

    def __init__(self, settings: GenAISettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.prompt_count = self.settings.prompts

    @property
    def judge_options(self) -> Mapping[str, Any]:
        return {"system": self.prompts[SYSTEM], "weights": self.settings.weights}

    def samples(self) -> Iterable[Sample]:
        """Yields the samples, skills interleaved in proportion to their sizes. A prompt belongs to its rarest
        skill."""
        folder = _FOLDERS[self.prompt_count]
        prompts = self.read_json(f"{folder}/genai_image.json", self.prompt_count)
        skills = self.read_json(f"{folder}/genai_skills.json")
        tags: dict[str, list[str]] = {key: [] for key in prompts}
        for tag, numbers in skills.items():
            for number in numbers:
                tags[f"{number:05d}"].append(tag)
        sizes = {tag: len(numbers) for tag, numbers in skills.items()}
        of_skill = grouped(prompts, lambda key: min(tags[key], key=sizes.__getitem__, default=""))
        for key in spread(of_skill.values()):
            data = {"id": key, "tags": tags[key]}
            yield Sample(f"{self._folder}/{int(key):09d}.jpg", prompts[key]["prompt"], data=data)

    @property
    def _folder(self) -> str:
        # a number means a different prompt in each set, so the sets cannot share a folder
        return "images" if self.settings.prompts == 1600 else "images_527"

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        """Finds images by prompt number, with any digit count: ``000000000.jpg``, or
        ``<model>/00000.jpeg``.

        Raises CellFailure if number 0 exists with the 527 prompts, whose numbers begin with 1.
        """
        # the driver imports this module before packages are installed
        from imageevalkit.benchmark.image_files import only_one
        from imageevalkit.common.images import IMAGE_SUFFIXES

        def found(folder: Path) -> dict[int, list[Path]]:
            files = (path for path in sorted(folder.glob("*")) if path.suffix.lower() in IMAGE_SUFFIXES)
            return grouped((path for path in files if path.stem.isdecimal()), lambda path: int(path.stem))

        numbers = {item.id: int(item.data["id"]) for item in items}
        folders = (source / self._folder, source, source / items[0].model, source / "images")
        files = max(map(found, folders), key=lambda files: len(files.keys() & {*numbers.values()}))
        if self.settings.prompts == 527 and 0 in files:
            raise CellFailure(
                f"benchmark genai: {files[0][0]} belongs to the 1,600 prompts (the 527 begin with 1): "
                "leave out prompts=527"
            )
        return {id: only_one(files[number]) for id, number in numbers.items() if number in files} or None

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        # the text is a template that contains a template, so format runs twice
        text = self.prompts[TEMPLATE].format().format(item.prompt)
        return [
            ask(_QUESTION, image, text, choices=("Yes",)) if self.backend else measure(_QUESTION, image, text)
        ]

    def parse(self, question: Question, answer: Answer) -> float:
        """Returns the probability of "Yes", 0-1. CLIP-FlanT5 returns its geometric mean with the end token's
        (quirk)."""
        value: Any = (answer.probabilities or {}).get("Yes") if self.backend else json_value(answer)
        if not is_number(value):
            raise Unparsed("the record holds no probability")
        return float(value)

    def score(self, item: Item, answers: Answers) -> Score:
        return Score(
            {"vqascore": answers[_QUESTION].value}, {"id": item.data["id"], "tags": item.data["tags"]}
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the mean VQAScore (0-1) of each tag and, as ``all``, of all images.

        Official rules count only images with a tag in ``all`` (quirk: seven of the 1,600 prompts have no
        tag). They add ``basic_official`` and so on, without a value if an image is missing: the official
        program stops there.
        """
        found = {tag: mean([one for one in scores if tag in one.keys["tags"]], "vqascore") for tag in TAGS}
        found["all"] = mean([one for one in scores if one.keys["tags"] or not self.is_official], "vqascore")
        if self.is_official:
            whole = len(scores) == self.prompt_count
            found |= {f"{name}_official": only_if(whole, found[name]) for name in self.headline}
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``results.txt`` has the official tables (mean and standard deviation by tag); ``scores.json``
        scores by id."""
        values = {
            tag: [one.values["vqascore"] for one in scores if tag in one.keys["tags"]] for tag in TAGS
        } | {"all": [one.values["vqascore"] for one in scores if one.keys["tags"]]}
        model = next((one.item.model for one in scores.items), "")
        lines = []
        for name, tags in _TABLES.items():
            cells = [f"{_mean_and_deviation(values[tag]):<17}" for tag in tags]
            header = " ".join(f"{tag:<17}" for tag in tags)
            lines += [
                f"Tag Group: {name} (metric performance)",
                f"{'Model':<17}{header}",
                f"{model:<17}{' '.join(cells)}",
                "",
                "",
            ]
        by_id = {one.keys["id"]: one.values["vqascore"] for one in scores}
        return {
            "results.txt": "\n".join(lines) + "\n",
            "scores.json": json.dumps(dict(sorted(by_id.items()))),
        }


def _mean_and_deviation(values: Sequence[float]) -> str:
    """Returns "mean+-deviation" with 6 decimals. The deviation is the sample standard deviation (n - 1)."""
    if not values:
        return "nan+-nan"
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.6f}+-{deviation:.6f}"
