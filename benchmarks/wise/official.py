"""Results in the official evaluators' own files: the official calculators run on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.wise.categories import domains
from benchmarks.wise.protocol import Protocol
from imageevalkit.evaluation.benchmark import Judged


def official_files(judged: Sequence[Judged], protocol: Protocol) -> dict[str, str]:
    """Replies (``….json``) and scores (``….jsonl``) of each domain by name, sorted by prompt id.

    As there, an item without a score has no record. ``image_path`` is relative to the folder of the cell.
    """
    done = sorted((one for one in judged if one.score), key=lambda one: one.item.data["prompt_id"])
    files = {}
    for domain, categories in domains(protocol.categories).items():
        names = {category.name for category in categories}
        mine = [one for one in done if one.item.data["category"] in names]
        full, scores = protocol.result_files(domain)
        files[full] = json.dumps([_reply(one, protocol) for one in mine], ensure_ascii=False, indent=2)
        files[scores] = "".join(json.dumps(_scores(one), ensure_ascii=False) + "\n" for one in mine)
    return files


def _reply(judged: Judged, protocol: Protocol) -> dict[str, Any]:
    data = judged.item.data
    [reply] = judged.replies.values()
    return {
        "prompt_id": data["prompt_id"],
        "prompt": data["prompt"],
        "key": data["explanation"],
        "image_path": f"{judged.item.id}{judged.item.path.suffix}",
        "evaluation": protocol.clean(reply.text),
    }


def _scores(judged: Judged) -> dict[str, Any]:
    data = judged.item.data
    [scores] = judged.parsed.values()
    return {"prompt_id": data["prompt_id"], "Subcategory": data["subcategory"], **scores}
