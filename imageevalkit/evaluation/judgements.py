"""What ``judgements.jsonl`` holds of a cell's questions, and which of them are still to be asked."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from imageevalkit.atomic import sync_folder
from imageevalkit.benchmark.contract import Answers, Benchmark, ScoredItem, Unparsed, benchmark_code
from imageevalkit.benchmark.question import Answer, Picture, Question
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.jsonl import JsonlWriter, Shape, Tell, copy_of, read_kept, tell_nobody
from imageevalkit.cell.results import Evaluator
from imageevalkit.errors import CellFailure
from imageevalkit.text import to_bytes

OK, UNPARSED, FAILED = "ok", "unparsed", "failed"
JUDGED, JUDGE_FAILED = "judged", "judge_failed"

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


def judgement_writer(cell: Cell) -> JsonlWriter:
    """For more of them."""
    if not os.path.lexists(cell.judgements):
        copy_of(cell.judgements).unlink(missing_ok=True)
    writer = JsonlWriter(cell.judgements, RECORD)
    sync_folder(cell.folder)
    return writer


_KEPT = ("text", "probabilities", "outside")  # of an answer, so that it is worth the same in every run


@dataclass(eq=False)
class _Place:
    """Where one question about one item stands, in its present wording.

    ``seen``: how many replies to each request were looked at, and ``text`` is the last of them. ``problem`` is why that
    has no value, ``failure`` why there is none. Of the ``attempts`` without a value, ``forgiven`` ones count as none.
    """

    question: Question
    request: str
    answer: Answer | None = None
    text: str | None = None
    seen: Counter[str] = field(default_factory=Counter)
    forgiven: int = 0
    problem: str = ""
    failure: str = ""

    @property
    def attempts(self) -> int:
        return self.seen.total() - (self.answer is not None)


class Judgements:
    """The questions about some pictures of a cell, and where each stands: whatever was ever answered is not asked
    again.

    Items may share a request: it is asked once. With ``retry_unparsed`` replies on record without a value count as
    none. What is no record is told. ``depend_on_answers``: with more answers there may be more questions.

    Raises:
        CellFailure: the benchmark breaks its contract.
    """

    def __init__(
        self,
        cell: Cell,
        benchmark: Benchmark,
        evaluator_of: Callable[[Question], Evaluator],
        items: Sequence[Item],
        pictures: Mapping[str, Picture],
        retry_unparsed: bool,
        tell: Tell = tell_nobody,
    ) -> None:
        self._benchmark, self._evaluator_of = benchmark, evaluator_of
        self._pictures, self._retry_unparsed = pictures, retry_unparsed
        self._items = {item.id: item for item in items}
        self.depend_on_answers = False
        self._places: dict[str, dict[str, _Place]] = {item: {} for item in pictures}
        self._asking: dict[str, list[_Place]] = defaultdict(list)  # by request
        self._open: dict[str, Question] = {}
        self._replies: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in judgement_records(cell, tell):
            if record["status"] in (OK, UNPARSED) and (text := record.get("raw")) is not None:
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

    @property
    def answerers(self) -> set[str]:
        """The ids of those who have answered something."""
        places = (place for of_item in self._places.values() for place in of_item.values())
        return {self._evaluator_of(place.question).id for place in places if place.text is not None}

    def open(self) -> list[Question]:
        """The questions to ask now, each request once."""
        return list(self._open.values())

    def request(self, question: Question) -> str:
        """The hash of one of the questions."""
        return self._places[question.item][question.name].request

    def add(self, answer: Answer) -> tuple[str, Any, str]:
        """Note the answer to an open question: its status in records, its value, and why it has none.

        Raises CellFailure: the question was not open, or the benchmark breaks its contract.
        """
        asked = self._places[answer.question.item][answer.question.name]
        if self._open.pop(asked.request, None) is None:
            raise CellFailure(
                f"{self._evaluator_of(asked.question).id} answers {asked.question.name} of item "
                f"{asked.question.item} twice"
            )
        if answer.text is not None:
            self._replies[asked.request].append({name: getattr(answer, name) for name in _KEPT})
        sharing = list(self._asking[asked.request])
        for place in sharing:
            if answer.text is not None:
                self._take(place)
            else:
                place.failure = answer.error or "there is no answer, and no reason why"
        if answer.text is None:
            known = FAILED, None, asked.failure
        else:
            known = (OK, asked.answer.value, "") if asked.answer else (UNPARSED, None, asked.problem)
        for item in dict.fromkeys(place.question.item for place in sharing):
            if not any(p.answer is None and p.request in self._open for p in self._places[item].values()):
                self._advance(item)
        return known

    def scored_item(self, item: Item, unasked: str) -> ScoredItem:
        """What is known of an item with a picture, before its score; ``unasked`` is why questions without a reply
        have none.
        """
        places = self._places[item.id]
        lacking = [(name, place) for name, place in places.items() if place.answer is None]
        failed = [(n, p) for n, p in lacking if p.failure or p.attempts == p.forgiven]
        status, reason = JUDGED, ""
        if lacking:
            name, place = (failed or lacking)[0]
            status = JUDGE_FAILED if failed else UNPARSED
            reason = (place.failure or unasked) if failed else place.problem
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
                place = places.get(question.name)
                if place is None:
                    place = places[question.name] = _Place(question, "")
                    fresh.append(place)
                elif place.answer or place.question == question:
                    moved |= self._take(place)
                    continue
                else:  # in other words now
                    self._asking[place.request].remove(place)
                    if not self._asking[place.request]:
                        del self._asking[place.request]
                place.question, place.request = question, request_hash(question, self._evaluator_of(question))
                self._asking[place.request].append(place)
                moved |= self._take(place)
        for place in fresh if self._retry_unparsed else ():
            place.forgiven = place.attempts
        for place in places.values():
            more = place.attempts - place.forgiven < self._benchmark.tries
            if place.answer is None and more and not place.failure:
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
        place.text = answer.text
        where = f"parse() of item {question.item}, {question.name}"
        # anew at every run: a mended parser counts without asking again
        with benchmark_code(self._benchmark.name, where):
            try:
                value = self._benchmark.parse(question, answer)
            except Unparsed as error:
                place.problem = str(error) or "it holds no value"
                return True
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise CellFailure(
                f"benchmark {self._benchmark.name}: {where} returns {reprlib.repr(value)}, and must return a JSON value"
            ) from None
        place.answer = replace(answer, value=value)
        return True
