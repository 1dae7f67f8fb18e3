"""Stand-ins of what the benchmark prefer downloads: a list of prompts, and the texts of HPSv3 and UnifiedReward."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from imageevalkit.assets import BenchmarkFiles

PROMPTS = "".join(f"a thing of kind {n}\n" for n in range(2048))
TEXTS = {
    "hpsv3": {
        "hpsv3/dataset/data_collator_qwen.py::INSTRUCTION": "\nRate it.\nTextual prompt - {text_prompt}\n\n\n",
        "hpsv3/dataset/data_collator_qwen.py::prompt_with_special_token": "\nThe rating: <|Reward|>\n\nEND\n",
    },
    "unifiedreward": {
        "inference_qwen/image_generation/qwen_point_score_image_generation.py::messages": (
            "Rate it after 'Final Score:'.\nText Caption: [{prompt}]"
        ),
        "inference_qwen/UnifiedReward-2.0-inference/point_score_ACS_image_generation.py::problem": (
            "Alignment Score (1-5): X\nCoherence Score (1-5): Y\nStyle Score (1-5): Z\nText Caption: [{prompt}]"
        ),
    },
}
"""By model, the texts by key."""


def use_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the benchmark find the texts of all models."""
    found = {key: text for texts in TEXTS.values() for key, text in texts.items()}
    monkeypatch.setattr(BenchmarkFiles, "prompts", lambda files: found)


def write_texts(folder: Path) -> None:
    """Writes the texts below ``folder`` of the benchmark, and their hashes into its lists of assets."""
    for model, texts in TEXTS.items():
        path = folder / f"data/prompts/texts_{model}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(texts), encoding="utf-8")
        listed = folder / f"assets_{model}.txt"
        kept = [
            line for line in listed.read_text().splitlines() if line.startswith(("repository", "licence"))
        ]
        kept += [f"{hashlib.sha256(text.encode()).hexdigest()} {key}" for key, text in texts.items()]
        listed.write_text("\n".join([*kept, ""]), encoding="utf-8")
