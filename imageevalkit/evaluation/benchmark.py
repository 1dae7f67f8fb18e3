"""What a benchmark gives the evaluate engine; found at ``benchmarks/<name>/benchmark.py``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from imageevalkit.cell import REPO
from imageevalkit.errors import UserError
from imageevalkit.items import Item
from imageevalkit.results import Evaluator, Metric
from imageevalkit.secrets import one_line


class Measurement(NamedTuple):
    """What the evaluator said about one item: its ``raw`` reply, or an ``error`` (then ``raw`` is None).

    ``question`` says what was asked, in the words of the field ("read the text") or of the prompt.
    """

    item: str
    raw: str | None
    error: str = ""
    seconds: float = 0.0
    question: str = ""


class Unparsed(Exception):
    """The evaluator replied, but the reply holds no score; its text says what is wrong with it."""


@dataclass(frozen=True)
class Score:
    """One item's score. ``values`` are numbers by metric, ``keys`` group items, ``detail`` is for reading."""

    item: str
    values: dict[str, float]
    keys: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


class Benchmark(Protocol):
    """Scoring rules of one benchmark with one evaluator. ``headline`` names metrics for the leaderboard."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def headline(self) -> Sequence[str]: ...

    @property
    def evaluator(self) -> Evaluator: ...

    def measure(
        self, images: Mapping[str, Path], items: Mapping[str, Item], workers: int
    ) -> Iterator[Measurement]:
        """Ask the evaluator about each image (by item id), in any order, as answers come."""
        ...

    def score(self, item: Item, raw: str) -> Score:
        """The score of one reply. Raises :class:`Unparsed`."""
        ...

    def aggregate(self, scores: Sequence[Score]) -> dict[str, Metric]:
        """The metrics over all scored items; headline ones are present even when nothing was scored."""
        ...


def module_of(name: str) -> Any | None:
    """The module ``benchmarks/<name>/benchmark.py``, or None when the benchmark has none.

    It offers ``make(judge) -> Benchmark`` and ``check_judge(judge) -> str`` (the full name of a judge, ``''``
    meaning the default; raises UserError), and imports nothing heavy.
    """
    if not (REPO / "benchmarks" / name / "benchmark.py").is_file():
        return None
    try:
        return importlib.import_module(f"benchmarks.{name}.benchmark")
    except Exception as error:
        raise UserError(
            f"benchmarks/{name}/benchmark.py cannot be imported: {type(error).__name__}: {one_line(error)}"
        ) from error


def check_judge(benchmark: str, judge: str) -> str:
    """The judge to use for ``benchmark``; ``''`` asks for its default. Raises UserError for one it cannot use."""
    module = module_of(benchmark)
    if module is None:
        if judge:
            raise UserError(f"benchmark {benchmark} does not let you choose a judge (asked for '{judge}')")
        return ""
    return str(module.check_judge(judge))
