"""Questions about images, of the kinds that GenEval 2 asks, over real prompts where a mirror has them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from imageevalkit.benchmark.question import Message, Picture, Question, Sampling
from imageevalkit.common.images import sha256_file

_DIGITS = dict(zip(["one", "two", "three", "four", "five", "six", "seven"], "1234567", strict=True))
_YES = ("Yes", "yes", " yes", " Yes")


class Prompt(NamedTuple):
    """``atoms`` are pairs of a question and its answer."""

    text: str
    atoms: list[tuple[str, str]]


class Prompts(NamedTuple):
    """``source`` says where ``prompts`` come from."""

    source: str
    prompts: list[Prompt]


def read_prompts(count: int) -> Prompts:
    """``count`` prompts spread evenly over GenEval 2, whose later prompts have more atoms; else as many synthetic."""
    root = Path(__file__).resolve().parents[2]
    mirror = Path(os.environ.get("SHARED_MIRROR") or root.parent / "shared/mirror")
    for path in sorted(mirror.glob("facebookresearch/GenEval2/*/geneval2_data.jsonl")):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        chosen = records[:: len(records) // count][:count]
        return Prompts(
            "GenEval 2", [Prompt(r["prompt"], [tuple(pair) for pair in r["vqa_list"]]) for r in chosen]
        )
    rng = random.Random(0)
    prompts = []
    for n in range(count):
        things = rng.sample(["dogs", "red chairs", "flowers", "spoons", "bears", "green cars"], 2)
        atoms = [(f"How many {thing} are in the image?", rng.choice(list(_DIGITS))) for thing in things]
        atoms += [(f"Are there any {thing} in the image?", "Yes") for thing in things] * (1 + n % 2)
        prompts.append(Prompt(f"{n} {' and '.join(things)}", atoms))
    return Prompts("synthetic", prompts)


def save_image(path: Path, size: tuple[int, int], seed: int = 0) -> Picture:
    """A picture of blurred noise, which no two seeds share."""
    small = Image.frombytes("RGB", (8, 8), random.Random(seed).randbytes(192))
    small.resize(size, Image.Resampling.BICUBIC).save(path)
    return Picture(path, sha256_file(path))


def ask_about(
    picture: Picture, text: str, wanted: Sequence[str] = (), name: str = "q", sampling: Sampling | None = None
) -> Question:
    """One user message: image, then text."""
    return Question(
        name,
        (Message("user", (picture, text)),),
        sampling or Sampling(max_tokens=1),
        tuple(wanted),
        item=picture.path.stem,
    )


def atom_questions(prompt: Prompt, picture: Picture) -> list[Question]:
    """Returns the questions of Soft-TIFA and TIFA: one for each atom, with the right answers as choices."""
    questions = []
    for n, (question, answer) in enumerate(prompt.atoms):
        wanted: tuple[str, ...] = _YES
        if question.startswith("How many"):
            digit = _DIGITS.get(answer, "other")
            wanted = (
                answer,
                answer.capitalize(),
                f" {answer}",
                f" {answer.capitalize()}",
                digit,
                f" {digit}",
            )
        questions.append(ask_about(picture, f"{question} One word, please.", wanted, f"atom/{n}"))
    return questions


def prompt_question(prompt: Prompt, picture: Picture) -> Question:
    """Returns the question of VQAScore: the whole prompt at once."""
    return ask_about(picture, f'Is this "{prompt.text}"? Say Yes or No.', _YES, "prompt")
