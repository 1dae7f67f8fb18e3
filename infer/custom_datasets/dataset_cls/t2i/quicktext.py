"""quicktext: LongText-Bench's task on 24 English and 24 Chinese prompts of our own; needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from custom_datasets.text_prompts import entry, read_prompts
from imageevalkit.cell import REPO
from imageevalkit.cell.items import MODEL_NAME_MARK

_PROMPTS = 48
_REMEDY = "restore it: git checkout -- benchmarks/quicktext"


class QuickTextBench:
    """48 entries, one image each, English and Chinese alternating."""

    path: Path = REPO / "benchmarks" / "quicktext" / "data" / "prompts.jsonl"

    def __init__(self) -> None:
        self.dataset_name = "quicktext"
        self.dataset_task = "t2i"
        self.data = [self._entry(record) for record in read_prompts(self.path, _PROMPTS, _REMEDY)]

    def _entry(self, record: dict[str, Any]) -> dict[str, Any]:
        language = record["language"]
        image = f"images/{language}/{record['prompt_id']:02d}.jpg"
        return entry(record, language, 1, f"{MODEL_NAME_MARK}/{self.dataset_name}/{image}")
