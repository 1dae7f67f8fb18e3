"""Judges and measurers by name: the only file that looks into ``eval_models/``.

Nothing heavy is imported before somebody is made who answers.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import Any

from imageevalkit.asset_checks.check import Needed
from imageevalkit.errors import UserError, suggest
from imageevalkit.evaluation.answerer import Answerer
from imageevalkit.evaluation.question import PixelRule
from imageevalkit.judges.choice import JudgeChoice, JudgeOptions, JudgeSetting, choose, is_judge

_JUDGE_CLASSES = {
    "openai": ("imageevalkit.judges.client", "ApiJudge"),
    "transformers": ("eval_models.vlm.judge", "TransformersJudge"),
    # a server that a job of the run starts is asked like any other API
    "vllm": ("imageevalkit.judges.client", "ApiJudge"),
}


def judges() -> Mapping[str, JudgeSetting]:
    """The judges that have a name of their own."""
    known: Mapping[str, JudgeSetting] = importlib.import_module("eval_models.judges").JUDGE_SETTINGS
    return known


def choose_judge(judge: str) -> JudgeChoice:
    """The judge called so (see :func:`imageevalkit.judges.choice.choose`). Raises UserError: there is none."""
    return choose(judge, judges())


def find_judge(full_name: str) -> JudgeChoice | None:
    """The judge with that full name; None for an evaluator that is no judge (a text reader)."""
    return choose_judge(full_name) if is_judge(full_name) else None


def judge(
    name: str,
    prompts: Mapping[str, str],
    official: Collection[str] = (),
    pixels: PixelRule | None = None,
    options: JudgeOptions | None = None,
) -> Answerer:
    """The judge called ``name``, asked in the words of ``prompts`` (templates by name).

    ``official`` are the judges, by full name, that the official evaluator uses. ``pixels`` are those of its
    questions' pictures. ``options``: None are those of this job.

    Raises:
        UserError: there is no such judge.
    """
    choice = choose_judge(name)
    made: Answerer = _class_of(*_JUDGE_CLASSES[choice.setting.backend])(
        choice, options or JudgeOptions.from_environment(), prompts, official, pixels
    )
    return made


def reader_names() -> list[str]:
    """The measurers that read text, which may stand in for a judge where a benchmark allows it."""
    return [name for name, setting in _measurers().items() if setting.kind == "reader"]


def check_reader(name: str) -> str:
    """``name``, if there is a reader of text called so. Raises UserError: there is none."""
    if name not in reader_names():
        known = [*reader_names(), *judges()]
        raise UserError(
            f"unknown text reader '{name}'{suggest(name, known)}; known: {', '.join(known)}, "
            "and any model as backend:model"
        )
    return name


def measurer(name: str, options: Mapping[str, Any]) -> Answerer:
    """The measurer called ``name``; ``options`` are those of its kind (``EncoderOptions``; a reader has none)."""
    setting = _measurers()[name]
    made: Answerer = _class_of(setting.module, setting.class_name)(**options)
    return made


def measurer_kind(name: str) -> str:
    """What the measurer called ``name`` is: "encoder" or "reader"."""
    kind: str = _measurers()[name].kind
    return kind


def measurer_assets(name: str, options: Mapping[str, Any]) -> list[Needed]:
    """What prefetch gets for the measurer ``name``; needs no package.

    Raises:
        UserError: ``options`` have weights of a name that there is not.
    """
    assets: list[Needed] = _weights().assets_of(_measurers()[name].weights, options.get("weights", {}))
    return assets


def measurer_missing(name: str, options: Mapping[str, Any]) -> list[str]:
    """A line for each of the weights of ``name`` that only prefetch gets and that is not here, or not whole."""
    lines: list[str] = _weights().missing_files(_measurers()[name].weights, options.get("weights", {}))
    return lines


def _measurers() -> Mapping[str, Any]:
    found: Mapping[str, Any] = importlib.import_module("eval_models.measurers").MEASURERS
    return found


def _weights() -> Any:
    return importlib.import_module("eval_models.encoders.weights")


def _class_of(module: str, class_name: str) -> Any:
    return getattr(importlib.import_module(module), class_name)
