"""LongText-Bench: long texts in images, 160 English and 160 Chinese prompts, 4 images each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from custom_datasets.text_prompts import entry, read_prompts
from imageevalkit.cell import REPO
from imageevalkit.cell.items import MODEL_NAME_MARK

_STEMS = {"en": "text_prompts", "zh": "text_prompts_zh"}
_PROMPTS = 160
_IMAGES_PER_PROMPT = 4
_REMEDY = "run: bash utils/prefetch.sh --ds_names longtext"


class LongTextBench:
    """1280 entries; the two languages alternate, so that any first N of them cover both."""

    folder: Path = REPO / "benchmarks" / "longtext" / "data"

    def __init__(self) -> None:
        self.dataset_name = "longtext"
        self.dataset_task = "t2i"
        self.data = self._entries()

    def _entries(self) -> list[dict[str, Any]]:
        prompts = {
            language: read_prompts(self.folder / f"{stem}.jsonl", _PROMPTS, _REMEDY)
            for language, stem in _STEMS.items()
        }
        return [
            entry(record, language, seed, self._path(language, record["prompt_id"], seed))
            for records in zip(*prompts.values(), strict=True)
            for seed in range(1, _IMAGES_PER_PROMPT + 1)
            for language, record in zip(prompts, records, strict=True)
        ]

    def _path(self, language: str, prompt_id: int, seed: int) -> str:
        # official evaluators take the prompt id from the digits before the first underscore
        return f"{MODEL_NAME_MARK}/{self.dataset_name}/images/{_STEMS[language]}/{prompt_id:04d}_{seed}.jpg"
