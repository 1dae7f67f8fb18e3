"""The official judge prompts of a benchmark, as ``imageevalkit.prefetch`` leaves them in its data folder."""

from __future__ import annotations

import json

from imageevalkit.assets import data_folder, explain
from imageevalkit.errors import CellFailure

FILE = "judge_prompts.json"


def load(benchmark: str) -> dict[str, str]:
    """The prompts of ``benchmark`` by ``file::function#role`` of the official code.

    Raises:
        CellFailure: they are not there; the message says how to get them.
    """
    try:
        prompts: dict[str, str] = json.loads((data_folder(benchmark) / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CellFailure(explain([f"{FILE} is missing"], benchmark)) from None
    return prompts
