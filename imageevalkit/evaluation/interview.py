"""Ask the judge and the measurers of a cell what they have not answered before, into ``judgements.jsonl``."""

from __future__ import annotations

import os
import reprlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from imageevalkit.benchmark.contract import Benchmark
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.kept_twice import KeptTwiceWriter
from imageevalkit.errors import CellFailure, say
from imageevalkit.evaluation.evaluator import Answerers
from imageevalkit.evaluation.judgements import UNPARSED, Judgements, judgement_writer
from imageevalkit.evaluation.watch import Watch
from imageevalkit.machine import available_cores
from imageevalkit.progress import Progress, ProgressWriter
from imageevalkit.secrets import one_line, redact

# Of a judge that has not answered once: a thousand questions more would each fail after all their retries.
_FIRST_FAILURES = 10


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
    """All questions of a benchmark about the ``pictures`` of a cell, and their answers; :meth:`run` asks what is open.

    ``problem`` is the one line why somebody stopped answering (empty: nobody did); ``usd`` is what this run's answers
    cost, None where no price is known.

    Raises:
        CellFailure: somebody cannot start, the disk is full, or the benchmark breaks its contract.
    """

    def __init__(
        self,
        cell: Cell,
        benchmark: Benchmark,
        answerers: Answerers,
        items: Mapping[str, Item],
        pictures: Mapping[str, Picture],
        options: AskOptions,
        progress: ProgressWriter,
    ) -> None:
        self._cell, self._answerers = cell, answerers
        self._options, self._progress = options, progress
        self.judgements = Judgements(
            cell, benchmark, answerers.evaluator_of, items, pictures, options.retry_unparsed, say
        )
        self._answered = self.judgements.answerers
        self._reused = 0
        self._failed: Counter[str] = Counter()
        self._note = ""
        self.problem = ""
        self.usd: float | None = None

    def run(self) -> None:
        """Ask until nothing is open."""
        waiting = self.judgements.open()
        self._reused = self.judgements.settled
        say(f"{self._reused} of {self.judgements.requests} questions are answered, {len(waiting)} to ask")
        self._report(force=True)
        self._answerers.has_answered(self._answered)
        with (
            closing(judgement_writer(self._cell)) as writer,
            Watch(self._report_holdup),
            Watch(writer.sync),
        ):
            # what comes later: questions that quote an answer, and those asked again for want of a value
            while waiting and not self.problem:
                self.problem = self._ask(waiting, writer)
                waiting = self.judgements.open()
        self._note = ""
        self._report(force=True)

    def _ask(self, waiting: Sequence[Question], writer: KeptTwiceWriter) -> str:
        """Ask ``waiting``; why somebody stopped answering, if so."""
        left = len(waiting)
        try:
            with closing(self._answers(waiting)) as answers:
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

    def _answers(self, waiting: Sequence[Question]) -> Generator[Answer, None, None]:
        yield from self._answerers.ask(waiting, self._options.workers)

    def _note_answer(self, answer: Answer, writer: KeptTwiceWriter) -> None:
        question = answer.question
        who = self._answerers.evaluator_of(question).id
        if not isinstance(answer.text, str | None):
            raise CellFailure(
                f"{who} answers {question.name} of item {question.item} with {reprlib.repr(answer.text)}: an answer is "
                "a text, that of a measurement JSON"
            )
        request = self.judgements.request(question)
        answer = replace(answer, error=redact(answer.error))
        status, problem, fault = UNPARSED, "", None
        try:
            status, answer, problem = self.judgements.add(answer)
        except CellFailure as error:  # of the benchmark's code: the answer is paid for, and kept
            fault = error
        if answer.text is None:
            self._failed[who] += 1
            say(f"{question.item} {question.name}: judge failed: {problem}")
        else:
            self._answered.add(who)
            if answer.usd is not None:
                self.usd = (self.usd or 0.0) + answer.usd
        record: dict[str, Any] = {
            "item": question.item,
            "question": question.name,
            "evaluator": who,
            "request": request,
            "status": status,
            "raw": answer.text,
            "parsed": answer.value,
            "error": problem or (str(fault) if fault else None),
            "seconds": round(answer.seconds, 4),
            "attempts": answer.attempts,
            "tokens": answer.tokens,
        }
        if answer.probabilities is not None:
            record |= {"probabilities": dict(answer.probabilities), "outside": answer.outside}
        if answer.usd is not None:
            record["usd"] = answer.usd
        writer.append(record)
        if fault:
            raise fault

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
                done=self.judgements.settled,
                total=self.judgements.requests,
                reused=self._reused,
                failed=self._failed.total(),
                note=self._note,
            ),
            force,
        )
