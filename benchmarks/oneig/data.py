"""OneIG-Bench's prompts with all that the evaluation needs to know of them, from the official files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.oneig.editions import FOLDERS, Edition
from benchmarks.oneig.scored import Prompt
from imageevalkit.errors import CellFailure

T = TypeVar("T")


def read_prompts(folder: Path, edition: Edition) -> list[Prompt]:
    """The prompts of ``edition`` in the order of its file, from its files in ``folder``.

    Raises:
        CellFailure: a file is missing or is not what upstream publishes.
    """
    remedy = f"run: bash utils/prefetch.sh --ds_names {edition.name}"
    rows = _read(folder / edition.prompt_file, remedy, _rows)
    texts = _read(folder / f"text_content{edition.suffix}.csv", remedy, _rows)
    expected = {row["id"]: row["text_content"] for row in texts}
    answers = _read(folder / f"gt_answer{edition.suffix}.json", remedy, _object)
    asked = {
        name: _read(folder / f"{name}{edition.suffix}.json", remedy, _object)
        for name in edition.sizes
        if name not in ("text", "reasoning")
    }
    try:
        prompts = [_prompt(row, edition, expected, answers, asked) for row in rows]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CellFailure(
            f"the files of {edition.name} in {folder} do not belong together ({what}); {remedy}"
        ) from None
    sizes = {name: sum(prompt.class_item == name for prompt in prompts) for name in edition.sizes}
    if sizes != dict(edition.sizes) or len({(p.class_item, p.id) for p in prompts}) != len(prompts):
        raise CellFailure(
            f"{folder / edition.prompt_file} does not hold the {edition.name} prompts; {remedy}"
        )
    return prompts


def _prompt(
    row: Mapping[str, str],
    edition: Edition,
    expected: Mapping[str, str],
    answers: Mapping[str, str],
    asked: Mapping[str, Mapping[str, Mapping[str, str]]],
) -> Prompt:
    class_item, prompt_id = FOLDERS[row["category"]], row["id"]
    entry = asked[class_item][prompt_id] if class_item in asked else {}
    return Prompt(
        class_item=class_item,
        id=prompt_id,
        text=row[edition.prompt_column],
        type=row.get("type", ""),
        length=row.get("prompt_length", ""),
        label=row["class"],
        # JSON within JSON
        questions={int(n): text for n, text in json.loads(entry.get("question", "{}")).items()},
        parents={
            int(n): [parent for parent in parents if parent]
            for n, parents in json.loads(entry.get("dependency", "{}")).items()
        },
        expected_text=expected[prompt_id] if class_item == "text" else "",
        answer=answers[prompt_id] if class_item == "reasoning" else "",
    )


def _read(path: Path, remedy: str, parse: Callable[[str], T]) -> T:
    try:
        # universal newlines would change those within a text
        with path.open(encoding="utf-8", newline="") as file:
            return parse(file.read())
    except OSError as error:
        raise CellFailure(f"{path} cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, csv.Error) as error:
        raise CellFailure(f"{path} is not what upstream publishes ({error}); {remedy}") from None


def _rows(text: str) -> list[dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("a row has another number of columns")
    return rows


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
