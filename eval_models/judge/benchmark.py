"""What all benchmarks have in common whose questions go to a vision-language judge alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from eval_models.judge.asked import AskedJudge
from imageevalkit.cell.results import Evaluator
from imageevalkit.evaluation.benchmark import Benchmark
from imageevalkit.evaluation.question import Answer, PixelRule, Question


class JudgedBenchmark(Benchmark):
    """A benchmark asked of ``judge`` in the words of ``prompts`` (templates by name).

    ``official`` are the judges, by full name, that the official evaluator uses; ``pixels`` is how it decodes images,
    which the benchmark's questions say of their pictures: None, it sends the files.
    """

    official: Sequence[str] = ()
    pixels: PixelRule | None = None

    def __init__(self, judge: str, prompts: Mapping[str, str]) -> None:
        self.prompts = prompts
        self._judge = AskedJudge(judge, prompts, self.official, self.pixels)

    @property
    def backend(self) -> str:
        """What runs the judge: a key of ``eval_models.judge.registry.BACKENDS``."""
        return self._judge.backend

    @property
    def is_official(self) -> bool:
        """Whether the judge is one that the official evaluator uses, whatever its settings."""
        return self._judge.is_official

    @property
    def evaluator(self) -> Evaluator:
        """See :class:`AskedJudge`."""
        return self._judge.evaluator

    def has_answered(self, answerers: Collection[str]) -> None:
        self._judge.has_answered()

    def holdup(self) -> str:
        return self._judge.holdup()

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        return self._judge.ask(questions, workers)
