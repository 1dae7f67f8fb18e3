"""WISE: 1000 prompts whose picture must be inferred from world knowledge, in three editions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.wise.categories import LEGACY, VERIFIED, Category, category_of, domains
from custom_datasets.interleave import spread
from imageevalkit.assets import data_folder
from imageevalkit.cell.items import MODEL_NAME_MARK
from imageevalkit.errors import CellFailure

_TEXTS = ("Prompt", "Explanation", "Subcategory")


class WiseBench:
    """The paper's prompts (upstream: "legacy"), one image each.

    Entries come in an order in which any first N hold each category in its share of the benchmark (by less than two
    entries; all six from 7 on), and within a category each subcategory.
    """

    name = "wise"
    suffix = ""
    categories: Sequence[Category] = LEGACY

    def __init__(self) -> None:
        self.dataset_name = self.name
        self.dataset_task = "t2i"
        self.data = self._entries()

    def _entries(self) -> list[dict[str, Any]]:
        records = [record for domain in domains(self.categories) for record in self._read(domain)]
        entries = [self._entry(record) for record in records]
        by_category = _grouped(entries, "category")
        return spread(spread(_grouped(by_category[c.name], "subcategory").values()) for c in self.categories)

    def _entry(self, record: Mapping[str, Any]) -> dict[str, Any]:
        prompt_id = record["prompt_id"]
        return {
            "prompt": record["Prompt"],
            "seed": 0,
            "image_save_path": f"{MODEL_NAME_MARK}/{self.name}/images/{prompt_id}.png",
            "prompt_id": prompt_id,
            "category": category_of(prompt_id, self.categories).name,
            "subcategory": record["Subcategory"],
            "explanation": record["Explanation"],
        }

    def _read(self, domain: str) -> list[dict[str, Any]]:
        """The records of a domain's file. Raises CellFailure when it is not what upstream publishes."""
        path = data_folder(self.name) / f"{domain}{self.suffix}.json"
        ids = [prompt_id for category in domains(self.categories)[domain] for prompt_id in category.ids]
        try:
            records = json.loads(path.read_bytes())
            problem = _problem(records, ids)
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        except ValueError as error:
            problem = f"is no JSON ({error})"
        if problem:
            raise CellFailure(f"{path} {problem}; run: bash utils/prefetch.sh --ds_names {self.name}")
        return records


class WiseVerifiedBench(WiseBench):
    """Upstream's current prompts; an id may stand for another prompt than in the paper's."""

    name = "wise-verified"
    suffix = "_verified"
    categories = VERIFIED


class WiseRewriteBench(WiseBench):
    """The paper's prompts rewritten to say what they mean."""

    name = "wise-rewrite"
    suffix = "_rewrite"


def _problem(records: Any, ids: Sequence[int]) -> str:
    """What is wrong with the content of a data file that should hold ``ids``, or an empty string."""
    if not isinstance(records, list):
        return "is no list of prompts"
    for n, record in enumerate(records):
        if not isinstance(record, dict) or type(record.get("prompt_id")) is not int:
            return f"has no whole number as prompt_id in entry {n}"
        for key in _TEXTS:
            if not isinstance(record.get(key), str) or not record[key]:
                return f"has no text {key} in the entry of prompt {record['prompt_id']}"
    if sorted(record["prompt_id"] for record in records) != list(ids):
        return f"holds {len(records)} prompts, not those with the ids {ids[0]} to {ids[-1]}"
    return ""


def _grouped(entries: Iterable[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(entry[key], []).append(entry)
    return groups
