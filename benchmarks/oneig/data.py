"""OneIG-Bench's prompts, from the official files: the two editions, their classes, and which task looks at which."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

Task = Literal["alignment", "text", "reasoning", "style", "diversity"]
TASKS: tuple[Task, ...] = ("alignment", "text", "reasoning", "style", "diversity")

Language = Literal["en", "zh"]

FOLDERS: Mapping[str, str] = {
    "Anime_Stylization": "anime",
    "Portrait": "human",
    "General_Object": "object",
    "Text_Rendering": "text",
    "Knowledge_Reasoning": "reasoning",
    "Multilingualism": "multilingualism",
}
"""The folder of a class's images, which official files call ``class_item``, by its category in the prompt file."""

QUESTION_TEXT = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer.infer_semantic"
"""The name among the official prompts of what a judge is asked in alignment, with the field ``{question}``."""
READING_TEXT = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer.TEXT_PROMPT"
"""The same of the task text, without a field."""


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
CLASSES = tuple(CHINESE.sizes)
"""The classes of prompts in the official order; English has no multilingualism."""


@dataclass(frozen=True)
class Prompt:
    """One line of the prompt file. ``class_item`` is the folder of its images ("anime"), ``id`` restarts in each.

    ``type`` ("NP", "T, P") and ``length`` ("short", "middle", "long") are empty in Chinese. ``label`` is the column
    "class": the style of anime prompts (empty: none), the subject of reasoning prompts, the scene of text prompts.

    ``questions`` and ``parents`` (alignment) are by question number, from 1; a root has no parents. ``expected_text``
    is the raw column of the text file, ``answer`` the reference of a reasoning prompt. Empty where a class has none.
    """

    class_item: str
    id: str
    text: str
    type: str = ""
    length: str = ""
    label: str = ""
    questions: Mapping[int, str] = field(default_factory=dict)
    parents: Mapping[int, Sequence[int]] = field(default_factory=dict)
    expected_text: str = ""
    answer: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others: ``("anime", "000")``."""
        return self.class_item, self.id

    @property
    def style(self) -> str:
        """The key of the reference embeddings ("3d_rendering"); empty for a prompt without a style."""
        return self.label.lower().replace(" ", "_") if self.class_item == "anime" else ""

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Those that score its images."""
        theirs = {
            "alignment": self.class_item not in ("text", "reasoning"),
            "text": self.class_item == "text",
            "reasoning": self.class_item == "reasoning",
            "style": bool(self.style),
            "diversity": True,
        }
        return tuple(task for task in TASKS if theirs[task])


def prompts_of(
    edition: Edition,
    rows: Iterable[Mapping[str, str]],
    texts: Iterable[Mapping[str, str]],
    answers: Mapping[str, str],
    questions: Mapping[str, Mapping[str, Mapping[str, str]]],
) -> list[Prompt]:
    """The prompts of ``edition`` in the order of its file, of which these are the ``rows``.

    ``texts`` are the rows of the text file, ``answers`` by the ids of reasoning prompts, ``questions`` by class and id.

    Raises:
        ValueError: the files are not what upstream publishes, or do not belong together.
    """
    try:
        expected = {row["id"]: row["text_content"] for row in texts}
        prompts = [_prompt(row, edition, expected, answers, questions) for row in rows]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"they do not belong together ({type(error).__name__}: {error})") from None
    sizes = {name: sum(prompt.class_item == name for prompt in prompts) for name in edition.sizes}
    if sizes != dict(edition.sizes) or len({prompt.key for prompt in prompts}) != len(prompts):
        raise ValueError(f"{edition.prompt_file} does not hold the {edition.name} prompts")
    return prompts


def _prompt(
    row: Mapping[str, str],
    edition: Edition,
    expected: Mapping[str, str],
    answers: Mapping[str, str],
    questions: Mapping[str, Mapping[str, Mapping[str, str]]],
) -> Prompt:
    if None in row or None in row.values():
        raise ValueError(f"a row of {edition.prompt_file} has another number of columns")
    class_item, prompt_id = FOLDERS[row["category"]], row["id"]
    entry = questions[class_item][prompt_id] if class_item in questions else {}
    return Prompt(
        class_item=class_item,
        id=prompt_id,
        text=row[edition.prompt_column],
        type=row.get("type", ""),
        length=row.get("prompt_length", ""),
        label=row["class"],
        # JSON within JSON
        questions={int(n): question for n, question in json.loads(entry.get("question", "{}")).items()},
        parents={
            int(n): [parent for parent in parents if parent]
            for n, parents in json.loads(entry.get("dependency", "{}")).items()
        },
        expected_text=expected[prompt_id] if class_item == "text" else "",
        answer=answers[prompt_id] if class_item == "reasoning" else "",
    )
