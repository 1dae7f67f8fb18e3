"""The judge and metric models of a benchmark, the evaluator that they form, and the hash of a question."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property

from imageevalkit import registry
from imageevalkit.benchmark.answerer import Answerer, digest
from imageevalkit.benchmark.contract import JUDGE, Benchmark, require
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.machine import available_cores
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import some, to_bytes
from imageevalkit.jobs.plan import CORES_ENV
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.metrics import grouped
from imageevalkit.store.results import Evaluator

_JUDGE_GROUP = "judge"


class Answerers:
    """The judge and the metric models of ``benchmark``. ``options`` are the judge's.

    The constructor is cheap; a model loads with its first question. ``cores`` is the number of CPU cores of
    the job. Raises CellFailure if the texts of the judge's questions are missing.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        options: JudgeOptions = JudgeOptions(),  # noqa: B008 - immutable
    ) -> None:
        self._benchmark, self._options = benchmark, options
        self.cores = int(os.environ.get(CORES_ENV) or available_cores())
        made: dict[str, Answerer] = {}
        self._groups: dict[str, Answerer] = {}
        groups = benchmark.measurers or ({_JUDGE_GROUP: JUDGE} if benchmark.judge else {})
        for group, measurer in groups.items():
            if (key := repr(measurer)) not in made:
                made[key] = self._judge() if measurer == JUDGE else registry.measurer(*measurer)
            self._groups[group] = made[key]
        self.judge = self._asked = made.get(repr(JUDGE))

    def _judge(self) -> Answerer:
        one = self._benchmark
        if not one.judge:
            raise CellFailure(
                f"benchmark {one.name} has questions and no evaluator: give judge, or measurers, in benchmark.py"
            )
        if one.backend:
            return registry.judge(one.judge, one.prompts, one.official, one.pixels, self._options)
        return registry.measurer(one.judge, one.judge_options)

    def of(self, question: Question) -> Answerer:
        """Returns the evaluator of ``question``. Raises CellFailure if its group has none."""
        if not self._groups:
            return self._judge()
        answerer = self._groups.get(question.group if self._benchmark.measurers else _JUDGE_GROUP)
        if answerer is None:
            raise CellFailure(
                f"benchmark {self._benchmark.name}: '{question.group}', the group of the question "
                f"'{question.name}', has no evaluator: name a metric model, or JUDGE, in measurers (there: "
                f"{', '.join(self._groups)})"
            )
        return answerer

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator in the result. Its name has a hash of all judges, metric models and settings. Without
        settings that change scores, a single judge or metric model gives its own name. Corrected rules add
        the rules to the name.

        Raises CellFailure, with a message that lists all missing weights and packages.
        """
        benchmark, parts, problems = self._benchmark, dict[str, Evaluator](), dict[str, None]()
        for group, answerer in self._groups.items():
            try:
                parts[group] = answerer.evaluator
            except CellFailure as error:
                problems[str(error)] = None
        if problems:
            raise CellFailure(some(list(problems)))
        identity = dict(benchmark.identity)
        rules = identity.get("rules", "official")
        if len(set(self._groups.values())) == 1 and not identity.keys() - {"rules"}:
            part = next(iter(parts.values()))
            if not benchmark.has_corrected_rules:
                return part
            label, _, hash_of_part = part.id.rpartition("/")
            official = part.official and benchmark.is_official
            return Evaluator(f"{label}/{rules}/{hash_of_part}", official, {**part.details, **identity})
        ids = {group: part.id for group, part in parts.items()}
        label = benchmark.program
        if self.judge:
            label = self.judge.label
        elif benchmark.measurers:
            first, *_ = benchmark.measurers.values()
            label = f"{registry.measurer_setting(first.name).kind}s"
        return Evaluator(
            id=f"{label}/{rules}/{digest({'answerers': ids, **identity})[:8]}",
            official=benchmark.is_official and all(one.is_official for one in self._groups.values()),
            details={
                **benchmark.details,
                **identity,
                "answerers": {group: {"id": part.id, **part.details} for group, part in parts.items()},
            },
        )

    def ask(self, questions: Sequence[Question]) -> Generator[Answer, None, None]:
        """Yields the answers as they come, first from metric models: these take minutes, a judge takes hours.

        If a metric model fails, no money is spent on the judge. Raises the errors of :meth:`Answerer.ask`.
        """
        of_answerer = grouped(questions, self.of)
        for answerer in sorted(dict.fromkeys(self._groups.values()), key=lambda one: one is self.judge):
            if answerer in of_answerer:
                self._asked = answerer
                try:
                    answers = answerer.ask(of_answerer[answerer], self.cores)
                    where = f"benchmark {self._benchmark.name}: ask() of {answerer.evaluator.id}"
                    require(isinstance(answers, Iterable), where, answers, "Answers, one after another")
                    yield from answers
                except JudgeUnusable as error:
                    say(f"{answerer.evaluator.id} stopped answering: {one_line(error)}")
                    raise

    def holdup(self) -> str:
        """Returns in a few words why answers are late now, or "". Another thread calls it."""
        return self._asked.holdup() if self._asked else ""


def request_hash(question: Question, evaluator: Evaluator) -> str:
    """Returns the hash of a question to an evaluator. Questions with the same hash share one answer.

    The hash covers the evaluator with its versions and settings, all texts, the bytes of all images and the
    sampling. It does not cover the item, its path, or the evaluator's address.
    """
    messages = [
        [m.role, [p.request if isinstance(p, Picture) else p for p in m.parts]] for m in question.messages
    ]
    # without these parts the hash is the same as in older versions, so that recorded answers stay valid
    others: list[object] = [question.likeliest] if question.likeliest else []
    others += [{"repeat": question.repeat}] if question.repeat else []
    asked = [messages, vars(question.sampling), question.choices, *others]
    request = _ENCODER.encode(asked)
    return hashlib.sha256(to_bytes(f"[{evaluator.as_json}, {request[1:]}")).hexdigest()


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False)
