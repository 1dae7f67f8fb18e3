"""LongText-Bench for the evaluate engine: which evaluators may read, and how readings become metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.longtext.metric import LANGUAGES, Match, Scored, match_count, metrics
from eval_models.ocr.registry import check_reader, make_reader
from imageevalkit.evaluation.benchmark import Benchmark, Judged, Score
from imageevalkit.evaluation.question import Answer, Message, Picture, Question, Reply, Sampling
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


class TextBenchmark(Benchmark):
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

    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        return [Question(item.id, "read the text", (Message("user", (image,)),), Sampling(0))]

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        """The text read in each image, as readings finish."""
        from eval_models.ocr.parallel import read_many

        question_of = {question.pictures[0].path: question for question in questions}
        for reading in read_many(self._judge, question_of, workers):
            reply = None if reading.text is None else Reply(reading.text)
            yield Answer(question_of[reading.path], reply, reading.error, reading.seconds)

    def parse(self, question: Question, reply: Reply) -> str:
        """The text itself: an empty reading is a score of 0, not a failure."""
        return reply.text

    def score(self, item: Item, parsed: Mapping[str, str], replies: Mapping[str, Reply]) -> Score:
        """Recall of the expected text in what was read."""
        data = item.data
        [read] = parsed.values()
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
