"""UnifiedReward behind an endpoint: its questions and its replies, of the first version and of 2.0."""

from __future__ import annotations

import re
from collections.abc import Mapping

from imageevalkit.benchmark.contract import Unparsed
from imageevalkit.benchmark.question import Encoding, Message, Picture, Question, Sampling
from imageevalkit.metrics import arithmetic_mean

NAME, DEFAULT = "unifiedreward", "vllm:CodeGoat24/UnifiedReward-2.0-qwen3vl-8b"
OFFICIAL = (
    DEFAULT,
    *(
        f"vllm:CodeGoat24/UnifiedReward-{size}"
        for size in ("7b", "7b-v1.5", "qwen-3b", "qwen-7b", "qwen-32b")
    ),
    "vllm:CodeGoat24/UnifiedReward-2.0-qwen35-9b",
)
AXES = ("Alignment", "Coherence", "Style")
LOWEST, HIGHEST = 1, 5
_FIRST = "inference_qwen/image_generation/qwen_point_score_image_generation.py::messages"
_SECOND = "inference_qwen/UnifiedReward-2.0-inference/point_score_ACS_image_generation.py::problem"
_FINAL = re.compile(r"Final Score:\s*([1-5](?:\.\d+)?)(?P<rest>\d?)")
_ENCODING = Encoding("JPEG", 95)


def is_first(judge: str) -> bool:
    """Whether ``judge`` is of a version before 2.0, which gives one score."""
    return "UnifiedReward-" in judge and "UnifiedReward-2" not in judge


def key_of(judge: str) -> str:
    """Returns the key of the text for ``judge``."""
    return _FIRST if is_first(judge) else _SECOND


def values_of(judge: str) -> list[str]:
    """Returns the names of the values that ``judge`` gives."""
    return [NAME, *([] if is_first(judge) else [f"{NAME}/{axis.lower()}" for axis in AXES])]


def question(judge: str, template: str, image: Picture, prompt: str) -> Question:
    """Returns the question about ``image``."""
    tokens = 512 if is_first(judge) and "qwen" in judge else 4096
    extra = {"chat_template_kwargs": {"enable_thinking": False}} if "qwen35" in judge else {}
    message = Message("user", (image._replace(encoding=_ENCODING), template.format(prompt=prompt)))
    return Question(NAME, (message,), Sampling(tokens, extra=extra))


def parse(judge: str, reply: str, is_official: bool) -> Mapping[str, float]:
    """Returns the scores of a reply, 1-5. Of version 2.0 they are three, and their mean.

    Official rules read the first score as Flow-GRPO does. Raises Unparsed if a score is missing or outside the
    scale.
    """
    if is_first(judge):
        match = _FINAL.search(reply)
        # quirk: Flow-GRPO reads 1 in "10", and also takes 5.5
        is_right = match and (is_official or not (match["rest"] or float(match[1]) > HIGHEST))
        if not (match and is_right):
            raise Unparsed("no final score of 1 to 5", reply)
        return {NAME: float(match[1])}
    found = dict[str, float]()
    for axis in AXES:
        match = re.search(rf"{axis} Score \(1-5\): *(\d+(?:\.\d+)?)(?![\d.]*\d)", reply)
        if not match or not LOWEST <= float(match[1]) <= HIGHEST:
            raise Unparsed(f"no {axis} score of 1 to 5", reply)
        found[f"{NAME}/{axis.lower()}"] = float(match[1])
    return {NAME: arithmetic_mean(found.values()), **found}
