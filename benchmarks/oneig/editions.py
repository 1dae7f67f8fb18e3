"""The two editions of OneIG-Bench: which classes of prompts they have, and which task looks at which of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.oneig.scored import Language, Prompt, Task

FOLDERS: Mapping[str, str] = {
    "Anime_Stylization": "anime",
    "Portrait": "human",
    "General_Object": "object",
    "Text_Rendering": "text",
    "Knowledge_Reasoning": "reasoning",
    "Multilingualism": "multilingualism",
}
"""The folder of a class's images, which official files call ``class_item``, by its category in the prompt file."""


class Edition(NamedTuple):
    """``sizes``: how many prompts each class has, in the official order. ``mode`` is the official name."""

    name: str
    language: Language
    mode: str
    prompt_column: str
    prompt_file: str
    suffix: str
    sizes: Mapping[str, int]


_COMMON = {"anime": 245, "human": 244, "object": 206, "text": 200, "reasoning": 225}

ENGLISH = Edition("oneig", "en", "EN", "prompt_en", "OneIG-Bench.csv", "", _COMMON)
CHINESE = Edition(
    "oneig-zh", "zh", "ZH", "prompt_cn", "OneIG-Bench-ZH.csv", "_zh", {**_COMMON, "multilingualism": 200}
)

_ALIGNED = ("anime", "human", "object", "multilingualism")


def looks_at(task: Task, prompt: Prompt) -> bool:
    """Whether ``task`` scores the images of ``prompt``."""
    if task == "alignment":
        return prompt.class_item in _ALIGNED
    if task == "style":
        return bool(prompt.style)
    return task in (prompt.class_item, "diversity")
