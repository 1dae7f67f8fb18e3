"""What a benchmark gives the evaluate engine; found at ``benchmarks/<name>/benchmark.py``."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from imageevalkit.assets import benchmark_folder
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Evaluator, Metric
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.evaluation.question import Answer, Picture, Question, Reply
from imageevalkit.guest_code import guest_code
from imageevalkit.secrets import one_line

Rules = Literal["official", "corrected"]
RULES: tuple[Rules, ...] = ("official", "corrected")
"""As the official evaluator has them, quirks included; and with those mended that the README names."""


class Unparsed(Exception):
    """The evaluator replied, but the reply holds no score; its text says what is wrong with it."""


@dataclass(frozen=True)
class Score:
    """One item's score. ``values`` are numbers by metric, ``keys`` group items, ``detail`` is for reading."""

    item: str
    values: dict[str, float]
    keys: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


class Judged(NamedTuple):
    """All that is known of one item when every question was asked.

    ``replies`` and ``parsed`` are by the name of the question, and lack those without an answer or without a
    score in it; ``score`` is None unless every question has one. ``image`` is None when there is none; ``attempted`` is
    False where nobody has tried to make one, so that an official evaluator would find no trace of it.
    """

    item: Item
    image: Path | None
    replies: Mapping[str, Reply]
    parsed: Mapping[str, Any]
    score: Score | None
    attempted: bool = True


class Benchmark(ABC):
    """Scoring rules of one benchmark with one evaluator.

    ``headline`` names the metrics for the leaderboard, ``official_headline`` those that stand in their place
    when missing items are treated as the official evaluator does. ``tries`` is how often a question is asked
    until its reply holds a score: more than once only where the official evaluator does that. ``scores_blank``:
    whether the official evaluator scores the placeholder of an image that was not made. ``judge_scale`` are the lowest
    and the highest score that a judge is told to give: one beyond is none under ``corrected`` rules; under ``official``
    ones it is what :meth:`parse` makes of it, and the result tells. ``unbounded`` are the metrics, by name or shell
    pattern, whose values may lie beyond their scale; of any other such a value is a fault.
    """

    name: str
    version: str
    headline: Sequence[str]
    official_headline: Sequence[str] = ()
    rules: Rules = "official"
    judge_scale: tuple[float, float] | None = None
    unbounded: Sequence[str] = ()
    tries: int = 1
    scores_blank: bool = True

    @property
    @abstractmethod
    def evaluator(self) -> Evaluator:
        """Who measures. Costs no model load: a run with nothing to ask needs it too."""

    def answerer(self, question: Question) -> Evaluator:
        """Who answers ``question``: only what is asked of another one, or in another way, is asked anew."""
        return self.evaluator

    @property
    def judge_id(self) -> str:
        """The id of the answerer whose calls, tokens and dollars the result counts."""
        return self.evaluator.id

    @abstractmethod
    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        """What to ask about the ``image`` of ``item``: always the same, with names that differ."""

    def has_answered(self, answerers: Collection[str]) -> None:  # noqa: B027 - most have no use for it
        """Told before :meth:`ask` who (by id) answered some of the questions in an earlier run."""

    def holdup(self) -> str:
        """What holds the answers back now, in a few words for the progress line; called from another thread."""
        return ""

    @abstractmethod
    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        """The answers, in any order, as they come; on ``workers`` CPU cores at most.

        Raises:
            JudgeUnusable: no further answer will come.
            CellFailure: the evaluator cannot start.
        """

    @abstractmethod
    def parse(self, question: Question, reply: Reply) -> Any:
        """The score in one reply, as a JSON value. Raises :class:`Unparsed`."""

    def stated(self, question: Question, reply: Reply) -> Mapping[str, float]:
        """The scores by name as a ``reply`` states them, to be held against ``judge_scale``; none by default."""
        return {}

    def beyond_scale(self, question: Question, reply: Reply) -> str:
        """What a ``reply`` states beyond ``judge_scale``, in words; empty where that is nothing."""
        if self.judge_scale is None:
            return ""
        low, high = self.judge_scale
        beyond = (
            f"{name} {value:g}"
            for name, value in self.stated(question, reply).items()
            if not low <= value <= high
        )
        return ", ".join(beyond)

    @abstractmethod
    def score(self, item: Item, parsed: Mapping[str, Any], replies: Mapping[str, Reply]) -> Score:
        """The score of an item from all its parsed replies, by the name of the question."""

    @abstractmethod
    def aggregate(self, judged: Sequence[Judged]) -> dict[str, Metric]:
        """The metrics over all items of the run, scored or not; headline ones are present even without scores.

        Where the official evaluator's own treatment of missing items gives another number, it is a metric of its
        own, named so.
        """

    def notes(self, judged: Sequence[Judged]) -> list[str]:
        """What a reader of the result should know about how it was measured, a sentence each; nothing by default."""
        return []

    def official_files(self, judged: Sequence[Judged]) -> dict[str, str]:
        """Texts in the official formats by file name, for ``official/`` beside the result; none by default."""
        return {}


