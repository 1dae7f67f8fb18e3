"""Benchmarks of rendered text: the text in an image is read by an OCR model or by a vision-language judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.longtext.metric import LANGUAGES, Match, Scored, match_count, metrics
from eval_models.judge.benchmark import JudgedBenchmark
from eval_models.ocr.asked import AskedReader
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Evaluator, Metric
from imageevalkit.evaluation.benchmark import Benchmark, Judged, Score
from imageevalkit.evaluation.question import (
    QWEN_VL_UTILS,
    Answer,
    Message,
    Picture,
    Question,
    Reply,
    Sampling,
)

PROMPT = "benchmarks/LongText/textbench/evaluate_text_reward.py::ImageEvaluator.qwen_prompt"
_QUESTION = "read the text"
# The official clean-up means to remove a second one too, but overwrites its own result (spec of LongText, quirk 3).
_REMOVED = "No text recognized."
_MAX_TOKENS = 1024


class TextBenchmark(Benchmark):
    """What both kinds of readers share: from the text read to the metrics."""

    headline: Sequence[str] = LANGUAGES

    def score(self, item: Item, parsed: Mapping[str, str], replies: Mapping[str, Reply]) -> Score:
        """Recall of the expected text in what was read."""
        data = item.data
        read = parsed[_QUESTION]
        match = match_count(data["expected"], read, data["language"])
        return Score(
            item=item.id,
            values={"recall": match.match / match.total, **match._asdict()},
            keys={key: data[key] for key in ("language", "category", "length", "prompt_id")},
            detail={"expected": "\n".join(data["expected"]), "read": read},
        )

    def aggregate(self, judged: Sequence[Judged]) -> dict[str, Metric]:
        """The metrics of :func:`benchmarks.longtext.metric.metrics`; a language without items is an empty one."""
        scored = [
            Scored(
                score.keys["language"],
                score.keys["prompt_id"],
                score.keys["category"],
                score.keys["length"],
                Match(*(int(score.values[key]) for key in Match._fields)),
            )
            for score in (item.score for item in judged)
            if score
        ]
        return {**{language: Metric(None, 0) for language in LANGUAGES}, **metrics(scored)}


class OcrTextBenchmark(TextBenchmark):
    """Read by the text reader ``reader`` of ``eval_models/ocr``."""

    def __init__(self, name: str, version: str, reader: str) -> None:
        self.name = name
        self.version = version
        self._reader = AskedReader(reader)

    @property
    def evaluator(self) -> Evaluator:
        return self._reader.evaluator

    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        return [Question(item.id, _QUESTION, (Message("user", (image,)),), Sampling(0))]

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        """The text read in each image, as readings finish."""
        return self._reader.ask(questions, workers)

    def parse(self, question: Question, reply: Reply) -> str:
        """The text itself: an empty reading is a score of 0, not a failure."""
        return reply.text


class VlmTextBenchmark(TextBenchmark, JudgedBenchmark):
    """Read by the vision-language judge ``judge``, in the official words of ``prompts``."""

    # the official evaluation kit uses 32B; 7B gave the numbers published with the benchmark
    official = ("transformers:qwen2.5-vl-7b", "transformers:qwen2.5-vl-32b")
    pixels = QWEN_VL_UTILS

    def __init__(self, name: str, version: str, judge: str, prompts: Mapping[str, str]) -> None:
        self.name = name
        self.version = version
        super().__init__(judge, prompts)

    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        message = Message("user", (image._replace(pixels=self.pixels), self.prompts[PROMPT]))
        return [Question(item.id, _QUESTION, (message,), self._sampling)]

    @property
    def _sampling(self) -> Sampling:
        """The official code leaves all to the checkpoint: greedy in effect, with a repetition penalty of 1.05.

        A server is told so, since what it would do by itself is its own business; only vLLM knows the penalty.
        """
        if self.backend == "transformers":
            return Sampling(_MAX_TOKENS, temperature=None)
        return Sampling(
            _MAX_TOKENS, 0.0, extra={"repetition_penalty": 1.05} if self.backend == "vllm" else {}
        )

    def parse(self, question: Question, reply: Reply) -> str:
        """The text without the official "nothing there": an empty reading is a score of 0, not a failure."""
        return reply.text.replace(_REMOVED, "")
