"""Prompts of OneIG-Bench as they are, and what evaluators might say of their images."""

from __future__ import annotations

import ast
import functools
import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.oneig.data import read_prompts
from benchmarks.oneig.editions import CHINESE, ENGLISH, Edition
from benchmarks.oneig.scored import Prompt
from imageevalkit.cell import REPO
from tests.support.mirror import shared_mirror

NOTHING = ("No text recognized", "No text recognized.")


def real_prompts(edition: Edition) -> list[Prompt]:
    """All of them; skips the test where the official files are not at hand."""
    return _read(edition.name, shared_mirror())


@functools.lru_cache
def _read(benchmark: str, mirror: Path) -> list[Prompt]:
    entries = json.loads((REPO / "benchmarks" / benchmark.replace("-", "_") / "assets.json").read_text())
    with TemporaryDirectory() as folder:
        for entry in entries:
            source = entry.get("source", {})
            if "path" in source:
                there = mirror / source["repo"] / source["commit"] / source["path"]
                (Path(folder) / entry["path"]).symlink_to(there)
        return read_prompts(Path(folder), {one.name: one for one in (ENGLISH, CHINESE)}[benchmark])


def transcriptions(raw: str, seed: int) -> list[str]:
    """What a judge might read where ``raw`` was to be written: right, then ever more wrong, then nothing."""
    rng = random.Random(seed)
    right = "\n".join(ast.literal_eval(raw))
    letters = list(right)
    for _ in range(1 + len(letters) // 12):
        place = rng.randrange(len(letters))
        letters[place : place + 2] = reversed(letters[place : place + 2])
    words = right.split(" ")
    return [
        right,
        raw,
        "".join(letter for letter in right if rng.random() > 0.1),
        "".join(letters),
        " ".join(rng.sample(words, len(words))),
        right.swapcase(),
        "".join(letter + rng.choice(["", "", "", "!", "-", "’", " ", "，"]) for letter in right),
        f"addCriterion\n{right[: len(right) // 2]}\naddCriterion",
        f"{right[:40]} {NOTHING[0]}",
        f"{right[-40:]}\n{NOTHING[1]}",
        *NOTHING,
        "",
    ]
