"""Ask the evaluator what it has not answered before, into ``judgements.jsonl``."""

from __future__ import annotations

import os
import reprlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.kept_twice import KeptTwiceWriter
from imageevalkit.cores import available_cores
from imageevalkit.errors import CellFailure, say
from imageevalkit.evaluation.benchmark import Benchmark, Score
from imageevalkit.evaluation.judgements import (
    FAILED,
    OK,
    UNPARSED,
    Judgement,
    Judgements,
    judgement_writer,
)
from imageevalkit.evaluation.question import Answer, JudgeUnusable, Picture, Question, Reply
from imageevalkit.evaluation.survey import ImageState
from imageevalkit.evaluation.watch import Watch
from imageevalkit.json_values import is_number
from imageevalkit.progress import Progress, ProgressWriter
from imageevalkit.secrets import one_line, redact

JUDGED, JUDGE_FAILED = "judged", "judge_failed"
# Of a judge that has not answered once: a thousand questions more would each fail after all their retries.
_FIRST_FAILURES = 10


class AskOptions(NamedTuple):
    """``ask`` False: only what is on record counts. ``retry_unparsed``: replies without a score are asked anew.

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


class Verdict(NamedTuple):
    """One item: judged with a score, or unparsed / judge_failed with the reason.

    ``beyond`` are the scores of the judge that count though they are beyond its scale, in words.
    """

    verdict: str
    score: Score | None
    reason: str
    replies: Mapping[str, Reply]
    parsed: Mapping[str, Any]
    beyond: Sequence[str] = ()


class Judging(NamedTuple):
    """The verdicts by item, and the one line why the evaluator stopped answering (empty: it did not).

    ``asked_again`` is how many questions have more replies than ``Benchmark.tries``; ``usd`` is what this run's
    replies cost, None where no price is known.
    """

    verdicts: dict[str, Verdict]
    problem: str
    asked_again: int
    usd: float | None


def judge_items(
    cell: Cell,
    benchmark: Benchmark,
    items: Mapping[str, Item],
    states: Mapping[str, ImageState],
    options: AskOptions,
    progress: ProgressWriter,
) -> Judging:
    """The verdict on every item in ``states``; answers that are on record are not asked for again.

    Raises:
        CellFailure: the evaluator cannot start, the disk is full, or the benchmark breaks its contract.
    """
    asking = _Asking(cell, benchmark, items, states, options, progress)
    problem = asking.ask() if options.ask else "not asked: --rescore takes what is on record"
    verdicts = {item: asking.verdict(item, problem) for item in states}
    return Judging(verdicts, problem if options.ask else "", asking.asked_again, asking.usd)


class _Asking:
    """One pass after another over the open questions of a cell."""

    def __init__(
        self,
        cell: Cell,
        benchmark: Benchmark,
        items: Mapping[str, Item],
        states: Mapping[str, ImageState],
        options: AskOptions,
        progress: ProgressWriter,
    ) -> None:
        self._cell = cell
        self._benchmark = benchmark
        self._items = items
        self._options = options
        self._progress = progress
        pictures = {
            item: Picture(state.path, state.sha256, plain=state.plain, flat=state.flat)
            for item, state in states.items()
        }
        self._judgements = Judgements(cell, benchmark, items, pictures, options.retry_unparsed, say)
        self._reused = 0
        self._failed: Counter[str] = Counter()
        self._answered: set[str] = set()
        self._note = ""
        self.usd: float | None = None

    def ask(self) -> str:
        """Ask until nothing is open; why the evaluator stopped answering, or an empty string."""
        total, waiting = len(self._judgements.questions), self._judgements.open()
        self._reused = total - len(waiting)
        say(f"{self._reused} of {total} questions are answered, {len(waiting)} to ask")
        self._report(force=True)
        self._answered = {
            self._answerer(self._judgements.questions[request]) for request in self._judgements.replies
        }
        if self._answered:
            self._benchmark.has_answered(self._answered)
        problem = ""
        with (
            closing(judgement_writer(self._cell)) as writer,
            Watch(self._report_holdup),
            Watch(writer.sync),
        ):
            # a question comes back here when its reply held no score and the benchmark asks for that again
            while waiting and not problem:
                problem = self._pass(waiting, writer)
                waiting = self._open_again()
        self._note = ""
        self._report(force=True)
        return problem

    def _pass(self, waiting: Sequence[Question], writer: KeptTwiceWriter) -> str:
        try:
            with closing(self._answers(waiting)) as answers:
                for answer in answers:
                    self._take(answer, writer)
                    self._report()
                    who = self._answerer(answer.question)
                    if self._failed[who] >= _FIRST_FAILURES and who not in self._answered:
                        reason = redact(one_line(answer.error))
                        return f"the first {self._failed[who]} questions all failed: {reason}"
        except JudgeUnusable as error:
            problem = redact(one_line(error))
            say(f"the judge stopped answering: {problem}")
            return problem
        return ""

    def _answers(self, waiting: Sequence[Question]) -> Generator[Answer, None, None]:
        yield from self._benchmark.ask(waiting, self._options.workers)

    @property
    def asked_again(self) -> int:
        """See :class:`Judging`."""
        return self._judgements.asked_again

    def verdict(self, item: str, problem: str) -> Verdict:
        """What all answers about ``item`` together are worth."""
        known = self._judgements.known
        judgements = {name: known.get(request) for name, request in self._judgements.requests[item].items()}
        replies = {n: j.reply for n, j in judgements.items() if j and j.reply}
        parsed = {n: j.parsed for n, j in judgements.items() if j and j.status == OK}
        if len(parsed) == len(judgements):
            score = self._score(item, parsed, replies)
            beyond = [j.beyond for j in judgements.values() if j and j.beyond]
            return Verdict(JUDGED, score, "", replies, parsed, beyond)
        failed = [
            (n, j.reason if j else problem) for n, j in judgements.items() if j is None or j.status == FAILED
        ]
        verdict = JUDGE_FAILED if failed else UNPARSED
        unparsed = ((n, j.reason) for n, j in judgements.items() if j and j.status == UNPARSED)
        name, reason = failed[0] if failed else next(unparsed)
        return Verdict(verdict, None, f"{name}: {reason}" if len(judgements) > 1 else reason, replies, parsed)

    def _score(self, item: str, parsed: Mapping[str, Any], replies: Mapping[str, Reply]) -> Score:
        score = self._benchmark.score(self._items[item], parsed, replies)
        where = f"benchmark {self._cell.benchmark}: score() of item {item}"
        if not isinstance(score, Score):
            raise CellFailure(f"{where} returns {reprlib.repr(score)}, and must return a Score")
        for name, value in score.values.items():
            if not (is_number(value) or isinstance(value, bool)):
                raise CellFailure(f"{where}: '{name}' is {reprlib.repr(value)}, and must be a finite number")
        return score

    def _answerer(self, question: Question) -> str:
        return self._benchmark.answerer(question).id

    def _open_again(self) -> list[Question]:
        """Open for another try in this run: what failed has had its own."""
        found = self._judgements
        return [
            question
            for question in found.open()
            if (known := found.known.get(found.request(question))) and known.status == UNPARSED
        ]

    def _take(self, answer: Answer, writer: KeptTwiceWriter) -> None:
        question = answer.question
        request = self._judgements.request(question)
        if answer.reply is None:
            judgement = self._judgements.add_failure(request, redact(answer.error))
            self._failed[self._answerer(question)] += 1
            say(f"{question.item} {question.name}: judge failed: {judgement.reason}")
        else:
            judgement = self._judgements.add_reply(request, answer.reply)
            self._answered.add(self._answerer(question))
            if answer.reply.usd is not None:
                self.usd = (self.usd or 0.0) + answer.reply.usd
        writer.append(self._record(answer, request, judgement))

    def _record(self, answer: Answer, request: str, judgement: Judgement) -> dict[str, Any]:
        question, reply = answer.question, answer.reply
        record = {
            "item": question.item,
            "question": question.name,
            "evaluator": self._answerer(question),
            "request": request,
            "status": judgement.status,
            "raw": reply.text if reply else None,
            "parsed": judgement.parsed,
            "error": judgement.reason or None,
            "seconds": round(answer.seconds, 4),
            "attempts": answer.attempts,
            "tokens": reply.tokens if reply else None,
        }
        if reply and reply.probabilities is not None:
            record |= {"probabilities": dict(reply.probabilities), "outside": reply.outside}
        if reply and reply.usd is not None:
            record["usd"] = reply.usd
        return record

    def _report_holdup(self) -> None:
        """While no answer comes, tell why; who else tells something of this cell meanwhile is not talked over."""
        before, self._note = self._note, self._benchmark.holdup()
        if self._note or before:
            self._report()

    def _report(self, force: bool = False) -> None:
        self._progress.report(
            Progress(
                cell=self._cell.key,
                stage="evaluate",
                done=len(self._judgements.known),
                total=len(self._judgements.questions),
                reused=self._reused,
                failed=self._failed.total(),
                note=self._note,
            ),
            force,
        )
