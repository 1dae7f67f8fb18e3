"""GenEval 2: 800 templated prompts of rising atomicity, one image each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.geneval2.metric import PROMPTS
from custom_datasets.text_prompts import read_prompts
from imageevalkit.cell import REPO
from imageevalkit.cell.items import MODEL_NAME_MARK

_REMEDY = "run: bash utils/prefetch.sh --ds_names geneval2"


class GenEval2:
    """800 entries; the eight atomicities take turns, so that any first N of them cover all evenly.

    The data file is ordered by atomicity; an image is named after its prompt's line there, from 0.
    """

    folder: Path = REPO / "benchmarks" / "geneval2" / "data"

    def __init__(self) -> None:
        self.dataset_name = "geneval2"
        self.dataset_task = "t2i"
        self.data = self._entries()

    def _entries(self) -> list[dict[str, Any]]:
        records = read_prompts(self.folder / "geneval2_data.jsonl", PROMPTS, _REMEDY)
        by_atomicity: dict[int, list[dict[str, Any]]] = {}
        for index, record in enumerate(records):
            by_atomicity.setdefault(record["atom_count"], []).append(self._entry(index, record))
        return [entry for turn in zip(*by_atomicity.values(), strict=True) for entry in turn]

    def _entry(self, index: int, record: dict[str, Any]) -> dict[str, Any]:
        return {
            "prompt": record["prompt"],
            "seed": 0,
            "image_save_path": f"{MODEL_NAME_MARK}/{self.dataset_name}/images/{index:03d}.png",
            "index": index,
            "atom_count": record["atom_count"],
            "vqa_list": record["vqa_list"],
            "skills": record["skills"],
        }
