"""LongText-Bench for the evaluate engine: which evaluators may read, and how readings become metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.longtext.metric import LANGUAGES, Match, Scored, match_count, metrics
from eval_models.ocr.registry import check_reader, make_reader
from imageevalkit.evaluation.benchmark import Measurement, Score
from imageevalkit.items import Item
from imageevalkit.results import Evaluator, Metric

DEFAULT_JUDGE = "ppocr"
VERSION = "x-omni-2b8237b"  # the prompts and the metric are those of X-Omni-Team/X-Omni at this commit


def check_judge(judge: str) -> str:
    """The text reader to use; ``""`` is the default. Raises UserError for one that there is not, or not yet."""
    return check_reader(judge or DEFAULT_JUDGE)


def make(judge: str) -> TextBenchmark:
    """The benchmark with the text reader ``judge``."""
    return TextBenchmark("longtext", VERSION, judge)


class TextBenchmark:
    """A benchmark of rendered text, read by the text reader ``judge``."""

    headline: Sequence[str] = LANGUAGES

    def __init__(self, name: str, version: str, judge: str) -> None:
        self.name = name
        self.version = version
        self._judge = judge
        self._reader = make_reader(judge)

    @property
    def evaluator(self) -> Evaluator:
        return self._reader.evaluator

    def measure(
        self, images: Mapping[str, Path], items: Mapping[str, Item], workers: int
    ) -> Iterator[Measurement]:
        """The text read in each image, as readings finish."""
        from eval_models.ocr.parallel import read_many

        item_of = {path: item for item, path in images.items()}
        for reading in read_many(self._judge, images.values(), workers):
            yield Measurement(
                item_of[reading.path], reading.text, reading.error, reading.seconds, "read the text"
            )

    def score(self, item: Item, raw: str) -> Score:
        """Recall of the expected text in ``raw``; an empty reading is a score of 0, not a failure."""
        data = item.data
        match = match_count(data["expected"], raw, data["language"])
        return Score(
            item=item.id,
            values={"recall": match.match / match.total, **match._asdict()},
            keys={key: data[key] for key in ("language", "category", "length", "prompt_id")},
            detail={"expected": "\n".join(data["expected"]), "read": raw},
        )

    def aggregate(self, scores: Sequence[Score]) -> dict[str, Metric]:
        """The metrics of :func:`benchmarks.longtext.metric.metrics`; a language without items is an empty one."""
        scored = [
            Scored(
                score.keys["language"],
                score.keys["prompt_id"],
                score.keys["category"],
                score.keys["length"],
                Match(*(int(score.values[key]) for key in Match._fields)),
            )
            for score in scores
        ]
        return {**{language: Metric(None, 0) for language in LANGUAGES}, **metrics(scored)}
