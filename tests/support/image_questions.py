"""Questions about images, of the kinds that GenEval 2 asks."""

from __future__ import annotations

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


def make_prompts(count: int) -> list[Prompt]:
    """Prompts of two to four atoms, in GenEval 2's words."""
    rng = random.Random(0)
    prompts = []
    for n in range(count):
        things = rng.sample(["dogs", "red chairs", "flowers", "spoons", "bears", "green cars"], 2)
        atoms = [(f"How many {thing} are in the image?", rng.choice(list(_DIGITS))) for thing in things]
        atoms += [(f"Are there any {thing} in the image?", "Yes") for thing in things] * (1 + n % 2)
        prompts.append(Prompt(f"{n} {' and '.join(things)}", atoms))
    return prompts


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
            forms = (answer, answer.capitalize(), _DIGITS[answer])
            wanted = (*forms, *(f" {form}" for form in forms))
        questions.append(ask_about(picture, f"{question} One word, please.", wanted, f"atom/{n}"))
    return questions


def prompt_question(prompt: Prompt, picture: Picture) -> Question:
    """Returns the question of VQAScore: the whole prompt at once."""
    return ask_about(picture, f'Is this "{prompt.text}"? Say Yes or No.', _YES, "prompt")
