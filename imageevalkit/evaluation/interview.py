"""What is known and what is open of a cell's questions; asking that, until nothing new is open."""

from __future__ import annotations

import os
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from imageevalkit.atomic import sync_folder
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import (
    Answers,
    Benchmark,
    ScoredItem,
    Unparsed,
    benchmark_code,
    check_score,
    is_json,
    require,
)
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Picture, Question
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.jsonl import JsonlWriter, Shape, Tell, copy_of, read_kept, tell_nobody
from imageevalkit.cell.states import ImageState
from imageevalkit.errors import CellFailure, say
from imageevalkit.evaluation.answerers import Answerers, request_hash
from imageevalkit.machine import available_cores
from imageevalkit.progress import Progress, ProgressWriter, watched
from imageevalkit.secrets import one_line, redact

JUDGED, UNPARSED, JUDGE_FAILED = "judged", "unparsed", "judge_failed"
"""What became of an item, and of each of its questions."""
_RECORDED = {JUDGED: "ok", UNPARSED: "unparsed", JUDGE_FAILED: "failed"}
# Of a judge that has not answered once: a thousand questions more would each fail after all their retries.
_FIRST_FAILURES = 10
_VARIABLES = ("LIMIT", "MISSING_ITEMS", "RESCORE", "RETRY_UNPARSED", "CORES")


RECORD = Shape[dict[str, Any]](
    must={"request": str, "status": Literal["ok", "unparsed", "failed"]},
    may={
        "evaluator": str,
        "raw": str | None,
        "probabilities": dict[str, float] | None,
        "outside": float | None,
        "tokens": dict[str, float] | None,
        "usd": float | None,
    },
)
"""A line of ``judgements.jsonl``."""


