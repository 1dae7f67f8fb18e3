"""GenEval 2: 800 templated prompts of rising atomicity, one image each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.geneval2.metric import PROMPTS
from benchmarks.geneval2.official import read_filepaths
from custom_datasets.text_prompts import read_prompts
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.items import MODEL_NAME_MARK, Item

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

    def find_images(self, source: Path, items: Sequence[Item]) -> dict[str, Path] | None:
        """The images by item, where ``source`` is a file: the official ``{prompt: image path}``.

        Raises:
            CellFailure: it is not that; the message says what is wrong.
        """
        if not source.is_file():
            return None
        try:
            path_of = read_filepaths(source)
        except UserError as error:
            raise CellFailure(str(error)) from None
        named = {item.id: path_of[item.data["prompt"]] for item in items if item.data["prompt"] in path_of}
        return {item: path for item, path in named.items() if path.is_file()}

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
