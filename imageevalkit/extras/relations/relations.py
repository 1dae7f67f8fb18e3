"""The relations of TRIG between two metrics on the same images: synergy, bottleneck, tilt, dispersion.

This module defines the relations and their thresholds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from imageevalkit.common.errors import UserError, suggest
from imageevalkit.store.jsonl import Int, Number

SYNERGY: Final = 0
DISPERSION: Final = 1
TILT: Final = 2
"""The first metric of a pair dominates the second."""
TILT_BACK: Final = -2
"""The second metric of a pair dominates the first."""
BOTTLENECK: Final = 3
NONE: Final = -1


class Kind(NamedTuple):
    """The appearance of a relation in the map: the ``colour`` of its field, with ``ink`` and ``mark``.
    ``type`` is its name in the official file.
    """

    name: str
    label: str
    colour: str
    ink: str
    mark: str
    type: str


KINDS: Mapping[int, Kind] = {
    SYNERGY: Kind("synergy", "Synergy: both high together", "#00cc44", "#08210f", "S", "synergy"),
    BOTTLENECK: Kind("bottleneck", "Bottleneck: both low together", "#9933ff", "#ffffff", "B", "bottleneck"),
    TILT: Kind("tilt", "Tilt: row dominates column", "#1a53ff", "#ffffff", "◀", "dominance"),
    TILT_BACK: Kind("tilt-back", "Tilt: column dominates row", "#ff3333", "#2b0505", "▲", "dominance"),
    DISPERSION: Kind("dispersion", "Dispersion: scattered", "#00a0dc", "#04202b", "D", "tradeoff"),
    NONE: Kind("none", "No relation found", "#f0f0f0", "#1a2130", "–", "undefined"),
}
"""The kinds by code, in the order of the legend. The metric of the row is the first of a pair."""

FEWEST = 10
"""The fewest points for a tilt and the fewest prompts for a bootstrap."""


def reversed_code(code: int) -> int:
    """Returns the code of the pair with its metrics swapped."""
    return -code if abs(code) == TILT else code


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of the relations of values from 0 to 1. Defaults: the official ``relation.yaml``.

    A point is in the synergy region if both values are above ``synergy``, and in the bottleneck region if
    both are below ``bottleneck``. All other points are in the trade-off region.

    * Synergy, bottleneck: at least the share ``synergy_density``, ``bottleneck_density`` is in the region.
    * Tilt: one side of the regression line has more than 1 / ``dominance_ratio`` times the points of the
      other side. Line and points belong to the trade-off region.
    * Dispersion: the correlation is below ``tradeoff_corr``.

    Raises ValueError if a threshold is out of range.
    """

    synergy: float = 0.8
    bottleneck: float = 0.5
    synergy_density: float = 0.4
    bottleneck_density: float = 0.4
    dominance_ratio: float = 0.8
    tradeoff_corr: float = 0.6

    def __post_init__(self) -> None:
        for each in fields(self):
            low = -1 if each.name == "tradeoff_corr" else 0
            value = getattr(self, each.name)
            if not low <= value <= 1:  # also rejects NaN
                raise ValueError(f"{each.name} must be from {low} to 1, not {value:g}")
        for name in ("synergy_density", "bottleneck_density", "dominance_ratio"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} must be above 0")
        if self.bottleneck > self.synergy:
            raise ValueError(
                f"bottleneck ({self.bottleneck:g}) must not be above synergy ({self.synergy:g}): a point has one region"
            )


PRESETS = {"official": Thresholds(), "paper": Thresholds(dominance_ratio=1 / 1.5, tradeoff_corr=0.7)}


@dataclass(frozen=True)
class Settings:
    """The settings of a user (``--relations_kwargs``): a preset, thresholds that replace its own.

    ``resamples`` is the number of bootstrap samples. Raises ValueError if a value is out of range.
    """

    preset: Literal["official", "paper"] = "official"
    synergy: float | None = None
    bottleneck: float | None = None
    synergy_density: float | None = None
    bottleneck_density: float | None = None
    dominance_ratio: float | None = None
    tradeoff_corr: float | None = None
    correlation: Literal["spearman", "pearson", "pareto"] = "spearman"
    resamples: int = 1000

    def __post_init__(self) -> None:
        if not 100 <= self.resamples <= 100_000:
            raise ValueError(f"resamples must be from 100 to 100000, not {self.resamples}")
        self.thresholds  # noqa: B018 - raises ValueError

    @property
    def thresholds(self) -> Thresholds:
        own = {each.name: getattr(self, each.name) for each in fields(Thresholds)}
        return replace(PRESETS[self.preset], **{name: one for name, one in own.items() if one is not None})


class Scored(NamedTuple):
    """The values of an image. Images of the same ``prompt`` are not independent."""

    item: str
    prompt: str
    values: Mapping[str, float]


_SCALES = "name its scale behind a slash: stars/5, grade/1:5, or niqe/10:0, where lower is better"


