"""Prompt files of text-rendering benchmarks: JSON Lines in LongText-Bench's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imageevalkit.errors import CellFailure


def read_prompts(path: Path, expected: int, remedy: str) -> list[dict[str, Any]]:
    """The ``expected`` records of ``path``, in file order. ``remedy`` tells the user how to get the file.

    Raises:
        CellFailure: the file is missing, is no JSON Lines, or holds another number of records.
    """
    try:
        with path.open(encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
    except OSError as error:
        raise CellFailure(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    except ValueError as error:
        raise CellFailure(f"{path} is not JSON Lines ({error}); {remedy}") from error
    if len(records) != expected:
        raise CellFailure(f"{path} holds {len(records)} prompts, not {expected}; {remedy}")
    return records


def entry(record: dict[str, Any], language: str, seed: int, image_save_path: str) -> dict[str, Any]:
    """One dataset entry: what generation needs, and what evaluation compares and groups by."""
    return {
        "prompt": record["prompt"],
        "seed": seed,
        "image_save_path": image_save_path,
        "language": language,
        "category": record["category"],
        "length": record["length"],
        "prompt_id": record["prompt_id"],
        "expected": record["text"],
    }