def judgement_records(cell: Cell, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """What was answered about ``cell`` so far; none where the file was deleted, which is how a user has all asked anew.

    Raises CellFailure: the file cannot be read.
    """
    return read_kept(cell.judgements, RECORD, tell) if os.path.lexists(cell.judgements) else iter(())


def judgement_writer(cell: Cell) -> JsonlWriter:
    """For more of them."""
    if not os.path.lexists(cell.judgements):
        copy_of(cell.judgements).unlink(missing_ok=True)
    writer = JsonlWriter(cell.judgements, RECORD)
    sync_folder(cell.folder)
    return writer


class EvaluateOptions(NamedTuple):
    """``limit``: only so many of the first items. ``official``: missing items count as the official evaluator has them.

    ``ask`` False: only what is on record counts. ``retry_unparsed``: answers without a value are asked anew.
    ``workers`` are the CPU cores of the job.
    """

    limit: int | None = None
    official: bool = False
    ask: bool = True
    retry_unparsed: bool = False
    workers: int = 1

    @classmethod
    def from_environment(cls) -> EvaluateOptions:
        """Those of this job, as the launcher decided."""
        given = {name: os.environ.get(f"IMAGEEVALKIT_{name}", "") for name in _VARIABLES}
        return cls(
            limit=int(given["LIMIT"]) if given["LIMIT"] else None,
            official=given["MISSING_ITEMS"] == "official",
            ask=given["RESCORE"] != "true",
            retry_unparsed=given["RETRY_UNPARSED"] == "true",
            workers=int(given["CORES"] or available_cores()),
        )


_KEPT = ("text", "probabilities", "outside")  # of an answer, so that it is worth the same in every run


@dataclass(eq=False)
class _Place:
    """Where one question about one item stands, in its present wording; ``reason`` is why it has no ``answer``.

    ``seen``: how many replies to each request were looked at, and ``text`` is the last of them. Of the attempts without
    a value, ``forgiven`` ones count as none.
    """

    question: Question
    request: str = ""
    answer: Answer | None = None
    text: str | None = None
    seen: dict[str, int] = field(default_factory=dict)
    forgiven: int = 0
    status: str = JUDGE_FAILED
    reason: str = ""

    @property
    def attempts(self) -> int:
        return sum(self.seen.values()) - (self.answer is not None)


class Interview:
    """The questions about some ``pictures`` of a cell, and where each stands: whatever was ever answered is not asked
    again.

    Items may share a request: it is asked once. What is no record is told. ``answered`` are those who have answered
    something. ``depend_on_answers``: with more answers there may be more questions. ``problem`` is the one line why
    somebody stopped answering (empty: nobody did); ``usd`` is what this run's answers cost, None where no price is
    known. Raises CellFailure: somebody cannot start, the disk is full, or the benchmark breaks its contract.
    """

    def __init__(
        self,
        cell: Cell,
        benchmark: Benchmark,
        answerers: Answerers,
        items: Sequence[Item],
        pictures: Mapping[str, Picture],
        options: EvaluateOptions,
        tell: Tell = tell_nobody,
    ) -> None:
        self._cell, self._benchmark, self._answerers = cell, benchmark, answerers
        self._pictures, self._options = pictures, options
        self._items = {item.id: item for item in items}
        self.answered = set[Answerer]()
        self.depend_on_answers = False
        self.problem = ""
        self.usd: float | None = None
        self._failed: Counter[Answerer] = Counter()
        self._places: dict[str, dict[str, _Place]] = {item: {} for item in pictures}
        self._asking: dict[str, list[_Place]] = defaultdict(list)  # by request
        self._open: dict[str, Question] = {}
        self._replies: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in judgement_records(cell, tell):
            if record["status"] != "failed" and (text := record.get("raw")) is not None:
                reply = {name: record.get(name) for name in _KEPT} | {"text": text}
                self._replies[record["request"]].append(reply)
        for item in pictures:
            self._advance(item)
        self._reused = len(self._asking) - len(self._open)

    @property
    def requests(self) -> int:
        """How many there are, as far as is known: later questions depend on answers."""
        return len(self._asking)

    @property
    def repeated(self) -> int:
        """How many have more replies than the official evaluator asks for."""
        most = self._benchmark.tries
        return sum(any(sum(p.seen.values()) > most for p in places) for places in self._asking.values())

    def open(self) -> list[Question]:
        """The questions to ask now, each request once."""
        return list(self._open.values()) if self._options.ask else []

    def run(self, progress: ProgressWriter) -> None:
        """Ask until nothing is open."""
        waiting, note = self.open(), ""
        say(f"{self._reused} of {self.requests} questions are answered, {len(waiting)} to ask")
        for answerer in self.answered:
            answerer.has_answered()

        def report(force: bool = False) -> None:
            done, failed = self.requests - len(self._open), self._failed.total()
            state = Progress(self._cell.key, "evaluate", done, self.requests, self._reused, failed, note)
            progress.report(state, force)

        def report_holdup() -> None:
            """While no answer comes, tell why; who else tells something of this cell meanwhile is not talked over."""
            nonlocal note
            before, note = note, self._answerers.holdup()
            if note or before:
                report()

        report(force=True)
        with closing(judgement_writer(self._cell)) as writer, watched(report_holdup, writer.sync):
            # what comes later: questions that quote an answer, and those asked again for want of a value
            while waiting and not self.problem:
                self.problem = self._ask(waiting, writer, report)
                waiting = self.open()
        note = ""
        report(force=True)

    def _ask(self, waiting: Sequence[Question], writer: JsonlWriter, report: Callable[[], None]) -> str:
        """Ask ``waiting``; why somebody stopped answering, if so."""
        left = len(waiting)
        try:
            with closing(self._answerers.ask(waiting, self._options.workers)) as answers:
                for answer in answers:
                    left, asked = left - 1, self._answerers.of(answer.question)
                    self._note(answer, asked, writer)
                    report()
                    if self._failed[asked] >= _FIRST_FAILURES and asked not in self.answered:
                        reason = one_line(answer.error)
                        return f"the first {self._failed[asked]} questions all failed: {reason}"
        except JudgeUnusable as error:
            return one_line(error)
        return f"{left} of {len(waiting)} questions got neither an answer nor an error" if left else ""

    def _note(self, answer: Answer, asked: Answerer, writer: JsonlWriter) -> None:
        """Take the answer to an open question, and keep it on record.

        Raises CellFailure: the question was not open, or the benchmark breaks its contract.
        """
        question, text = answer.question, answer.text
        place, who = self._places[question.item][question.name], asked.evaluator.id
        what = f"{who} answers {question.name} of item {question.item}"
        if self._open.pop(place.request, None) is None:
            raise CellFailure(f"{what} twice")
        if not isinstance(text, str | None):
            raise CellFailure(
                f"{what} with {reprlib.repr(text)}: an answer is a text, that of a measurement JSON"
            )
        record: dict[str, Any] = {
            "item": question.item,
            "question": question.name,
            "evaluator": who,
            "request": place.request,
            "status": UNPARSED,
            "raw": text,
            "parsed": None,
            "error": None,
            "seconds": round(answer.seconds, 4),
            "attempts": answer.attempts,
            "tokens": answer.tokens,
        }
        if answer.probabilities is not None:
            record |= {"probabilities": dict(answer.probabilities), "outside": answer.outside}
        if question.variant:
            record["variant"] = question.variant
        if answer.usd is not None:
            record["usd"] = answer.usd
        sharing = [one for one in self._asking[place.request] if not one.answer]
        try:
            if text is not None:
                self._replies[place.request].append({name: getattr(answer, name) for name in _KEPT})
            for one in sharing:
                if text is not None:
                    self._take(one)
                else:
                    one.status = JUDGE_FAILED
                    one.reason = redact(answer.error) or "there is no answer, and no reason why"
            record |= {"status": _RECORDED[place.status], "error": place.reason or None}
            record["parsed"] = place.answer.value if place.answer else None
        except CellFailure as error:  # of the benchmark's code: the answer is paid for, and kept
            record["error"] = str(error)
            raise
        finally:
            writer.append(record)
        for item in dict.fromkeys(one.question.item for one in sharing):
            if not any(p.answer is None and p.request in self._open for p in self._places[item].values()):
                self._advance(item)
        if text is None:
            self._failed[asked] += 1
            say(f"{question.item} {question.name}: judge failed: {record['error']}")
        elif answer.usd is not None:
            self.usd = (self.usd or 0.0) + answer.usd

    def scored_item(self, state: ImageState, unasked: str) -> ScoredItem:
        """What is known of the item of a picture; ``unasked`` is why questions without a reply have none."""
        item, places = state.item, self._places[state.item.id]
        status, reason, score = JUDGED, "", None
        answers = Answers({name: place.answer for name, place in places.items() if place.answer})
        lacking = [(name, place) for name, place in places.items() if not place.answer]
        if lacking:
            name, place = min(lacking, key=lambda one: one[1].status != JUDGE_FAILED)
            status, reason = place.status, place.reason or unasked
            reason = f"{name}: {reason}" if len(places) > 1 else reason
        else:
            with benchmark_code(self._benchmark.name, f"score() of item {item.id}") as where:
                score = self._benchmark.score(item, answers)
                check_score(score, where)
                score = score.of_item(item.id)
        replies = {name: place.text for name, place in places.items() if place.text is not None}
        return ScoredItem(item, state.path, answers, replies, score, state.attempted, status, reason)

    def _advance(self, item: str) -> None:
        """Take the questions that the benchmark has now; until none of them is answered by what is known."""
        places, fresh = self._places[item], []
        moved = True
        while moved:
            moved = False
            for question in self._questions(item):
                if question.name not in places:
                    places[question.name] = _Place(question)
                    fresh.append(places[question.name])
                place = places[question.name]
                if not place.request or (not place.answer and place.question != question):
                    if place.request:  # in other words now
                        self._asking[place.request].remove(place)
                        if not self._asking[place.request]:
                            del self._asking[place.request]
                    place.question = question
                    place.request = request_hash(question, self._answerers.of(question).evaluator)
                    self._asking[place.request].append(place)
                moved |= self._take(place)
        for place in fresh if self._options.retry_unparsed else ():
            if not place.answer:
                place.forgiven, place.status, place.reason = place.attempts, JUDGE_FAILED, ""
        for place in places.values():
            has_failed = place.status == JUDGE_FAILED and place.reason
            if not (place.answer or has_failed) and place.attempts - place.forgiven < self._benchmark.tries:
                self._open[place.request] = place.question

    def _questions(self, item: str) -> list[Question]:
        places, questions = self._places[item], dict[str, Question]()
        answers = Answers(
            {name: place.answer for name, place in places.items() if place.answer},
            {name: place.attempts for name, place in places.items()},
        )
        with benchmark_code(self._benchmark.name, f"questions() of item {item}") as where:
            for question in self._benchmark.questions(self._items[item], self._pictures[item], answers):
                require(
                    isinstance(question, Question), f"{where}: one", question, "made by ask() or measure()"
                )
                if question.name in questions:
                    name = question.name
                    raise CellFailure(f"{where} has more than one of the name '{name}': give each its own")
                questions[question.name] = question.of_item(item)
        self.depend_on_answers |= answers.looked_at
        return list(questions.values())

    def _take(self, place: _Place) -> bool:
        """Look at the next reply to the place's request; False where there is none."""
        replies, number = self._replies.get(place.request, ()), place.seen.get(place.request, 0)
        if place.answer or number == len(replies):
            return False
        place.seen[place.request] = number + 1
        question = place.question
        answer = Answer(question, **replies[number])
        self.answered.add(self._answerers.of(question))
        place.text, place.status = answer.text, UNPARSED
        # anew at every run: a mended parser counts without asking again
        where = f"parse() of item {question.item}, {question.name}"
        with benchmark_code(self._benchmark.name, where) as where:
            try:
                value = self._benchmark.parse(question, answer)
            except Unparsed as error:
                place.reason = str(error) or "it holds no value"
                return True
            require(is_json(value), where, value, "a JSON value")
        place.answer, place.status, place.reason = replace(answer, value=value), JUDGED, ""
        return True
