"""Where a result comes from: code, data, model, machine, time."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from imageevalkit import __version__
from imageevalkit.cell import REPO, Cell
from imageevalkit.cell import fingerprint as fp
from imageevalkit.cell.items import Item
from imageevalkit.cell.records import OK, Record, last_records, spent_since
from imageevalkit.evaluation.interview import judgement_records
from imageevalkit.hashes import environment_hash

_GPU_NAMES = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
# with ``+changes`` when files differ from it; empty outside a checkout
_COMMIT = ("git", "describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*")


def provenance(cell: Cell, items: Sequence[Item], data_sha256: dict[str, str], judge: str) -> dict[str, Any]:
    """Of a result of ``cell``: ``data_sha256`` are those of the benchmark's files, ``judge`` is its name on record."""
    records = last_records(cell)
    mine = [records[item.id] for item in items if item.id in records]
    known = fp.known(cell.fingerprints)
    prompts = "\n".join(item.prompt_sha256 for item in items)
    return {
        "imageevalkit": __version__,
        "git_commit": _printed(*_COMMIT),
        "model_settings": [known.get(key, {}) for key in sorted({r.fingerprint for r in mine})],
        "model_packages": fp.packages_of(cell.fingerprints),
        "seeds_honoured": dict(Counter(str(r.seed_honoured).lower() for r in mine)),
        "generation_seconds": round(sum(r.seconds for r in mine), 2),
        **_money(cell, mine, known),
        **_judging(cell, judge),
        "data_sha256": data_sha256,
        "prompts_sha256": hashlib.sha256(prompts.encode()).hexdigest(),
        "environment": environment_hash(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpus": _printed(*_GPU_NAMES).splitlines() if os.environ.get("CUDA_VISIBLE_DEVICES") != "" else [],
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _money(cell: Cell, records: Sequence[Record], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """USD of all runs, lost and failed requests included; None as soon as one image of an API has no price."""
    prices = [
        record.price
        for record in records
        if record.status == OK and "host" in known.get(record.fingerprint, {})
    ]
    if unpriced := prices.count(None):
        return {"generation_usd": None, "generation_usd_unpriced": unpriced}
    spent = spent_since(cell, 0.0)
    return {"generation_usd": round(spent, 6) if prices or spent else None}


def _judging(cell: Cell, judge: str) -> dict[str, Any]:
    """What the judge took over all runs, repeated questions included; USD only where a price is known."""
    records = [r for r in judgement_records(cell) if r.get("evaluator") == judge]
    tokens: Counter[str] = Counter()
    for record in records:
        tokens.update(record.get("tokens") or {})
    prices = [record["usd"] for record in records if record.get("usd") is not None]
    return {
        "judge_calls": len(records),
        "judge_tokens": dict(tokens),
        "judge_usd": round(sum(prices), 6) if prices else None,
    }


def _printed(*command: str) -> str:
    """What a command prints; empty where it fails, or is not installed."""
    if not shutil.which(command[0]):
        return ""
    answer = subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""
