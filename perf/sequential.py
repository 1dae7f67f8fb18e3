"""How many images --until saves, and how often its verdict is wrong, by simulation: no GPU, no server, minutes.

Each row is a benchmark of so many prompts and two models whose scores of one prompt correlate, drawn anew each time
(Gaussian copula): right or wrong, about one half, or grades of a Beta distribution with a standard deviation of 0.2.
Rounds are those of a run. ``used`` is the mean share of the images that were asked for; ``agree``: how often the better
model is that of a run of all images (one that is never settled is such a run); ``told``: how often there is a verdict,
of equal models a wrong one. ``in groups``: a mean of the means of six groups of different sizes, in which the
models of equal means differ by ± 0.1.

Held to bars are, of all rows: agreement, at least 95 %; verdicts on equal models, at most 5 % (and what chance adds to
so many draws); and the share used where the models differ by 5 % and the standard error of their difference over the
whole benchmark is below a tenth of that. With fewer prompts, or scores that vary more, no test of 40 % of the
images tells 5 %: the rows say how much it takes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.stats import beta, norm

from imageevalkit.extras.until.rounds import first_round, next_round
from imageevalkit.extras.until.sequential import verdict

SIZES, DIFFERENCES, CORRELATIONS = (200, 553, 1000, 5000), (0.0, 0.01, 0.02, 0.05, 0.1), (0.3, 0.5, 0.8)
AGREES, WRONG, USED = 0.95, 0.05, 0.40
_GRADES = 5.0  # a + b of the Beta distribution: a standard deviation of 0.2 about 0.6
_GRID = np.linspace(0, 1, 1001)


class Setting(NamedTuple):
    """A benchmark of ``prompts``, scored ``binary`` or by grades; the models differ by ``difference``, their scores of
    one prompt have this ``correlation``. ``groups``: the mean is that of six groups."""

    binary: bool
    prompts: int
    difference: float
    correlation: float
    groups: bool = False

    def __str__(self) -> str:
        kind = "right or wrong" if self.binary else "grades"
        words = (
            f"{kind}, {self.prompts:,} prompts, {self.difference:.0%} apart, correlation {self.correlation}"
        )
        return words + ", in groups" * self.groups


class Found(NamedTuple):
    """What came of the draws of a setting, as shares of 1; ``noise`` is the standard deviation of a difference."""

    used: float
    agree: float
    told: float
    noise: float


_SHARES = [1 / 6] * 6
_SIZES_OF_GROUPS = np.array([0.145, 0.18, 0.145, 0.17, 0.18, 0.18])  # of GenEval's six tasks


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Differences of all prompts in their random order, and the group of each."""
    common, mine, theirs = rng.standard_normal((3, setting.prompts))
    shared, own = math.sqrt(setting.correlation), math.sqrt(1 - setting.correlation)
    ranks = [norm.cdf(shared * common + own * each) for each in (mine, theirs)]
    groups: np.ndarray = np.zeros(setting.prompts, int)
    shift = np.full(setting.prompts, setting.difference / 2)
    if setting.groups:
        groups = rng.choice(6, setting.prompts, p=_SIZES_OF_GROUPS / _SIZES_OF_GROUPS.sum())
        shift += np.where(groups % 2, 0.05, -0.05)
    given = [_score(setting.binary, u, sign * shift) for u, sign in zip(ranks, (1, -1), strict=True)]
    return given[0] - given[1], groups


def _score(binary: bool, ranks: np.ndarray, shift: np.ndarray) -> np.ndarray:
    if binary:
        return (ranks < 0.5 + shift).astype(float)
    found: np.ndarray = np.zeros(len(ranks))
    for step in np.unique(shift):
        mean = 0.6 + step
        # quantiles between those of a grid: the exact ones take a hundred times as long
        table = beta.ppf(_GRID, mean * _GRADES, (1 - mean) * _GRADES)
        found[shift == step] = np.interp(ranks[shift == step], _GRID, table)
    return found


def try_out(setting: Setting, draws: int, seed: int = 1) -> Found:
    """Run ``setting`` so often in rounds."""
    rng, used, agree, told, noise = np.random.default_rng(seed), 0.0, 0, 0, 0.0
    shares = _SHARES if setting.groups else [1.0]
    for _ in range(draws):
        given, groups = draw(setting, rng)
        found = verdict(given, setting.prompts, groups, shares)
        asked = first_round(setting.prompts)
        while asked < setting.prompts and (found.first_is_better is None or asked < found.items):
            asked = next_round(asked, setting.prompts)
        settled = found.first_is_better if asked < setting.prompts else None
        whole = sum(
            share * float(given[groups == n].mean()) for n, share in enumerate(shares) if (groups == n).any()
        )
        used += asked / setting.prompts
        agree += settled is None or settled == (whole > 0)
        told += settled is not None
        noise += float(given.std())
    return Found(used / draws, agree / draws, told / draws, noise / draws)


def settings() -> Iterator[Setting]:
    """Every row."""
    for binary in (True, False):
        for prompts in SIZES:
            for difference in DIFFERENCES:
                for correlation in CORRELATIONS:
                    yield Setting(binary, prompts, difference, correlation)
            yield Setting(binary, prompts, 0.0, 0.5, groups=True)


def problem(setting: Setting, found: Found, draws: int) -> str:
    """Which bar is missed; empty: none."""
    if found.agree < AGREES - _chance(AGREES, draws):
        return f"agrees in {found.agree:.1%}"
    if setting.difference == 0 and found.told > WRONG + _chance(WRONG, draws):
        return f"wrong in {found.told:.1%}"
    # ten standard errors between two models
    is_sharp = 10 * found.noise / math.sqrt(setting.prompts) < setting.difference
    if setting.difference == 0.05 and is_sharp and found.used > USED:
        return f"used {found.used:.0%}"
    return ""


def _chance(share: float, draws: int) -> float:
    """Three standard errors of a share."""
    return 3 * math.sqrt(share * (1 - share) / draws)


def main() -> int:
    """A line for each setting; the status is 1 where a bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=200, help="of each setting")
    draws, missed = parser.parse_args().draws, 0
    for setting in settings():
        found = try_out(setting, draws)
        wrong = problem(setting, found, draws)
        missed += bool(wrong)
        figures = f"used {found.used:4.0%}  agree {found.agree:6.1%}  told {found.told:6.1%}  noise {found.noise:.2f}"
        print(f"{setting!s:76}{figures}{'  MISSED: ' if wrong else ''}{wrong}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
