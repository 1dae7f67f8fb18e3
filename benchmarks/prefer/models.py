"""The preference models, their questions and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from benchmarks.prefer import unifiedreward
from imageevalkit.benchmark.contract import Unparsed, json_value
from imageevalkit.benchmark.question import Answer, Picture, Question, measure
from imageevalkit.store.jsonl import is_number


class Model(NamedTuple):
    """``measurer`` is a name in ``eval_models/measurers.py``; if empty, the judge answers.

    The evaluator gets the image and a ``text``: the prompt, an instruction that contains it, or nothing.
    ``top`` is the end of the usual scale. If the answer is an object, ``key`` names the score in it.
    """

    measurer: str
    top: float
    text: Literal["", "prompt", "instruction"] = "prompt"
    key: str = ""


MODELS = {
    "imagereward": Model("imagereward", 2.0),
    "pickscore": Model("pickscore", 26.0),
    "hpsv2.1": Model("hpsv2", 100.0, key="v2.1"),
    "hpsv3": Model("hpsv3", 15.0, "instruction"),
    "clipscore": Model("clipscore", 2.5),
    "aesthetic": Model("aesthetic_predictor", 10.0, ""),
    unifiedreward.NAME: Model("", unifiedreward.HIGHEST),
}
DEFAULT = [name for name, model in MODELS.items() if model.measurer]
WITH_TEXTS = ("hpsv3", unifiedreward.NAME)
"""The models whose texts prefetch downloads."""
_INSTRUCTION, _END = (
    f"hpsv3/dataset/data_collator_qwen.py::{name}" for name in ("INSTRUCTION", "prompt_with_special_token")
)


def question_of(name: str, image: Picture, prompt: str, texts: Mapping[str, str]) -> Question:
    """Returns the question to the metric model ``name`` about ``image``, which was generated from ``prompt``."""
    kind = MODELS[name].text
    if kind == "instruction":
        prompt = texts[_INSTRUCTION].format(text_prompt=prompt) + texts[_END]
    return measure(name, image, *([prompt] if kind else []))


def value_of(name: str, answer: Answer) -> float:
    """Returns the score by the metric model ``name``. Raises Unparsed if the answer is no number."""
    value, key = json_value(answer), MODELS[name].key
    if key and isinstance(value, Mapping):
        value = value.get(key)
    if not is_number(value):
        raise Unparsed("the record holds no number")
    return float(value)
