"""What all benchmarks have in common whose questions go to a vision-language judge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath

from eval_models.judge.options import JudgeOptions
from eval_models.judge.registry import choose, make_judge
from imageevalkit.evaluation.benchmark import Benchmark
from imageevalkit.evaluation.question import Answer, Question
from imageevalkit.results import Evaluator


class JudgedBenchmark(Benchmark):
    """A benchmark asked of ``judge`` in the words of ``prompts`` (templates by name).

    ``official`` are the judges, by full name, that the official evaluator uses.
    """

    official: Sequence[str] = ()

    def __init__(self, judge: str, prompts: Mapping[str, str]) -> None:
        self.prompts = prompts
        self._choice = choose(judge)
        self._judge = make_judge(judge, JudgeOptions.from_environment())

    @property
    def backend(self) -> str:
        """What runs the judge: a key of ``eval_models.judge.registry.BACKENDS``."""
        return self._choice.setting.backend

    @property
    def is_official(self) -> bool:
        """Whether the judge is one that the official evaluator uses."""
        return self._choice.full_name in self.official

    @cached_property
    def evaluator(self) -> Evaluator:
        """Named by the judge, what runs it, and the hash of the prompts."""
        texts = json.dumps(dict(self.prompts), sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(texts.encode()).hexdigest()
        name = self._choice.name
        # a local folder is named by its last part: where it lies on this machine says nothing
        label = PurePath(name).name if name.startswith(("/", ".", "~")) else name
        return Evaluator(
            id=f"{label}/{self.backend}/{digest[:8]}",
            official=self.is_official,
            details={"judge": self._judge.identity, "prompts_sha256": digest},
        )

    def has_answered(self) -> None:
        self._judge.has_answered()

    def holdup(self) -> str:
        return self._judge.holdup()

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        return self._judge.ask(questions)
