"""Who answers a benchmark's questions, by what name; and asking them what is open, into ``judgements.jsonl``."""

from __future__ import annotations

import os
import reprlib
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from imageevalkit import registry
from imageevalkit.benchmark.answerer import Answerer, digest
from imageevalkit.benchmark.contract import JUDGE, Benchmark
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.cell import Cell
from imageevalkit.cell.jsonl import JsonlWriter
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure, say
from imageevalkit.evaluation.judgements import UNPARSED, Judgements, judgement_writer
from imageevalkit.machine import available_cores
from imageevalkit.progress import Progress, ProgressWriter
from imageevalkit.secrets import one_line, redact

# Of a judge that has not answered once: a thousand questions more would each fail after all their retries.
_FIRST_FAILURES = 10
_LOOK_EVERY = 0.5  # seconds
_JUDGE_GROUP = "judge"


class Answerers:
    """The judge and the measurers of ``benchmark``; making them is cheap, what is slow happens with the first question.

    Raises CellFailure: the words that the judge is asked with are not there.
    """

    def __init__(self, benchmark: Benchmark) -> None:
        self._benchmark = benchmark
        made: dict[str, Answerer] = {}
        self._groups: dict[str, Answerer] = {}
        groups = benchmark.measurers or ({_JUDGE_GROUP: JUDGE} if benchmark.judge else {})
        for group, measurer in groups.items():
            if (key := repr(measurer)) not in made:
                made[key] = self._judge() if measurer == JUDGE else registry.measurer(*measurer)
            self._groups[group] = made[key]
        self.judge = made.get(repr(JUDGE))
        self._current = self.judge

    def _judge(self) -> Answerer:
        one = self._benchmark
        if not one.judge:
            raise CellFailure(
                f"benchmark {one.name} names nobody who answers its questions: give judge, or measurers, in "
                "benchmark.py"
            )
        if one.backend:
            return registry.judge(one.judge, one.prompts, one.official, one.pixels)
        return registry.measurer(one.judge, {})  # a reader in the place of a judge

    def of(self, question: Question) -> Answerer:
        """Who answers it. Raises CellFailure: nobody does."""
        if not self._groups:
            return self._judge()
        answerer = self._groups.get(question.group if self._benchmark.measurers else _JUDGE_GROUP)
        if answerer is None:
            raise CellFailure(
                f"benchmark {self._benchmark.name}: nobody measures '{question.group}', the group of the question "
                f"'{question.name}': name a measurer, or JUDGE, in measurers (there: {', '.join(self._groups)})"
            )
        return answerer

    def evaluator_of(self, question: Question) -> Evaluator:
        """The name of who answers it, and all that decides the answer."""
        return self.of(question).evaluator

    @cached_property
    def evaluator(self) -> Evaluator:
        """Who gives the scores: the answerer itself where there is one and no setting decides; else all by a hash.

        Raises CellFailure: it names all that somebody misses (weights, a package).
        """
        benchmark, parts, problems = self._benchmark, dict[str, Evaluator](), list[str]()
        for group, answerer in self._groups.items():
            try:
                parts[group] = answerer.evaluator
            except CellFailure as error:
                problems.append(str(error))
        if problems:
            raise CellFailure("; ".join(dict.fromkeys(problems)))
        identity = dict(benchmark.identity)
        rules = identity.get("rules", "official")
        if len(set(self._groups.values())) == 1 and not identity.keys() - {"rules"}:
            part = next(iter(parts.values()))
            if not identity:
                return part
            label, _, hash_of_part = part.id.rpartition("/")
            return Evaluator(f"{label}/{rules}/{hash_of_part}", False, {**part.details, **identity})
        ids = {group: part.id for group, part in parts.items()}
        kinds = (registry.measurer_kind(measurer.name) for measurer in benchmark.measurers.values())
        label = self.judge.label if self.judge else next((f"{kind}s" for kind in kinds), "script")
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


class AskOptions(NamedTuple):
    """``ask`` False: only what is on record counts. ``retry_unparsed``: answers without a value are asked anew.

    ``workers`` are the CPU cores of the job.
    """

    workers: int = 1
    ask: bool = True
    retry_unparsed: bool = False

    @classmethod
    def from_environment(cls) -> AskOptions:
        """Those of this job, as the launcher decided."""
        return cls(
            workers=int(os.environ.get("IMAGEEVALKIT_CORES") or available_cores()),
            ask=os.environ.get("IMAGEEVALKIT_RESCORE") != "true",
            retry_unparsed=os.environ.get("IMAGEEVALKIT_RETRY_UNPARSED") == "true",
        )


