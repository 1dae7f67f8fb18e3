"""CVTG-2K (arXiv 2503.23461): 2,000 prompts, each with two to five short English texts in one image.

``quirk`` comments mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cvtg2k.words import (
    common,
    corrected_match,
    folded,
    official_match,
    quoted_words,
    stripped,
)
from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import (
    JUDGE,
    Answers,
    Benchmark,
    Measurer,
    Sample,
    Scores,
    Settings,
    Unparsed,
)
from imageevalkit.benchmark.question import PILLOW, Answer, Picture, PixelRule, Question, measure
from imageevalkit.common.errors import UserError
from imageevalkit.metrics import Value, groups, mean, mean_by, spread
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import is_number
from imageevalkit.store.results import Metric, Score

CELLS = [(subset, regions) for subset in ("CVTG", "CVTG-Style") for regions in (2, 3, 4, 5)]
_ENCODERS = {"clipscore": "clipscore-l14", "aesthetic": "aesthetic_predictor-v1"}


def _once(score: Score) -> float:
    return 1


_MEANS: Mapping[str, tuple[str, Value, float]] = {
    "word_accuracy": ("correct", "total", 1.0),
    "ned": ("ned", "total", 1.0),
    "clipscore": ("clipscore", _once, 2.5),
    "aesthetic": ("aesthetic", _once, 10.0),
}
"""The value, the weight and the highest value of each metric."""
_CORRECTED_MEANS: Mapping[str, tuple[str, Value, float]] = {
    **_MEANS,
    "word_precision": ("correct", "read", 1.0),
    "word_accuracy_stripped": ("correct_stripped", "total", 1.0),
}
# quirk: the official program drops transparency and ignores EXIF rotation
_CORRECTED = PixelRule("cvtg2k", turned=True, on_white=("RGBA", "LA"))


@dataclass(frozen=True)
class CVTGSettings(Settings):
    """``weights`` maps names of model weights to paths or hub ids."""

    weights: Mapping[str, str] = field(default_factory=dict)


class CVTG2K(Benchmark):
    """The OCR model reads the image, CLIP compares it with the prompt. A judge cannot replace them."""

    name, title = "cvtg2k", "CVTG-2K"
    version = "cvtg-2k-b58a62f"  # prompts and rules are the authors', from zlab-princeton/i1 at this commit
    hub_dataset = "dnkdnk/CVTG-2K"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    prompt_count = 2000
    judge = "paddleocr"
    takes = "reader"
    headline = ("word_accuracy", "ned", "clipscore")
    official_headline = tuple(f"{name}_official" for name in headline)
    unbounded = ("aesthetic*",)
    needs_all_items = "prompts with more words weigh more in its scores"
    has_corrected_rules = True
    settings_class = CVTGSettings

    settings: CVTGSettings

    @property
    def item_values(self) -> Sequence[str]:  # type: ignore[override]
        more = () if self.is_official else ("read", "correct_stripped")
        return ("correct", "total", "ned", *_ENCODERS, *more)

    @property
    def measurers(self) -> Mapping[str, Measurer]:
        options = {"weights": dict(self.settings.weights)}
        return {"text": JUDGE, **{name: Measurer(model, options) for name, model in _ENCODERS.items()}}

    @property
    def judge_options(self) -> Mapping[str, Any]:
        return {"weights": self.settings.weights} if self.judge == type(self).judge else {}

    def check(self) -> None:
        if self.backend:
            raise UserError(
                f"benchmark cvtg2k: an OCR model reads its images ({', '.join(self.readers)}), not the judge "
                f"'{self.judge}': leave out --judges"
            )

    def samples(self) -> Iterable[Sample]:
        cells = []
        for subset, regions in CELLS:
            file = f"{subset}/{regions}.json"
            with self.content_of(file):
                cells.append([(subset, regions, row) for row in self.read_json(file)["data_list"]])
        for subset, regions, row in spread(cells):
            # a prompt rewriter must not change the expected words
            data = {"subset": subset, "regions": regions, "prompt": row["prompt"], "index": row["index"]}
            yield Sample(f"images/{subset}/{regions}/{row['index']}.png", row["prompt"], data=data)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        shown = image._replace(pixels=PILLOW if self.is_official else _CORRECTED)
        return [
            measure("text", image),
            measure("clipscore", shown, item.data["prompt"]),
            measure("aesthetic", shown),
        ]

    def parse(self, question: Question, answer: Answer) -> Any:
        """Returns the text that the OCR model read, or the number of a metric model."""
        value = super().parse(question, answer)
        if question.name != "text" and not is_number(value):
            raise Unparsed("the record holds no number")
        return value

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the counts of expected (``total``) and ``correct`` words, Σ similarity (``ned``), and the rest.

        A missing answer counts as 0: so the official program treats a failure. The engine scores only whole
        items.
        """
        expected = quoted_words(item.data["prompt"])
        text = answers["text"].value if "text" in answers else None
        read = (text or "").lower().split() or [""]
        more = dict[str, float]()
        if self.is_official:
            correct, similar = official_match(expected, read)
        else:
            expected, read = folded(expected), folded(read)
            correct, similar = corrected_match(expected, read)
            more["correct_stripped"] = common(stripped(expected), stripped(read))
            more["read"] = len(read) if any(read) else 0
        if text is None:
            similar = [0.0] * len(expected)
        values = {"correct": correct, "total": len(expected), "ned": sum(similar), **more}
        values |= {name: answers[name].value if name in answers else 0.0 for name in _ENCODERS}
        keys = {key: item.data[key] for key in ("subset", "regions", "index")}
        return Score(values, keys, {"expected": expected, "read": text, "similarity": similar})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns ``word_accuracy`` and ``ned`` (means over words), ``clipscore`` and ``aesthetic`` (over images).

        Each also exists by cell (``ned/CVTG/2``), by subset (``ned/CVTG``) and by number of texts (``ned/2``).
        In ``…_official`` a failed evaluation of an image counts as 0 (quirk). Corrected rules add
        ``word_precision``, the share of words read that were expected, and ``word_accuracy_stripped``, which
        ignores punctuation around words.
        """
        found = dict[str, Metric]()
        ordered, whole = sorted(scores, key=_place), self._with_failures(scores)
        for name, (value, weight, top) in (_MEANS if self.is_official else _CORRECTED_MEANS).items():
            found[name] = mean(scores, value, weight=weight, top=top)
            if self.is_official:
                found[f"{name}_official"] = mean(whole, value, weight=weight, top=top)
            for by in (("subset", "regions"), "subset", "regions"):
                found |= mean_by(ordered, value, by, prefix=f"{name}/", weight=weight, top=top)
        return found

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``results.json``: the file of the official program, without VQAScore."""
        whole = self._with_failures(scores)
        areas = []
        for (subset, regions), mine in groups(whole, ("subset", "regions")).items():
            similar = [one for score in mine for one in score.detail["similarity"]]
            of_area = {"area": regions, "benchmark_type": subset, **_summary(mine)}
            areas.append({**of_area, "ned_word_data": similar})
        return {
            "results.json": json.dumps({"overall_results": _summary(whole), "area_results": areas}, indent=2)
        }

    def _with_failures(self, scores: Scores) -> list[Score]:
        """Returns the scores of all images, in the order of the files; a failure counts as 0."""
        found = (
            one.score or self.score(one.item, one.answers).of_item(one.item.id)
            for one in scores.items
            if one.image
        )
        return sorted(found, key=_place)


def _place(score: Score) -> list[Any]:
    return [score.keys[key] for key in ("subset", "regions", "index")]


def _summary(scores: Sequence[Score]) -> dict[str, Any]:
    means = {name: mean(scores, value, weight=weight).value for name, (value, weight, _) in _MEANS.items()}
    aesthetic, count = means.pop("aesthetic"), len(scores)
    words = {f"{name}_words": sum(score.values[name] for score in scores) for name in ("total", "correct")}
    return {**means, "vqascore": None, "aesthetic_score": aesthetic, "total_images": count, **words}
