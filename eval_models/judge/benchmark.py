"""What all benchmarks have in common whose questions go to a vision-language judge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any

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
        self._options = JudgeOptions.from_environment()
        self._judge = make_judge(judge, self._options)

    @property
    def backend(self) -> str:
        """What runs the judge: a key of ``eval_models.judge.registry.BACKENDS``."""
        return self._choice.setting.backend

    @property
    def is_official(self) -> bool:
        """Whether the judge is one that the official evaluator uses, whatever its settings."""
        return self._choice.full_name in self.official

    @cached_property
    def evaluator(self) -> Evaluator:
        """Named by the judge, what runs it, and a hash of the prompts, the weights and the settings.

        Versions of packages are among its details and part of every request's hash, but not of its name.
        """
        identity = self._judge.identity
        name = self._choice.name
        # a local folder is named by its last part: where it lies on this machine says nothing
        label = PurePath(name).name if name.startswith(("/", ".", "~")) else name
        return Evaluator(
            id=f"{label}/{self.backend}/{_digest([dict(self.prompts), _without_packages(identity)])[:8]}",
            official=self.is_official and identity == self._default_identity(identity),
            details={"judge": identity, "prompts_sha256": _digest(dict(self.prompts))},
        )

    def _default_identity(self, identity: dict[str, Any]) -> dict[str, Any]:
        """What ``identity`` is without the user's settings."""
        if not self._options.kwargs and not self._options.served:
            return identity
        return make_judge(self._choice.full_name, JudgeOptions()).identity

    def has_answered(self) -> None:
        self._judge.has_answered()

    def holdup(self) -> str:
        return self._judge.holdup()

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        return self._judge.ask(questions)


def _without_packages(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in identity.items() if name != "packages"}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