class Interview:
    """Asks what is open of the ``judgements`` of ``cell``.

    ``problem`` is the one line why somebody stopped answering (empty: nobody did); ``usd`` is what this run's answers
    cost, None where no price is known.

    Raises:
        CellFailure: somebody cannot start, the disk is full, or the benchmark breaks its contract.
    """

    def __init__(
        self,
        cell: Cell,
        answerers: Answerers,
        judgements: Judgements,
        workers: int,
        progress: ProgressWriter,
    ) -> None:
        self._cell, self._answerers, self._judgements = cell, answerers, judgements
        self._workers, self._progress = workers, progress
        self._answered = judgements.answerers
        self._reused = 0
        self._failed: Counter[str] = Counter()
        self._note = ""
        self.problem = ""
        self.usd: float | None = None

    def run(self) -> None:
        """Ask until nothing is open."""
        waiting = self._judgements.open()
        self._reused = self._judgements.settled
        say(f"{self._reused} of {self._judgements.requests} questions are answered, {len(waiting)} to ask")
        self._report(force=True)
        self._answerers.has_answered(self._answered)
        with closing(judgement_writer(self._cell)) as writer, watched(self._report_holdup, writer.sync):
            # what comes later: questions that quote an answer, and those asked again for want of a value
            while waiting and not self.problem:
                self.problem = self._ask(waiting, writer)
                waiting = self._judgements.open()
        self._note = ""
        self._report(force=True)

    def _ask(self, waiting: Sequence[Question], writer: JsonlWriter) -> str:
        """Ask ``waiting``; why somebody stopped answering, if so."""
        left = len(waiting)
        try:
            with closing(self._answerers.ask(waiting, self._workers)) as answers:
                for answer in answers:
                    self._note_answer(answer, writer)
                    left -= 1
                    self._report()
                    who = self._answerers.evaluator_of(answer.question).id
                    if self._failed[who] >= _FIRST_FAILURES and who not in self._answered:
                        reason = redact(one_line(answer.error))
                        return f"the first {self._failed[who]} questions all failed: {reason}"
        except JudgeUnusable as error:
            problem = redact(one_line(error))
            say(f"the judge stopped answering: {problem}")
            return problem
        return f"{left} of {len(waiting)} questions got neither an answer nor an error" if left else ""

    def _note_answer(self, answer: Answer, writer: JsonlWriter) -> None:
        question = answer.question
        who = self._answerers.evaluator_of(question).id
        if not isinstance(answer.text, str | None):
            raise CellFailure(
                f"{who} answers {question.name} of item {question.item} with {reprlib.repr(answer.text)}: an answer is "
                "a text, that of a measurement JSON"
            )
        record: dict[str, Any] = {
            "item": question.item,
            "question": question.name,
            "evaluator": who,
            "request": self._judgements.request(question),
            "status": UNPARSED,
            "raw": answer.text,
            "parsed": None,
            "error": None,
            "seconds": round(answer.seconds, 4),
            "attempts": answer.attempts,
            "tokens": answer.tokens,
        }
        if answer.probabilities is not None:
            record |= {"probabilities": dict(answer.probabilities), "outside": answer.outside}
        if answer.usd is not None:
            record["usd"] = answer.usd
        try:
            status, value, problem = self._judgements.add(replace(answer, error=redact(answer.error)))
            record |= {"status": status, "parsed": value, "error": problem or None}
        except CellFailure as error:  # of the benchmark's code: the answer is paid for, and kept
            record["error"] = str(error)
            raise
        finally:
            writer.append(record)
        if answer.text is None:
            self._failed[who] += 1
            say(f"{question.item} {question.name}: judge failed: {problem}")
            return
        self._answered.add(who)
        if answer.usd is not None:
            self.usd = (self.usd or 0.0) + answer.usd

    def _report_holdup(self) -> None:
        """While no answer comes, tell why; who else tells something of this cell meanwhile is not talked over."""
        before, self._note = self._note, self._answerers.holdup()
        if self._note or before:
            self._report()

    def _report(self, force: bool = False) -> None:
        self._progress.report(
            Progress(
                cell=self._cell.key,
                stage="evaluate",
                done=self._judgements.settled,
                total=self._judgements.requests,
                reused=self._reused,
                failed=self._failed.total(),
                note=self._note,
            ),
            force,
        )


@contextmanager
def watched(*looks: Callable[[], None]) -> Iterator[None]:
    """A block beside which each of ``looks`` is called twice a second, from a thread of its own."""
    ended = threading.Event()

    def run(look: Callable[[], None]) -> None:
        with suppress(CellFailure):  # a full disk: who writes what counts meets it too
            while not ended.wait(_LOOK_EVERY):
                look()

    threads = [threading.Thread(target=run, args=[look], name="watch", daemon=True) for look in looks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
