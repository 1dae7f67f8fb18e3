"""What ``judgements.jsonl`` holds of a cell's questions, and which of them are still to be asked."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from imageevalkit.atomic import sync_folder
from imageevalkit.benchmark.contract import Answers, Benchmark, Unparsed, benchmark_code
from imageevalkit.benchmark.question import Answer, Picture, Question
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.jsonl import Shape, Tell, is_number, is_text, mapping_of, one_of, or_null, tell_nobody
from imageevalkit.cell.kept_twice import KeptTwiceWriter, copy_of, read_kept
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure

OK, UNPARSED, FAILED = "ok", "unparsed", "failed"
JUDGED, JUDGE_FAILED = "judged", "judge_failed"

RECORD = Shape(
    must={"request": is_text, "status": one_of(OK, UNPARSED, FAILED)},
    may={
        "evaluator": is_text,
        "raw": or_null(is_text),
        "probabilities": or_null(mapping_of(is_number)),
        "outside": or_null(is_number),
        "tokens": or_null(mapping_of(is_number)),
        "usd": or_null(is_number),
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


_Reply = tuple[Answer, str]  # an answer with its value, or with what it lacks
_Record = Mapping[str, Any]


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
        self._items_of: dict[str, set[str]] = defaultdict(set)
        self._open: dict[str, Question] = {}
        self._replies: dict[str, list[_Reply | _Record]] = defaultdict(list)
        for record in judgement_records(cell, tell):
            if record["status"] in (OK, UNPARSED) and record.get("raw") is not None:
                self._replies[record["request"]].append(record)
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
        """Note the answer to an open question: its status in records, itself with its value, and why it has none."""
        request = self.request(answer.question)
        problem = answer.error
        if answer.text is not None:
            answer, problem = self._read(answer)
            self._replies[request].append((answer, problem))
        del self._open[request]
        for item in self._items_of[request]:
            places = self._places[item].values()
            for place in places:
                if place.request == request:
                    place.is_open = False
                    if answer.text is None:
                        place.failure = answer.error
                    else:
                        self._take(place)
            if not any(place.is_open for place in places):
                self._advance(item)
        return (FAILED if answer.text is None else UNPARSED if problem else OK), answer, problem

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
                if place is None or (place.answer is None and place.question != question):
                    request = question.request_hash(self._evaluator_of(question))
                    self._items_of[request].add(item)
                    if place is None:
                        place = places[question.name] = _Place(question, request)
                        fresh.append(place)
                    place.question, place.request = question, request
                moved |= self._take(place)
        for place in fresh if self._retry_unparsed else ():
            place.forgiven = place.attempts
        for place in places.values():
            more = place.attempts - place.forgiven < self._benchmark.tries
            place.is_open = place.answer is None and more and not place.failure
            if place.is_open:
                self._open[place.request] = place.question

    def _questions(self, item: str) -> list[Question]:
        places = self._places[item]
        answers = Answers(
            {name: place.answer for name, place in places.items() if place.answer},
            {name: place.attempts for name, place in places.items()},
        )
        with benchmark_code(self._benchmark.name, f"questions() of item {item}"):
            found = self._benchmark.questions(self._items[item], self._pictures[item], answers)
            questions = [replace(question, item=item) for question in found]
        (name, count) = (
            Counter(question.name for question in questions).most_common(1)[0] if questions else ("", 0)
        )
        if count > 1:
            raise CellFailure(
                f"benchmark {self._benchmark.name}: questions() of item {item} has {count} of the name '{name}': give "
                "each a name of its own"
            )
        return questions

    def _take(self, place: _Place) -> bool:
        """Look at the next reply to the place's request; False where there is none."""
        replies = self._replies.get(place.request, [])
        number = place.seen[place.request]
        if place.answer or number == len(replies):
            return False
        place.seen[place.request] += 1
        reply = replies[number]
        if not isinstance(reply, tuple):
            # parsed anew at every run: a mended parser counts without asking again
            reply = replies[number] = self._read(
                Answer(
                    place.question,
                    reply["raw"],
                    probabilities=reply.get("probabilities"),
                    outside=reply.get("outside"),
                )
            )
        answer, place.problem = reply
        place.text = answer.text
        if place.problem:
            place.attempts += 1
        else:
            place.answer = answer
        return True

    def _read(self, answer: Answer) -> _Reply:
        question = answer.question
        try:
            with benchmark_code(self._benchmark.name, f"parse() of item {question.item}, {question.name}"):
                return replace(answer, value=self._benchmark.parse(question, answer)), ""
        except Unparsed as error:
            return answer, str(error)
