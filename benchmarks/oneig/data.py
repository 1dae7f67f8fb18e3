"""OneIG-Bench's official files, and the prompts in them: two editions, their classes, which task looks at which."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, NamedTuple

from imageevalkit.assets import LocalAsset, file_table, github
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
"""The folder of a class's images, which official files call ``class_item``, by its category in the prompt file."""

QUESTION_TEXT = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer.infer_semantic"
"""The name among the official prompts of what a judge is asked in alignment, with the field ``{question}``."""
READING_TEXT = "scripts/utils/inference.py::Qwen2_5VLBatchInferencer.TEXT_PROMPT"
"""The same of the task text, without a field."""

_BOTH = """
scripts/style/CSD_embed.pt 275724 cab217036607911e4273003cda5c8dfb69528e4a0421ec6006af8ddc6525e56e
scripts/style/SE_embed.pt 231149 c53719b72b40ea997547fad1a001150350337bf69039965c6ff731ff2a17dd83
"""


def _assets(table: str) -> tuple[LocalAsset, ...]:
    upstream = partial(github, "OneIG-Bench/OneIG-Benchmark", "41b49831e79e6dde5323618c164da1c4cf0f699d")
    texts = {
        QUESTION_TEXT: "343786ab3658cc4314408d0cba87e593d1feed7031bcfdc15a45110e7cee9c7c",
        READING_TEXT: "10c070ac876c07e1280492dae0c3dffa453bda1fcb9bb3e03f57e7c573fa3714",
    }
    licence = "CC-BY-NC-4.0 (dataset card of OneIG-Bench/OneIG-Bench; the repository states none)"
    files = upstream(file_table(table + _BOTH), licence=licence)
    return files + upstream(prompts=texts, licence="none stated (OneIG-Bench/OneIG-Benchmark)")


class Edition(NamedTuple):
    """``sizes``: how many prompts each class has, in the official order. ``mode`` is the official name."""

    name: str
    language: Language
    mode: str
    prompt_column: str
    prompt_file: str
    suffix: str
    sizes: Mapping[str, int]
    assets: Sequence[LocalAsset]


_COMMON = {"anime": 245, "human": 244, "object": 206, "text": 200, "reasoning": 225}
_CHINESE = {**_COMMON, "multilingualism": 200}
_ENGLISH_FILES = _assets("""
OneIG-Bench.csv 378082 e06c65b32252d82406fb1a27f13022b38d432c899a2486eb49ab0c100f83b3e1
scripts/alignment/Q_D/anime.json 240912 21ea3d0360e69d72bc5f4cbb93b203d293d16f5c2f626634a52b990119e0a6e3
scripts/alignment/Q_D/human.json 233346 0e92b25c6bc4091cac05fa0f4269b3b37465a7cd43ca2768f55f56149cdbf13b
scripts/alignment/Q_D/object.json 179650 350dfdf72c2da143c78a7544d4c554faf6698c1ba4fcd27c7a9cc9199d487e0e
scripts/text/text_content.csv 97314 ffbf0b588c617b77caf1e9a733496ff5b4704b6534df5fba13201a83f21e0512
scripts/reasoning/gt_answer.json 141383 e46733770fc0b99632e77e54f59316bcc7f170752680dd0c24d43c722bae402b
""")
_CHINESE_FILES = _assets("""
OneIG-Bench-ZH.csv 375669 8fc4ae1403db32dbb1203cc457361c3215500b34e741194a53f5002c9d824700
scripts/alignment/Q_D/anime_zh.json 250389 171740d2d7158f0da2d907481b5cd97380398e4a45b53f0976ad4d91e01151d4
scripts/alignment/Q_D/human_zh.json 248770 819f13b1efab67bdfba9ca633a37e009013350d148323f5d65b2a467f1789c64
scripts/alignment/Q_D/object_zh.json 185005 19f69cfdf17119ff5400919341c930468a0de5ee06b9c91d8f16ba2365f51498
scripts/alignment/Q_D/multilingualism_zh.json 148469 63614e72dbd86f1e56ed625a55f73d509323d34b68fb27d8fed0f87a49f69db9
scripts/text/text_content_zh.csv 89199 6250b3be96e9c4fd4c9cb858dd36b5b2dc4fc8fccb8e4ed0317f5da392db9a1a
scripts/reasoning/gt_answer_zh.json 94881 faaf0849de1fb62829ed49ec5de7f582562847fb01f390b7a4bb106e48f0c116
""")
ENGLISH = Edition("oneig", "en", "EN", "prompt_en", "OneIG-Bench.csv", "", _COMMON, _ENGLISH_FILES)
CHINESE = Edition("oneig-zh", "zh", "ZH", "prompt_cn", "OneIG-Bench-ZH.csv", "_zh", _CHINESE, _CHINESE_FILES)


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
        """Those that score its images: diversity compares any, the others need something to hold them against."""
        references: Mapping[Task, object] = {
            "alignment": self.questions,
            "text": self.expected_text,
            "reasoning": self.answer,
            "style": self.style,
        }
        return tuple(task for task in TASKS if references.get(task, True))


def read_prompts(benchmark: Benchmark, edition: Edition) -> dict[tuple[str, str], Prompt]:
    """The prompts of ``edition`` by key, in the order of its file. Raises CellFailure: a file cannot be read."""
    suffix = edition.suffix
    # every class but those two is asked about
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
            raise ValueError(f"prompt {prompt_id} of {class_item} is there twice")
        if None in row.values():
            raise ValueError(f"prompt {prompt_id} of {class_item} lacks a column")
        entry = questions[class_item][prompt_id] if class_item in questions else {}
        parents = json.loads(entry.get("dependency", "{}"))  # JSON within JSON
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