def module_of(name: str) -> Any | None:
    """The module ``benchmark.py`` in the folder of the benchmark, or None when the benchmark has none.

    It offers ``make(judge) -> Benchmark`` and ``check_judge(judge) -> str`` (the full name of a judge, ``''``
    meaning the default; raises UserError), or ``configured`` (see :func:`rules_of`); it imports nothing heavy.
    """
    folder = benchmark_folder(name)
    if not (folder / "benchmark.py").is_file():
        return None
    with rules_code(name, "cannot be imported"):
        module = importlib.import_module(f"benchmarks.{folder.name}.benchmark")
    for function in () if _is_configurable(module) else ("make", "check_judge"):
        if not callable(getattr(module, function, None)):
            raise UserError(
                f"benchmarks/{folder.name}/benchmark.py lacks the function {function}(judge); "
                "benchmarks/geneval2/benchmark.py is an example"
            )
    return module


def read_rules(label: str, value: Any) -> Rules:
    """The setting ``rules`` of the benchmark ``label`` in a user's words. Raises UserError for another value."""
    if value not in RULES:
        raise UserError(
            f"{label}'s rules are {value!r}: use official or corrected{suggest(str(value), RULES)}"
        )
    return cast(Rules, value)


@contextmanager
def rules_code(name: str, problem: str) -> Iterator[None]:
    """A block that runs code of the benchmark's ``benchmark.py``; ``problem`` begins what is said of its errors.

    Raises:
        UserError: whatever it raises, or its own.
    """
    try:
        with guest_code():
            yield
    except (UserError, CellFailure):
        raise
    except Exception as error:
        where = f"benchmarks/{benchmark_folder(name).name}/benchmark.py"
        raise UserError(f"{where} {problem}: {type(error).__name__}: {one_line(error)}") from error


def _is_configurable(module: Any) -> bool:
    return callable(getattr(module, "configured", None))


def rules_of(name: str, given: Mapping[str, Any]) -> Any | None:
    """What makes the benchmark ``name`` with the settings ``given``, or None when it has a script of its own.

    That is its module; or, where the module offers ``configured(given)``, what this returns: it has ``make`` and
    ``check_judge`` as the module has (no judge, ``""``, where the settings leave nothing to ask one), and
    ``uses_encoders``, whether it measures with image encoders; ``of_images_elsewhere``, the names of settings that only
    mean something to ``--images``; ``missing()``, lines on what it lacks on this machine; and ``evaluator_assets()``,
    what prefetch gets for its evaluators other than the judge.

    Raises:
        UserError: an unknown or malformed setting, or any for a benchmark that takes none.
    """
    module = module_of(name)
    if module is not None and _is_configurable(module):
        with rules_code(name, "fails in configured()"):
            return module.configured(given)
    if given:
        raise UserError(f"benchmark {name} takes no settings, but '{next(iter(given))}' is given")
    return module


def check_judge(benchmark: str, judge: str, given: Mapping[str, Any]) -> str:
    """The judge to use for ``benchmark`` with the settings ``given``; ``''`` asks for its default.

    Raises:
        UserError: a judge that it cannot use, or a setting that it does not take.
    """
    rules = rules_of(benchmark, given)
    if rules is None:
        if judge:
            raise UserError(f"benchmark {benchmark} does not let you choose a judge (asked for '{judge}')")
        return ""
    with rules_code(benchmark, "fails in check_judge()"):
        return str(rules.check_judge(judge))