class Column(NamedTuple):
    """A metric as a user names it, with its scale after a slash.

    ``consistency/2`` is the value ``consistency`` from 0 to 2, ``grade/1:5`` is ``grade`` from 1 to 5. In
    ``IQ-A/niqe/10:0`` 10 is the worst and 0 the best value."""

    name: str
    worst: float = 0.0
    best: float = 1.0

    @classmethod
    def find(cls, text: str, known: Iterable[str]) -> Column:
        """Returns the column that ``text`` names. Raises UserError if its metric is not ``known``."""
        known = list(dict.fromkeys(known))
        if text in known:
            return cls(text)
        name, _, scale = text.rpartition("/")  # a name may have slashes
        worst, is_from, best = scale.rpartition(":")
        if name in known:
            with contextlib.suppress(ValueError):
                column = cls(name, float(worst) if is_from else 0.0, float(best))
                size = column.best - column.worst
                if math.isfinite(size) and (size != 0 if is_from else size > 0):
                    return column
            raise UserError(f"'{scale}' of '{text}' is no scale; {_SCALES}")
        has = f"each item has: {', '.join(known)}" if known else "no item has a value"
        raise UserError(f"there is no metric '{text}' of items{suggest(text, known)}; {has}")

    def value(self, scored: Scored) -> float | None:
        """Returns an image's value, scaled to 0-1, or None. Raises UserError if it is beyond the scale."""
        value = scored.values.get(self.name)
        if value is None:
            return None
        if not min(self.worst, self.best) <= value <= max(self.worst, self.best):
            raise UserError(
                f"relations are of scores from {self.worst:g} to {self.best:g}, but {self.name} of item "
                f"{scored.item} is {value:g}; {_SCALES}"
            )
        return (value - self.worst) / (self.best - self.worst)


@dataclass(frozen=True)
class Pair:
    """The relation of two metrics over ``n`` items, with the quantities that decided it.

    ``synergy`` and ``bottleneck`` are the shares of points in these regions, ``tradeoff`` is the number of
    other points. Of these, ``above`` points are above the regression line, ``on_line`` on it, and ``below``
    below or on it. ``correlation`` is None if undefined. ``codes`` are the shares of bootstrap samples by
    code (as text), empty with fewer than :data:`FEWEST` prompts.
    """

    first: str
    second: str
    code: Int
    n: Int
    means: tuple[Number, Number]
    synergy: Number
    bottleneck: Number
    tradeoff: Int
    above: Int
    below: Int
    on_line: Int
    correlation: Number | None
    codes: dict[str, Number]

    @property
    def name(self) -> str:
        return f"{self.first}_{self.second}"

    @property
    def is_line(self) -> bool:
        """Whether a tilt only exists because points on the line count as below it: all are on the line."""
        return abs(self.code) == TILT and self.on_line == self.tradeoff

    @property
    def certainty(self) -> float | None:
        """The share of bootstrap samples with the same relation; None without a bootstrap."""
        return self.codes.get(str(self.code), 0.0) if self.codes else None

    @property
    def opacity(self) -> float:
        """The opacity of the pair's field in the map, from 0.3 (certainty 0 or unknown) to 1."""
        return 0.3 + 0.7 * (self.certainty or 0.0)

    @property
    def next_likely(self) -> tuple[int, float] | None:
        """The most frequent other relation of the bootstrap samples, and its share; None if there is none."""
        others = {int(code): share for code, share in self.codes.items() if int(code) != self.code}
        return max(others.items(), key=lambda one: one[1], default=None)

    def words(self, code: int | None = None) -> str:
        """Returns the relation ``code`` (default: the pair's) in words: "tilt: IQ-R dominates TA-S"."""
        code = self.code if code is None else code
        name = KINDS[code].name.partition("-")[0]
        if code == NONE:
            return "no relation"
        one, other = (self.first, self.second) if code > 0 else (self.second, self.first)
        return f"{name}: {one} dominates {other}" if name == "tilt" else name

    def code_of(self, row: str) -> int:
        """Returns the code of the pair with the metric ``row`` first."""
        return self.code if row == self.first else reversed_code(self.code)

    def mean_of(self, metric: str) -> float:
        return self.means[0 if metric == self.first else 1]


@dataclass(frozen=True)
class Relations:
    """The relations of all pairs of ``metrics`` with common items, as recorded beside the official files.

    ``key`` is the hash of all inputs (:func:`key_of`). ``means`` are pooled over the items of all pairs of a
    metric. ``asked``: the user named the metrics, not the benchmark. ``items`` is the number of items with
    scores (0: unknown), ``limit`` the limit of the run.
    """

    key: str
    evaluator: str
    metrics: list[str]
    asked: bool
    settings: dict[str, Any]
    thresholds: dict[str, Number]
    correlation: str
    resamples: Int
    means: dict[str, Number]
    pairs: list[Pair]
    items: Int = 0
    limit: Int | None = None

    @cached_property
    def dimensions(self) -> list[str]:
        """The metrics with a pair, in alphabetical order: the rows and columns of the map."""
        return sorted(self.means)

    @cached_property
    def by_names(self) -> dict[frozenset[str], Pair]:
        return {frozenset((pair.first, pair.second)): pair for pair in self.pairs}

    def pair(self, one: str, other: str) -> Pair | None:
        return self.by_names.get(frozenset((one, other)))


def key_of(metrics: Sequence[str], settings: Settings, evaluator: str, scored: Iterable[Scored]) -> str:
    """Returns a hash of all inputs of relations: with the same key, recorded relations are reused."""
    asked = [_RULES, list(metrics), asdict(settings), evaluator]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for one in sorted(scored):
        digest.update(json.dumps(one, sort_keys=True).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


_RULES = 3
"""The version of the code. Raise it if the same scores lead to other relations, files or pictures."""
