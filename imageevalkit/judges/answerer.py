"""A judge as the answerer of a benchmark's questions, with the name under which it gives scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import PurePath
from typing import Any

from imageevalkit.benchmark.answerer import Answerer, digest, without_packages
from imageevalkit.benchmark.question import TRANSFORMERS, PixelRule
from imageevalkit.cell.results import Evaluator
from imageevalkit.judges.choice import JudgeChoice, JudgeOptions
from imageevalkit.weights import WeightsUser

WEIGHTS_USER = WeightsUser(
    "judge", "it needs an environment made by bash utils/make_env.sh --judge transformers"
)


class Judge(Answerer):
    """The judge ``choice``, asked in the words of ``prompts`` (templates by name), with ``options`` of this job.

    ``official`` are the judges, by full name, that the official evaluator uses; ``pixels`` those of its pictures.
    """

    def __init__(
        self,
        choice: JudgeChoice,
        options: JudgeOptions,
        prompts: Mapping[str, str],
        official: Collection[str] = (),
        pixels: PixelRule | None = None,
    ) -> None:
        self.choice = choice
        self.options = options
        self.backend = choice.setting.backend
        self.kwargs = {**choice.setting.kwargs, **options.kwargs}  # the user's over those of the registry
        self._prompts = dict(prompts)
        self._official = official
        self._pixels = pixels or TRANSFORMERS

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All that decides what it answers, as JSON values. Raises CellFailure: the model is not there."""

    @property
    def label(self) -> str:
        """Judge and backend; a local folder is named by its last part: where it lies says nothing."""
        name = self.choice.name
        short = PurePath(name).name if name.startswith(("/", ".", "~")) else name
        return f"{short}/{self.backend}"

    @cached_property
    def evaluator(self) -> Evaluator:
        """Named by the judge, what runs it, and a hash of the prompts, the weights, the settings and the pixels.

        Versions of packages are among its details and part of every request's hash, but not of its name. What pixels
        a server makes of the bytes it is sent is its own business; the bytes are part of the request's hash.
        """
        pixels = {"pixels": self._pixels.name} if self.backend == "transformers" else {}
        details = self.identity | pixels
        # what it is without the user's settings
        plain = type(self)(self.choice, JudgeOptions(), self._prompts)
        changed = self.options.kwargs or self.options.served
        return Evaluator(
            id=f"{self.label}/{digest([self._prompts, without_packages(details)])[:8]}",
            official=self.choice.full_name in self._official
            and not (changed and self.identity != plain.identity),
            details={"judge": details, "prompts_sha256": digest(self._prompts)},
        )
