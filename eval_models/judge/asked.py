"""A judge as the answerer of a benchmark's questions, with the name under which it gives scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any

from eval_models.judge.options import JudgeOptions
from eval_models.judge.registry import choose, make_judge
from imageevalkit.cell.results import Evaluator
from imageevalkit.evaluation.question import TRANSFORMERS, Answer, PixelRule, Question
from imageevalkit.text_output import to_bytes


class AskedJudge:
    """``judge``, asked in the words of ``prompts`` (templates by name).

    ``official`` are the judges, by full name, that the official evaluator uses. ``pixels`` are those of its questions'
    pictures.
    """

    def __init__(
        self, judge: str, prompts: Mapping[str, str], official: Collection[str], pixels: PixelRule | None
    ) -> None:
        self._prompts = prompts
        self._pixels = pixels or TRANSFORMERS
        self._choice = choose(judge)
        self._options = JudgeOptions.from_environment()
        self._judge = make_judge(judge, self._options)
        self.is_official = self._choice.full_name in official
        """Whether it is a judge of the official evaluator, whatever its settings."""

    @property
    def backend(self) -> str:
        """What runs the judge: a key of ``eval_models.judge.registry.BACKENDS``."""
        return self._choice.setting.backend

    @property
    def label(self) -> str:
        """Judge and backend, for the names of scores."""
        name = self._choice.name
        # a local folder is named by its last part: where it lies on this machine says nothing
        short = PurePath(name).name if name.startswith(("/", ".", "~")) else name
        return f"{short}/{self.backend}"

    @cached_property
    def evaluator(self) -> Evaluator:
        """Named by the judge, what runs it, and a hash of the prompts, the weights, the settings and the pixels.

        Versions of packages are among its details and part of every request's hash, but not of its name. What pixels
        a server makes of the bytes it is sent is its own business; the bytes are part of the request's hash.
        """
        identity = self._judge.identity
        pixels = {"pixels": self._pixels.name} if self.backend == "transformers" else {}
        decisive = [dict(self._prompts), without_packages(identity | pixels)]
        return Evaluator(
            id=f"{self.label}/{digest(decisive)[:8]}",
            official=self.is_official and identity == self._default_identity(identity),
            details={"judge": identity | pixels, "prompts_sha256": digest(dict(self._prompts))},
        )

    def _default_identity(self, identity: dict[str, Any]) -> dict[str, Any]:
        """What ``identity`` is without the user's settings."""
        if not self._options.kwargs and not self._options.served:
            return identity
        return make_judge(self._choice.full_name, JudgeOptions()).identity

    def has_answered(self) -> None:
        """See ``Judge``."""
        self._judge.has_answered()

    def holdup(self) -> str:
        """See ``Judge``."""
        return self._judge.holdup()

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        """See ``Judge``; how many questions at a time is a setting of the judge."""
        return self._judge.ask(questions)


def without_packages(identity: Mapping[str, Any]) -> dict[str, Any]:
    """``identity`` without the versions of packages."""
    return {name: value for name, value in identity.items() if name != "packages"}


def digest(value: Any) -> str:
    """The SHA-256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(to_bytes(text)).hexdigest()
