"""The metrics of a GenEval 2 run: four methods, their breakdown, and what the evaluator could not see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.geneval2.analysis import (
    Atoms,
    Part,
    arithmetic_mean,
    by_atomicity,
    by_skill,
    geometric_mean,
    mean,
)
from imageevalkit.cell.results import Metric
from imageevalkit.metrics.intervals import interval

PROMPTS = 800
"""Of the whole benchmark. The official evaluator gives no score when one lacks its image."""
SCALE = 100.0


class Scored(NamedTuple):
    """What the evaluator said of one prompt's image; all probabilities 0-1, one per atom and in their order.

    ``line`` is the one of the data file, from 0. ``soft`` are the soft scores of the official evaluator,
    ``corrected`` those without the probability of a bare space (quirk Q1), ``right`` whether the most probable
    token is an accepted one. ``vqascore`` is that of the whole prompt. ``outside`` is the probability that the
    evaluator could not see, of each atom's answer; ``vqascore_outside`` is that of the whole prompt's.
    """

    line: int
    atomicity: int
    skills: Sequence[str]
    soft: Sequence[float]
    corrected: Sequence[float]
    right: Sequence[bool]
    vqascore: float
    outside: Sequence[float]
    vqascore_outside: float

    @property
    def unseen(self) -> list[float]:
        """The probability that was not seen, of every question."""
        return [*self.outside, self.vqascore_outside]

    @property
    def upper(self) -> list[float]:
        """The largest that each soft score can be, given what was not seen."""
        return [_upper(q, unseen) for q, unseen in zip(self.soft, self.outside, strict=True)]


def _upper(score: float, unseen: float) -> float:
    return max(score, min(1.0, score + unseen))


Method = Callable[[Scored], float]

METHODS: Mapping[str, Method] = {
    "soft_tifa_gm": lambda scored: geometric_mean(scored.soft),
    "soft_tifa_am": lambda scored: arithmetic_mean(scored.soft),
    "tifa": lambda scored: arithmetic_mean(scored.right),
    "vqascore": lambda scored: scored.vqascore,
}
"""The official methods: the score of a prompt, 0-1."""

_CORRECTED: Mapping[str, Method] = {
    "soft_tifa_gm_corrected": lambda scored: geometric_mean(scored.corrected),
    "soft_tifa_am_corrected": lambda scored: arithmetic_mean(scored.corrected),
}

# an answer that is not among the top tokens scores 0, and one 0 makes a geometric mean 0: the true score of such a
# prompt may be anything up to this
_UPPER: Mapping[str, Method] = {
    "soft_tifa_gm_upper": lambda scored: geometric_mean(scored.upper),
    "soft_tifa_am_upper": lambda scored: arithmetic_mean(scored.upper),
    "vqascore_upper": lambda scored: _upper(scored.vqascore, scored.vqascore_outside),
}


def official_name(method: str) -> str:
    """The metric that exists only when the official evaluator gives a score."""
    return f"{method}_official"


def metrics(scored: Sequence[Scored]) -> dict[str, Metric]:
    """Every metric of a cell by name, on a scale of 100; ``n`` counts prompts.

    The methods, the same ``_corrected``, by skill (Soft-TIFA AM) and by atomicity (Soft-TIFA GM), groups without
    prompts left out; ``_official``: without value unless all 800 prompts are there. Where the evaluator saw only
    the top tokens, ``_upper`` bounds and ``outside_mass`` (mean and largest over all questions, 0-1).
    """
    scored = sorted(scored, key=lambda one: one.line)
    result = {name: _mean(method, scored) for name, method in {**METHODS, **_CORRECTED}.items()}
    atoms = [Atoms(one.atomicity, one.skills, one.soft) for one in scored]
    result |= {f"skill/{skill}": _metric(parts) for skill, parts in by_skill(atoms).items() if parts}
    result |= {f"atomicity/{k}": _metric(parts) for k, parts in by_atomicity(atoms).items() if parts}
    complete = len(scored) == PROMPTS
    for name in METHODS:
        result[official_name(name)] = result[name] if complete else Metric(None, len(scored), scale=SCALE)
    unseen = [mass for one in scored for mass in one.unseen]
    if any(unseen):
        result |= {name: _mean(method, scored) for name, method in _UPPER.items()}
        result["outside_mass"] = Metric(sum(unseen) / len(unseen), len(scored))
        result["outside_mass_max"] = Metric(max(unseen), len(scored))
    return result


def _mean(method: Method, scored: Sequence[Scored]) -> Metric:
    return _metric([Part(method(one)) for one in scored])


def _metric(parts: Sequence[Part]) -> Metric:
    value, bounds = mean(parts), interval(parts)
    return Metric(
        None if value is None else SCALE * value,
        len(parts),
        None if bounds is None else (SCALE * bounds[0], SCALE * bounds[1]),
        SCALE,
    )
