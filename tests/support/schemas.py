"""Whether the files of a cell are as the schemas in ``docs/schemas/`` say."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.support.checkout import REPO

SCHEMAS = REPO / "docs/schemas"
FILES = {
    **{f"{name}.jsonl": name for name in ("generation", "judgements", "scores", "fingerprints", "prompts")},
    "repeats.jsonl": "judgements",
    "result.json": "result",
}


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """Returns a validator of the schema in which no object has a field without a name in the schema."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    return Draft202012Validator(_closed(schema))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(one) for key, one in schema.items()}
    if "properties" in schema and schema.get("type") not in (None, "array"):
        closed.setdefault("additionalProperties", False)
    return closed


def check_files(folder: Path) -> set[str]:
    """The names of the files in the folder of a cell that were checked; asserts that each is as its schema says."""
    checked = set()
    batches = {file.name: "batches" for file in folder.glob("*.json") if folder.name.endswith("batches")}
    for name, schema in {**FILES, **batches}.items():
        path = folder / name
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        lines = [text] if name.endswith(".json") else text.splitlines()
        records = [json.loads(line) for line in lines]
        for record in records:
            wrong = [
                f"{error.json_path}: {error.message[:200]}" for error in validator(schema).iter_errors(record)
            ]
            assert wrong == [], (path, wrong)
        assert records, path
        checked.add(name)
    return checked
