"""Who answers a benchmark's questions, and the name under which its scores stand."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import Any

from imageevalkit import registry
from imageevalkit.benchmark.answerer import Answerer, digest
from imageevalkit.benchmark.contract import JUDGE, Benchmark
from imageevalkit.benchmark.question import Answer, Question
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure

_JUDGE_GROUP = "judge"


class Answerers:
    """The judge and the measurers of ``benchmark``; making them is cheap, what is slow happens with the first question.

    Raises:
        CellFailure: the words that the judge is asked with are not there.
    """

    def __init__(self, benchmark: Benchmark) -> None:
        self._benchmark = benchmark
        made: dict[str, Answerer] = {}
        self._groups: dict[str, Answerer] = {}
        groups = benchmark.measurers or ({_JUDGE_GROUP: JUDGE} if benchmark.judge else {})
        for group, measurer in groups.items():
            if (key := repr(measurer)) not in made:
                made[key] = _judge(benchmark) if measurer == JUDGE else registry.measurer(*measurer)
            self._groups[group] = made[key]
        self.judge = made.get(repr(JUDGE))
        self._current = self.judge

    def of(self, question: Question) -> Answerer:
        """Who answers it. Raises CellFailure: nobody does."""
        groups = self._groups
        answerer = groups.get(_JUDGE_GROUP if not self._benchmark.measurers else question.group)
        if answerer is None:
            raise CellFailure(
                f"benchmark {self._benchmark.name}: nobody measures '{question.group}', the group of the question "
                f"'{question.name}': name a measurer, or JUDGE, in measurers (there: {', '.join(groups)})"
            )
        return answerer

    def evaluator_of(self, question: Question) -> Evaluator:
        """The name of who answers it, and all that decides the answer."""
        return self.of(question).evaluator

    @cached_property
    def evaluator(self) -> Evaluator:
        """Who gives the scores: the answerer itself where there is one and no setting decides; else all by a hash.

        Raises:
            CellFailure: all that somebody misses (weights, a package), not only the first.
        """
        benchmark, parts = self._benchmark, self._evaluators()
        identity = dict(benchmark.identity)
        if len(set(self._groups.values())) == 1 and not identity.keys() - {"rules"}:
            [part] = set(self._groups.values())
            return _by_rules(part.evaluator, identity)
        ids = {group: part.id for group, part in parts.items()}
        label = self.judge.label if self.judge else self._kind
        rules = identity.get("rules", "official")
        return Evaluator(
            id=f"{label}/{rules}/{digest({'answerers': ids, **identity})[:8]}",
            official=benchmark.is_official and all(one.is_official for one in self._groups.values()),
            details={
                **benchmark.details,
                **identity,
                "answerers": {group: {"id": part.id, **part.details} for group, part in parts.items()},
            },
        )

    @property
    def _kind(self) -> str:
        for measurer in self._benchmark.measurers.values():
            return f"{registry.measurer_kind(measurer.name)}s"
        return "script"

    def _evaluators(self) -> dict[str, Evaluator]:
        parts, problems = {}, []
        for group, answerer in self._groups.items():
            try:
                parts[group] = answerer.evaluator
            except CellFailure as error:
                problems.append(str(error))
        if problems:
            raise CellFailure("; ".join(dict.fromkeys(problems)))
        return parts

    @property
    def counted(self) -> str:
        """The id of the one whose calls, tokens and dollars the result counts: the judge, if there is one."""
        return (self.judge or self).evaluator.id

    def has_answered(self, ids: set[str]) -> None:
        """Those with one of ``ids`` have answered in an earlier run."""
        for answerer in set(self._groups.values()) if ids else ():
            if answerer.evaluator.id in ids:
                answerer.has_answered()

    def holdup(self) -> str:
        """What holds the answers back now, in a few words; called from another thread."""
        return self._current.holdup() if self._current else ""

    def ask(self, questions: Sequence[Question], workers: int) -> Generator[Answer, None, None]:
        """The answers, as they come: of measurers first, who take minutes where a judge takes hours.

        Who gives up among them has cost nothing yet. Raises JudgeUnusable and CellFailure as :class:`Answerer` does.
        """
        for answerer in sorted(dict.fromkeys(self._groups.values()), key=lambda one: one is self.judge):
            mine = [question for question in questions if self.of(question) is answerer]
            if mine:
                self._current = answerer
                yield from answerer.ask(mine, workers)


def _by_rules(evaluator: Evaluator, identity: Mapping[str, Any]) -> Evaluator:
    """``evaluator``, named by the rules too where they are not the official ones."""
    if not identity:
        return evaluator
    label, _, digest_ = evaluator.id.rpartition("/")
    return Evaluator(f"{label}/{identity['rules']}/{digest_}", False, {**evaluator.details, **identity})


def _judge(benchmark: Benchmark) -> Answerer:
    if not benchmark.judge:
        raise CellFailure(
            f"benchmark {benchmark.name} names nobody who answers its questions: give judge, or measurers, in "
            "benchmark.py"
        )
    if benchmark.backend:
        return registry.judge(benchmark.judge, benchmark.prompts, benchmark.official, benchmark.pixels)
    return registry.measurer(benchmark.judge, {})  # a reader in the place of a judge
