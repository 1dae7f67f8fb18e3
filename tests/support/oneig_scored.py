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
from benchmarks.oneig.scored import Prompt, ScoredImage, Similarity, StyleSimilarities
from imageevalkit.cell import REPO
from tests.support.mirror import shared_mirror

_ANSWERS = ("Yes", "Yes", "Yes", "Yes", "No", "No", "Yes.", "yes", "是", "")
# of length 1, with inner products that are exact in binary
_EMBEDDINGS = (
    (1.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (0.5, 0.5, 0.5, 0.5),
    (0.5, -0.5, 0.5, -0.5),
    (0.5, 0.5, -0.5, -0.5),
)
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


def image_of(prompt: Prompt, place: int) -> ScoredImage:
    """An image with answers of every task; the same each time."""
    rng = random.Random(f"{prompt.class_item}/{prompt.id}/{place}")
    of_question = {question: rng.choice(_ANSWERS) for question in prompt.questions.values()}
    low = -0.6 if rng.random() < 0.2 else 0.0
    return ScoredImage(
        REPO / f"output/m/oneig/images/{prompt.class_item}/{prompt.id}_{place + 1}.png",
        answers={number: of_question[question] for number, question in prompt.questions.items()},
        reading=rng.choice(transcriptions(prompt.expected_text, place)) if prompt.expected_text else "",
        similarity=Similarity(rng.uniform(-0.1, 0.5), rng.uniform(-0.1, 0.5)),
        style=StyleSimilarities(
            [rng.uniform(low, low + 0.6) for _ in range(3)],
            [rng.randrange(256) / 256 + low for _ in range(3)],
            [rng.uniform(low, low + 0.6) for _ in range(3)],
        ),
        embedding=rng.choice(_EMBEDDINGS),
    )
