"""What ``judgements.jsonl`` holds of a cell's questions, and which of them are still to be asked."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    check,
    is_json,
)
from imageevalkit.benchmark.question import Answer, Picture, Question
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.jsonl import Shape, Tell, tell_nobody
from imageevalkit.cell.kept_twice import KeptTwiceWriter, copy_of, read_kept
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure
from imageevalkit.machine import available_cores
from imageevalkit.secrets import redact
from imageevalkit.text import to_bytes

JUDGED, UNPARSED, JUDGE_FAILED = "judged", "unparsed", "judge_failed"
"""What became of an item, and of each of its questions."""
_RECORDED = {JUDGED: "ok", UNPARSED: "unparsed", JUDGE_FAILED: "failed"}

RECORD = Shape(
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


def request_hash(question: Question, evaluator: Evaluator) -> str:
    """Identifies what is asked of whom: two questions with one hash have one answer.

    It covers the evaluator with its versions and settings, every word, every image's bytes and the sampling; not the
    item, its path, or where the evaluator is reached.
    """
    messages = [
        [m.role, [p.request if isinstance(p, Picture) else p for p in m.parts]] for m in question.messages
    ]
    request = json.dumps(
        [messages, vars(question.sampling), question.choices], sort_keys=True, ensure_ascii=False
    )
    return hashlib.sha256(to_bytes(f"[{evaluator.as_json}, {request[1:]}")).hexdigest()


def judgement_records(cell: Cell, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """What was answered about ``cell`` so far; none where the file was deleted, which is how a user has all asked anew.

    Raises CellFailure: the file cannot be read.
    """
    return read_kept(cell.judgements, RECORD, tell) if os.path.lexists(cell.judgements) else iter(())


def judgement_writer(cell: Cell) -> KeptTwiceWriter:
    """For more of them."""
    if not os.path.lexists(cell.judgements):
        copy_of(cell.judgements).unlink(missing_ok=True)
    writer = KeptTwiceWriter(cell.judgements, RECORD)
    sync_folder(cell.folder)
    return writer


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
    seen: Counter[str] = field(default_factory=Counter)
    forgiven: int = 0
    status: str = JUDGE_FAILED
    reason: str = ""

    @property
    def attempts(self) -> int:
        return self.seen.total() - (self.answer is not None)


class Judgements:
    """The questions about some pictures of a cell, and where each stands: whatever was ever answered is not asked
    again.

    Items may share a request: it is asked once. What is no record is told. ``answered`` are those who have answered
    something. ``depend_on_answers``: with more answers there may be more questions.

    Raises:
        CellFailure: the benchmark breaks its contract.
    """

    def __init__(
        self,
        cell: Cell,
        benchmark: Benchmark,
        answerer_of: Callable[[Question], Answerer],
        items: Sequence[Item],
        pictures: Mapping[str, Picture],
        options: AskOptions,
        tell: Tell = tell_nobody,
    ) -> None:
        self._benchmark, self._answerer_of = benchmark, answerer_of
        self._pictures, self._options = pictures, options
        self._items = {item.id: item for item in items}
        self.answered = set[Answerer]()
        self.depend_on_answers = False
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

    @property
    def requests(self) -> int:
        """How many there are, as far as is known: later questions depend on answers."""
        return len(self._asking)

    @property
    def settled(self) -> int:
        """How many of them are not open."""
        return len(self._asking) - len(self._open)

    @property
    def repeated(self) -> int:
        """How many have more replies than the official evaluator asks for."""
        most = self._benchmark.tries
        return sum(any(p.seen.total() > most for p in places) for places in self._asking.values())

    def open(self) -> list[Question]:
        """The questions to ask now, each request once."""
        return list(self._open.values()) if self._options.ask else []

    def add(self, answer: Answer, append: Callable[[dict[str, Any]], None]) -> str:
        """Take the answer to an open question and ``append`` its record; why nothing was answered, if so.

        Raises CellFailure: the question was not open, or the benchmark breaks its contract.
        """
        question, text = answer.question, answer.text
        place, answerer = self._places[question.item][question.name], self._answerer_of(question)
        what = f"{answerer.evaluator.id} answers {question.name} of item {question.item}"
        if self._open.pop(place.request, None) is None:
            raise CellFailure(f"{what} twice")
        if not isinstance(text, str | None):
            raise CellFailure(
                f"{what} with {reprlib.repr(text)}: an answer is a text, that of a measurement JSON"
            )
        record: dict[str, Any] = {
            "item": question.item,
            "question": question.name,
            "evaluator": answerer.evaluator.id,
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
            append(record)
        for item in dict.fromkeys(one.question.item for one in sharing):
            if not any(p.answer is None and p.request in self._open for p in self._places[item].values()):
                self._advance(item)
        return record["error"] if text is None else ""

    def scored_item(self, item: Item, unasked: str) -> ScoredItem:
        """What is known of an item with a picture, before its score; ``unasked`` is why questions without a reply
        have none.
        """
        places = self._places[item.id]
        lacking = [(place.status, name, place) for name, place in places.items() if not place.answer]
        status, reason = JUDGED, ""
        if lacking:
            status, name, place = min(lacking, key=lambda one: one[0] != JUDGE_FAILED)
            reason = place.reason or unasked
            reason = f"{name}: {reason}" if len(places) > 1 else reason
        return ScoredItem(
            item,
            self._pictures[item.id].path,
            Answers({name: place.answer for name, place in places.items() if place.answer}),
            {name: place.text for name, place in places.items() if place.text is not None},
            None,
            status=status,
            reason=reason,
        )

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
                    place.request = request_hash(question, self._answerer_of(question).evaluator)
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
        places, where = self._places[item], f"questions() of item {item}"
        answers = Answers(
            {name: place.answer for name, place in places.items() if place.answer},
            {name: place.attempts for name, place in places.items()},
        )
        with benchmark_code(self._benchmark.name, where):
            found = list(self._benchmark.questions(self._items[item], self._pictures[item], answers))
        self.depend_on_answers |= answers.looked_at
        names: set[str] = set()
        for question in found:
            if not isinstance(question, Question):
                problem = f"{reprlib.repr(question)}, which is no Question: give those of ask() or measure()"
            elif question.name in names:
                problem = f"more than one of the name '{question.name}': give each a name of its own"
            else:
                names.add(question.name)
                continue
            raise CellFailure(f"benchmark {self._benchmark.name}: {where} has {problem}")
        return [replace(question, item=item) for question in found]

    def _take(self, place: _Place) -> bool:
        """Look at the next reply to the place's request; False where there is none."""
        replies, number = self._replies.get(place.request, ()), place.seen[place.request]
        if place.answer or number == len(replies):
            return False
        place.seen[place.request] += 1
        question = place.question
        answer = Answer(question, **replies[number])
        self.answered.add(self._answerer_of(question))
        place.text, place.status = answer.text, UNPARSED
        name, where = self._benchmark.name, f"parse() of item {question.item}, {question.name}"
        # anew at every run: a mended parser counts without asking again
        with benchmark_code(name, where):
            try:
                value = self._benchmark.parse(question, answer)
            except Unparsed as error:
                place.reason = str(error) or "it holds no value"
                return True
            check(is_json(value), f"benchmark {name}: {where}", value, "a JSON value")
        place.answer, place.status, place.reason = replace(answer, value=value), JUDGED, ""
        return True
