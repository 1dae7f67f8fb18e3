"""What ``judgements.jsonl`` holds of a cell's questions, and which of them are still to be asked."""

from __future__ import annotations

import json
import os
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from imageevalkit.atomic import sync_folder
from imageevalkit.benchmark.contract import Answers, Benchmark, Unparsed, benchmark_code
from imageevalkit.benchmark.question import Answer, Picture, Question
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.jsonl import Shape, Tell, tell_nobody
from imageevalkit.cell.kept_twice import KeptTwiceWriter, copy_of, read_kept
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure

OK, UNPARSED, FAILED = "ok", "unparsed", "failed"
JUDGED, JUDGE_FAILED = "judged", "judge_failed"

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


def judgement_records(cell: Cell, tell: Tell = tell_nobody) -> Iterator[dict[str, Any]]:
    """What was answered about ``cell`` so far; none where the file was deleted, which is how a user has all asked anew.

    Raises:
        CellFailure: the file cannot be read.
    """
    return read_kept(cell.judgements, RECORD, tell) if os.path.lexists(cell.judgements) else iter(())


def judgement_writer(cell: Cell) -> KeptTwiceWriter:
    """For more of them."""
    if not os.path.lexists(cell.judgements):
        copy_of(cell.judgements).unlink(missing_ok=True)
    writer = KeptTwiceWriter(cell.judgements, RECORD)
    sync_folder(cell.folder)
    return writer


class ItemAnswers(NamedTuple):
    """All ``answers`` of an item with a value, and all ``texts`` that came, by the name of the question.

    ``status`` is judged, unparsed or judge_failed, the latter two with the ``reason``.
    """

    status: str
    reason: str
    answers: Answers
    texts: Mapping[str, str]


class _Reply(NamedTuple):
    """What is kept of an answer, so that it is worth the same in every run."""

    text: str
    probabilities: Mapping[str, float] | None
    outside: float | None


@dataclass
class _Place:
    """Where one question about one item stands, in its present wording.

    ``seen`` counts the replies to each request that were looked at, ``attempts`` those without a value, of which the
    first ``forgiven`` do not count; ``problem`` is what the last of these lacks. ``failure`` is why there was no
    reply in this run.
    """

    question: Question
    request: str
    is_open: bool = False
    answer: Answer | None = None
    text: str | None = None
    seen: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    forgiven: int = 0
    problem: str = ""
    failure: str = ""


