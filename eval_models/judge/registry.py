"""The judges by the name a user gives. Importing this needs the standard library only."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from imageevalkit.errors import UserError, suggest

if TYPE_CHECKING:
    from eval_models.judge.interface import Judge
    from eval_models.judge.options import JudgeOptions

BACKENDS: dict[str, tuple[str, str]] = {
    "openai": ("eval_models.judge.api.backend", "OpenAIJudge"),
    "transformers": ("eval_models.judge.local.backend", "TransformersJudge"),
    # a server that a job of the run starts; it is asked like any other API
    "vllm": ("eval_models.judge.api.backend", "OpenAIJudge"),
}
"""Module and class of each backend: names are checked before any environment exists."""


class JudgeSetting(NamedTuple):
    """``model_path`` is the id an API knows, a hub id, or a local folder; ``kwargs`` are the backend's."""

    backend: str
    model_path: str
    kwargs: Mapping[str, Any] = {}


JUDGE_SETTINGS: dict[str, JudgeSetting] = {
    "gpt-4o-2024-05-13": JudgeSetting("openai", "gpt-4o-2024-05-13"),
    "qwen2.5-vl-7b": JudgeSetting(
        "transformers",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        {"revision": "cc594898137f460bfe9f0759e9844b3ce807cfb5"},
    ),
    "qwen2.5-vl-32b": JudgeSetting("transformers", "Qwen/Qwen2.5-VL-32B-Instruct"),
    "qwen3-vl-8b": JudgeSetting(
        "transformers",
        "Qwen/Qwen3-VL-8B-Instruct",
        {"revision": "0c351dd01ed87e9c1b53cbc748cba10e6187ff3b"},
    ),
    "qwen3.5-35b-a3b": JudgeSetting("vllm", "Qwen/Qwen3.5-35B-A3B"),
}


class JudgeChoice(NamedTuple):
    """A judge as a user chose it: ``name`` (of the registry, or a model id or path, as written) and its setting."""

    name: str
    setting: JudgeSetting

    @property
    def full_name(self) -> str:
        """The same however it was written: ``transformers:qwen3-vl-8b``."""
        return f"{self.setting.backend}:{self.name}"


def choose(judge: str) -> JudgeChoice:
    """The judge called ``judge``: a name of the registry, ``backend:name``, or ``backend:model id or path``.

    Raises:
        UserError: there is no such judge or backend.
    """
    backend, colon, name = judge.partition(":")
    if backend in BACKENDS and not name.strip():
        raise UserError(f"judge '{judge}' names no model; as in openai:gpt-4o")
    if not colon:
        if judge in JUDGE_SETTINGS:
            return JudgeChoice(judge, JUDGE_SETTINGS[judge])
        raise UserError(
            f"unknown judge '{judge}'{suggest(judge, JUDGE_SETTINGS)}; known: {', '.join(JUDGE_SETTINGS)}, "
            f"and any model as backend:model, such as openai:{judge} (backends: {', '.join(BACKENDS)})"
        )
    if backend not in BACKENDS or not name:
        raise UserError(
            f"judge '{judge}': no backend '{backend}'{suggest(backend, BACKENDS)}; "
            f"use one of {', '.join(BACKENDS)}, as in openai:gpt-4o"
        )
    known = JUDGE_SETTINGS.get(name)
    if known is None:
        # pathlib raises where there is no such user; so it is a folder that is not there
        model_path = name if backend == "openai" else os.path.expanduser(name)  # noqa: PTH111
        return JudgeChoice(name, JudgeSetting(backend, model_path))
    return JudgeChoice(name, known if known.backend == backend else JudgeSetting(backend, known.model_path))


def find(full_name: str) -> JudgeChoice | None:
    """The judge with that :attr:`~JudgeChoice.full_name`; None for an evaluator that is no judge (a text reader)."""
    return choose(full_name) if full_name.partition(":")[0] in BACKENDS else None


def make_judge(judge: str, options: JudgeOptions) -> Judge:
    """The judge called ``judge``; cheap, the model loads with the first question.

    Raises:
        UserError: no such judge, or an option that its backend does not take.
    """
    choice = choose(judge)
    module, class_name = BACKENDS[choice.setting.backend]
    made: Judge = getattr(importlib.import_module(module), class_name)(choice, options)
    return made
