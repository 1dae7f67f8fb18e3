"""The prompts of OneIG-Bench from its official files: two editions, their classes, and the tasks of each
prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from imageevalkit.benchmark.contract import Benchmark

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
"""The image folder of a class (``class_item`` in official files), by the category in the prompt file."""

QUESTION_TEXT = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer.infer_semantic"
"""The name of the official judge prompt for alignment, which has the field ``{question}``."""
READING_TEXT = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer.TEXT_PROMPT"
"""The name of the official judge prompt for the task text, which has no field."""


class Edition(NamedTuple):
    """A language edition. ``sizes`` is the number of prompts by class, in the official order; ``mode`` its
    official name."""

    name: str
    language: Language
    mode: str
    prompt_column: str
    prompt_file: str
    suffix: str
    sizes: Mapping[str, int]


_COMMON = {"anime": 245, "human": 244, "object": 206, "text": 200, "reasoning": 225}
_CHINESE = {**_COMMON, "multilingualism": 200}
ENGLISH = Edition("oneig", "en", "EN", "prompt_en", "OneIG-Bench.csv", "", _COMMON)
CHINESE = Edition("oneig-zh", "zh", "ZH", "prompt_cn", "OneIG-Bench-ZH.csv", "_zh", _CHINESE)


@dataclass(frozen=True)
class Prompt:
    """One line of the prompt file. ``class_item`` is its image folder ("anime"); ``id`` is unique within the
    class.

    ``type`` ("NP", "T, P") and ``length`` ("short", "middle", "long") are empty in Chinese. ``label`` is the column
    "class": the style of anime prompts (empty: none), the subject of reasoning prompts, the scene of text prompts.

    ``questions`` and ``parents`` (alignment) have the question number, from 1, as key; a root has no parents.
    ``expected_text`` is the raw column of the text file, ``answer`` the reference of a reasoning prompt. All
    four are empty for classes without them.
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
        """The unique key of the prompt: ``("anime", "000")``."""
        return self.class_item, self.id

    @property
    def style(self) -> str:
        """The key of the reference embeddings ("3d_rendering"); empty for a prompt without a style."""
        return self.label.lower().replace(" ", "_") if self.class_item == "anime" else ""

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that score the images of this prompt. Diversity scores all prompts; each other task needs
        its reference."""
        references: Mapping[Task, object] = {
            "alignment": self.questions,
            "text": self.expected_text,
            "reasoning": self.answer,
            "style": self.style,
        }
        return tuple(task for task in TASKS if references.get(task, True))


def read_prompts(benchmark: Benchmark, edition: Edition) -> dict[tuple[str, str], Prompt]:
    """Returns the prompts of ``edition`` by key, in file order. Raises CellFailure if a file cannot be
    read."""
    suffix = edition.suffix
    # the classes text and reasoning have no alignment questions
    questions = {
        name: benchmark.read_json(f"{name}{suffix}.json")
        for name in edition.sizes
        if name not in ("text", "reasoning")
    }
    texts = {row["id"]: row["text_content"] for row in benchmark.read_csv(f"text_content{suffix}.csv")}
    answers = benchmark.read_json(f"gt_answer{suffix}.json")
    prompts = {}
    for row in benchmark.read_csv(edition.prompt_file, count=sum(edition.sizes.values())):
        class_item, prompt_id = FOLDERS[row["category"]], row["id"]
        if (class_item, prompt_id) in prompts:
            raise ValueError(f"prompt {prompt_id} of {class_item} occurs twice")
        if None in row.values():
            raise ValueError(f"prompt {prompt_id} of {class_item} lacks a column")
        entry = questions[class_item][prompt_id] if class_item in questions else {}
        parents = json.loads(entry.get("dependency", "{}"))  # the file stores it as a JSON string
        prompts[class_item, prompt_id] = Prompt(
            class_item,
            prompt_id,
            text=row[edition.prompt_column],
            type=row.get("type", ""),
            length=row.get("prompt_length", ""),
            label=row["class"],
            questions={int(n): question for n, question in json.loads(entry.get("question", "{}")).items()},
            parents={int(n): [parent for parent in of_n if parent] for n, of_n in parents.items()},
            expected_text=texts[prompt_id] if class_item == "text" else "",
            answer=answers[prompt_id] if class_item == "reasoning" else "",
        )
    return prompts