class Judgements:
    """The questions about some pictures of a cell, and where each stands: whatever was ever answered is not asked
    again.

    Items may share a request: it is asked once. With ``retry_unparsed`` replies on record without a value count as
    none. What is no record is told.

    Raises:
        CellFailure: the benchmark breaks its contract.
    """

    def __init__(
        self,
        cell: Cell,
        benchmark: Benchmark,
        evaluator_of: Callable[[Question], Evaluator],
        items: Mapping[str, Item],
        pictures: Mapping[str, Picture],
        retry_unparsed: bool,
        tell: Tell = tell_nobody,
    ) -> None:
        self._benchmark, self._evaluator_of = benchmark, evaluator_of
        self._items, self._pictures = items, pictures
        self._retry_unparsed = retry_unparsed
        self._places: dict[str, dict[str, _Place]] = {item: {} for item in pictures}
        # by request; of the items the keys, for their order
        self._items_of: dict[str, dict[str, None]] = defaultdict(dict)
        self._open: dict[str, Question] = {}
        self._replies: dict[str, list[_Reply]] = defaultdict(list)
        for record in judgement_records(cell, tell):
            if record["status"] in (OK, UNPARSED) and record.get("raw") is not None:
                reply = _Reply(record["raw"], record.get("probabilities"), record.get("outside"))
                self._replies[record["request"]].append(reply)
        for item in pictures:
            self._advance(item)

    def _all(self) -> Iterator[_Place]:
        return (place for places in self._places.values() for place in places.values())

    @property
    def requests(self) -> int:
        """How many there are, as far as is known: later questions depend on answers."""
        return len(self._items_of)

    @property
    def settled(self) -> int:
        """How many of them are not open."""
        return len(self._items_of) - len(self._open)

    @property
    def repeated(self) -> int:
        """How many have more replies than the official evaluator asks for."""
        most = self._benchmark.tries
        return len({p.request for p in self._all() if p.attempts + (p.answer is not None) > most})

    @property
    def answerers(self) -> set[str]:
        """The ids of those who have answered something."""
        return {self._evaluator_of(place.question).id for place in self._all() if place.text is not None}

    def open(self) -> list[Question]:
        """The questions to ask now, each request once."""
        return list(self._open.values())

    def request(self, question: Question) -> str:
        """The hash of one of the questions."""
        return self._places[question.item][question.name].request

    def add(self, answer: Answer) -> tuple[str, Answer, str]:
        """Note the answer to an open question: its status in records, itself with its value, and why it has none.

        Raises:
            CellFailure: the question was not open, or the benchmark breaks its contract.
        """
        asked = self._places[answer.question.item][answer.question.name]
        request = asked.request
        if self._open.pop(request, None) is None:
            raise CellFailure(
                f"{self._evaluator_of(asked.question).id} answers {asked.question.name} of item "
                f"{asked.question.item} twice"
            )
        if answer.text is not None:
            self._replies[request].append(_Reply(answer.text, answer.probabilities, answer.outside))
        items = list(self._items_of[request])
        for place in (place for item in items for place in self._places[item].values()):
            if place.request == request:
                place.is_open = False
                if answer.text is None:
                    place.failure = answer.error or "there is no answer, and no reason why"
                else:
                    self._take(place)
        status, problem = FAILED, asked.failure
        if answer.text is not None:
            status, problem = (UNPARSED, asked.problem) if asked.answer is None else (OK, "")
            answer = replace(answer, value=asked.answer.value if asked.answer else None)
        for item in items:
            if not any(place.is_open for place in self._places[item].values()):
                self._advance(item)
        return status, answer, problem

    def result(self, item: str, unasked: str) -> ItemAnswers | None:
        """What is known of an item with a picture; ``unasked`` is why the questions without a reply have none."""
        places = self._places.get(item)
        if places is None:
            return None
        answers = {name: place.answer for name, place in places.items() if place.answer}
        texts = {name: place.text for name, place in places.items() if place.text is not None}
        lacking = [(name, place) for name, place in places.items() if place.answer is None]
        failed = [(n, p) for n, p in lacking if p.failure or p.attempts == p.forgiven]
        status, reason = JUDGED, ""
        if lacking:
            name, place = (failed or lacking)[0]
            status = JUDGE_FAILED if failed else UNPARSED
            reason = (place.failure or unasked) if failed else place.problem
            reason = f"{name}: {reason}" if len(places) > 1 else reason
        return ItemAnswers(status, reason, Answers(answers), texts)

    def _advance(self, item: str) -> None:
        """Take the questions that the benchmark has now; until none of them is answered by what is known."""
        places, fresh = self._places[item], []
        moved = True
        while moved:
            moved = False
            for question in self._questions(item):
                place = places.get(question.name)
                if place is None:
                    place = places[question.name] = _Place(question, self._request_of(question))
                    fresh.append(place)
                elif place.answer is None and place.question != question:
                    before = place.request
                    place.question, place.request = question, self._request_of(question)
                    self._give_up(item, before)
                moved |= self._take(place)
        for place in fresh if self._retry_unparsed else ():
            place.forgiven = place.attempts
        for place in places.values():
            more = place.attempts - place.forgiven < self._benchmark.tries
            place.is_open = place.answer is None and more and not place.failure
            if place.is_open:
                self._open[place.request] = place.question

    def _request_of(self, question: Question) -> str:
        request = question.request_hash(self._evaluator_of(question))
        self._items_of[request][question.item] = None
        return request

    def _give_up(self, item: str, request: str) -> None:
        """``item`` has asked that in other words."""
        if not any(place.request == request for place in self._places[item].values()):
            del self._items_of[request][item]
            if not self._items_of[request]:
                del self._items_of[request]

    def _questions(self, item: str) -> list[Question]:
        places, where = self._places[item], f"questions() of item {item}"
        answers = Answers(
            {name: place.answer for name, place in places.items() if place.answer},
            {name: place.attempts for name, place in places.items()},
        )
        with benchmark_code(self._benchmark.name, where):
            found = list(self._benchmark.questions(self._items[item], self._pictures[item], answers))
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
        reply, question = replies[number], place.question
        place.text = reply.text
        answer = Answer(question, reply.text, probabilities=reply.probabilities, outside=reply.outside)
        where = f"parse() of item {question.item}, {question.name}"
        problem, value = "", None
        # anew at every run: a mended parser counts without asking again
        with benchmark_code(self._benchmark.name, where):
            try:
                value = self._benchmark.parse(question, answer)
            except Unparsed as error:
                problem = str(error) or "it holds no value"
        if problem:
            place.attempts += 1
            place.problem = problem
            return True
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise CellFailure(
                f"benchmark {self._benchmark.name}: {where} returns {reprlib.repr(value)}, and must return a JSON value"
            ) from None
        place.answer = replace(answer, value=value)
        return True
