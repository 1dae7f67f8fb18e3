"""GenEval 2's means, and its breakdown by skill and by atomicity. Scores of atoms are 0-1, so are the results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

SKILLS = ("object", "attribute", "count", "position", "verb")
ATOMICITIES = range(3, 11)


class Atoms(NamedTuple):
    """The scores of one prompt's atoms and the skill of each.

    ``atomicity`` may be less than their number: the count-one atoms behind "a" are scored, but not counted.
    """

    atomicity: int
    skills: Sequence[str]
    scores: Sequence[float]


class Part(NamedTuple):
    """What one prompt gives to a mean: ``total`` over ``weight`` atoms, or its own score with weight 1."""

    total: float
    weight: int = 1


def arithmetic_mean(scores: Sequence[float]) -> float:
    """Soft-TIFA AM and TIFA of one prompt. ``scores`` is not empty."""
    return sum(scores) / len(scores)


def geometric_mean(scores: Sequence[float]) -> float:
    """Soft-TIFA GM of one prompt: exp(mean(ln q)) as scipy's ``gmean``, so any 0 gives 0."""
    if not all(scores):
        return 0.0
    return math.exp(sum(map(math.log, scores)) / len(scores))


def mean(parts: Iterable[Part]) -> float | None:
    """Σ total / Σ weight; None without parts."""
    parts = list(parts)
    return sum(part.total for part in parts) / sum(part.weight for part in parts) if parts else None


def by_skill(prompts: Sequence[Atoms]) -> Mapping[str, list[Part]]:
    """The AM view: of each skill, what every prompt that has it gives to the mean over all its atoms."""
    parts: dict[str, list[Part]] = {skill: [] for skill in SKILLS}
    for prompt in prompts:
        for skill in dict.fromkeys(prompt.skills):
            scores = [s for s, of in zip(prompt.scores, prompt.skills, strict=True) if of == skill]
            parts[skill].append(Part(sum(scores), len(scores)))
    return parts


def by_atomicity(prompts: Sequence[Atoms]) -> Mapping[int, list[Part]]:
    """The GM view: of each atomicity, the geometric mean of each of its prompts over *all* of its atoms."""
    parts: dict[int, list[Part]] = {atomicity: [] for atomicity in ATOMICITIES}
    for prompt in prompts:
        parts[prompt.atomicity].append(Part(geometric_mean(prompt.scores)))
    return parts
