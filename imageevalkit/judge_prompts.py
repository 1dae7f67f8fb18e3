"""The official judge prompts of a benchmark, as ``utils/prefetch.sh`` leaves them in its data folder."""

from __future__ import annotations

import json

from imageevalkit.assets import PromptsAsset, data_folder, explain, local_assets, problem_of
from imageevalkit.errors import CellFailure


def load(benchmark: str) -> dict[str, str]:
    """The prompts of ``benchmark`` by ``file::function#role`` of the official code, every byte verified.

    Raises:
        CellFailure: they are not there or not the pinned ones; the message says how to get them.
    """
    prompts: dict[str, str] = {}
    for asset in local_assets(benchmark):
        if not isinstance(asset, PromptsAsset):
            continue
        if problem := problem_of(asset, benchmark, hashes=True):
            raise CellFailure(explain([problem], benchmark))
        prompts |= json.loads((data_folder(benchmark) / asset.path).read_text(encoding="utf-8"))
    return prompts
