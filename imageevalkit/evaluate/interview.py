"""The questions about a cell: finds recorded answers, asks the open questions, and records the replies."""

from __future__ import annotations

import contextlib
import reprlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

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
from imageevalkit.benchmark.question import Answer, JudgeOnHold, JudgeUnusable, Picture, Question
from imageevalkit.benchmark.thoughts import answer_in, without_thoughts
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.machine import garbage_collection
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.evaluate.answerers import Answerers, request_hash
from imageevalkit.jobs.plan import EvaluateOrder
from imageevalkit.jobs.progress import Progress, ProgressWriter, watched
from imageevalkit.judges.choice import Judge
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.jsonl import Int, JsonlWriter, Number, Reader, Tell, read_jsonl, tell_nobody
from imageevalkit.store.results import standing
from imageevalkit.store.states import ImageState

JUDGED, UNPARSED, JUDGE_FAILED = "judged", "unparsed", "judge_failed"
"""The final states of an item, and of each of its questions."""
_RECORDED = {JUDGED: "ok", UNPARSED: "unparsed", JUDGE_FAILED: "failed"}
# A judge that fails this often without any answer is unusable: every further question would fail too.
_FIRST_FAILURES = 10
# A new invocation resumes a run of the last day that wrote no result: changes within a day are noise.
_CUT_OFF = timedelta(days=1)


class Record(TypedDict):
    """A line of ``judgements.jsonl`` (replies) or ``repeats.jsonl`` (replies to repeated questions). A user may
    delete these files to have all questions asked again."""

    request: str
    status: Literal["ok", "unparsed", "failed"]
    evaluator: NotRequired[str]
    run: NotRequired[str]
    host: NotRequired[str]
    again: NotRequired[Int]
    raw: NotRequired[str | None]
    probabilities: NotRequired[dict[str, Number] | None]
    outside: NotRequired[Number | None]
    tokens: NotRequired[dict[str, Number] | None]
    usd: NotRequired[Number | None]


RECORD = Reader(Record)


def _begun(cell: Cell, latest: str) -> str:
    """Returns the start of this run, ISO 8601. The value is ``latest``, the start of the last recorded run,
    if that run is younger than a day and wrote no result. Otherwise it is the current time.
    """
    now = datetime.now(timezone.utc)
    starts = (one.provenance.get("run") or "" for one in standing(cell) if latest)
    if latest > max(starts, default=""):
        with contextlib.suppress(ValueError):
            if now - datetime.fromisoformat(latest) < _CUT_OFF:
                return latest
    return now.isoformat(timespec="microseconds")


class Reply(NamedTuple):
    """The part of an answer that decides its value. ``text`` has no thoughts.

    ``run`` is the start of the run that got the reply, ``host`` the host that sent it; "" if unknown.
    """

    text: str
    probabilities: Mapping[str, float] | None = None
    outside: float | None = None
    run: str = ""
    host: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Reply | None:
        """The reply in a line of ``judgements.jsonl``. None if the judge failed, or wrote thoughts and no answer."""
        raw, probabilities = record.get("raw"), record.get("probabilities")
        if raw is None or record["status"] == "failed":
            return None
        # a reply with status "ok" was accepted, even an empty one of many tokens
        tokens = (record.get("tokens") or {}).get("output", 0) if record["status"] == "ok" else 0
        text = answer_in(raw, tokens, probabilities is not None)
        if text is None:
            return None
        return cls(text, probabilities, record.get("outside"), record.get("run", ""), record.get("host", ""))

    def to(self, question: Question) -> Answer:
        """Returns the reply as an answer to ``question``, without a value."""
        return Answer(question, self.text, probabilities=self.probabilities, outside=self.outside)


@dataclass(eq=False)
class Place:
    """The state of one question about one item, in its present wording.

    ``run`` and ``host`` belong to the ``answer``; ``reason`` explains a missing answer. ``seen`` counts the
    replies that were parsed, by request; ``text`` is the last one. ``forgiven`` is the number of attempts
    without a value that do not count (``--retry_unparsed``). ``final``: the official program asks no more.
    """

    question: Question
    request: str = ""
    answer: Answer | None = None
    run: str = ""
    host: str = ""
    text: str | None = None
    seen: dict[str, int] = field(default_factory=dict)
    forgiven: int = 0
    final: bool = False
    status: str = JUDGE_FAILED
    reason: str = ""

    @property
    def attempts(self) -> int:
        return sum(self.seen.values()) - (self.answer is not None)


class Interview:
    """The questions about some ``images`` of a cell, with their states. A recorded answer is reused.

    If items share a request, it is asked once. ``tell`` gets a message for each invalid line in the records.

    * ``evaluator`` combines all judges and metric models. The constructor computes it, so that a missing
      model or package is found before the first question. ``answered`` are the evaluators that have answered
      at least once.
    * ``depend_on_answers``: further answers may lead to further questions.
    * ``problem`` is the reason why an evaluator stopped, or "". ``on_hold``: it stopped for this run only.
    * ``usd`` is the cost of this run's answers, None if no price is known.
    * ``began`` is the start of the run, which identifies its replies; a resumed run keeps its start.

    Raises CellFailure if an evaluator cannot start, the disk is full, or the benchmark breaks its contract.
    """

    def __init__(
        self,
        cell: Cell,
        benchmark: Benchmark,
        items: Sequence[Item],
        images: Mapping[str, ImageState],
        options: EvaluateOrder,
        tell: Tell = tell_nobody,
    ) -> None:
        self.cell, self._benchmark, self._options = cell, benchmark, options
        self.answerers = Answerers(benchmark, options.judge_options)
        self.evaluator = self.answerers.evaluator
        self._items = {item.id: item for item in items}
        self._pictures: dict[str, Picture] = {}
        self.answered = set[Answerer]()
        self.depend_on_answers = self.on_hold = False
        self.problem = self.note = ""
        self.usd: float | None = None
        self._failed: Counter[Answerer] = Counter()
        self._places: dict[str, dict[str, Place]] = {}
        self._asking: dict[str, list[Place]] = defaultdict(list)  # by request
        self._open: dict[str, Question] = {}
        self._fresh: list[str] = []  # open requests that fresh() has not returned yet
        self._reused = 0
        self._replies: dict[str, list[Reply]] = defaultdict(list)
        self._thoughts = set[str]()  # requests with a recorded reply of thoughts without an answer
        # by evaluator: the tokens by kind and the USD of each answer in all runs
        self._spent: dict[str | None, list[tuple[Mapping[str, float], float | None]]] = defaultdict(list)
        self.began = ""
        for record in read_jsonl(cell.judgements, RECORD, tell):
            self.count(record)
            if reply := Reply.of(record):
                self._replies[record["request"]].append(reply)
            elif record["status"] != "failed":
                self._thoughts.add(record["request"])
            self.began = max(self.began, record.get("run", ""))
        for record in read_jsonl(cell.repeats, RECORD, tell):
            self.count(record)
            self.began = max(self.began, record.get("run", ""))
        self.began = _begun(cell, self.began)
        self.show(images)

    def show(self, images: Mapping[str, ImageState]) -> None:
        """Adds ``images``, by item. If the image of an item has changed, its questions start again."""
        answered, pixels = len(self._asking) - len(self._open), self._benchmark.shown_pixels
        for item, state in images.items():
            picture = Picture(state.path, state.sha256, pixels=pixels, plain=state.plain, flat=state.flat)
            if self._pictures.get(item) != picture:
                self._drop(item)
                self._pictures[item], self._places[item] = picture, {}
                self._advance(item)
        self._reused += len(self._asking) - len(self._open) - answered

    def show_only(self, images: Mapping[str, ImageState]) -> None:
        """Calls :meth:`show` and drops all other images. Not allowed while questions are being asked."""
        for item in self._pictures.keys() - images.keys():
            self._drop(item)
        self.show(images)

    def _drop(self, item: str) -> None:
        self._pictures.pop(item, None)
        for place in self._places.pop(item, {}).values():
            self._withdraw(place)

    def _withdraw(self, place: Place) -> None:
        """Removes ``place`` from its request, which stays open only if other places share it."""
        asking = self._asking[place.request]
        asking.remove(place)
        if not asking:
            del self._asking[place.request]
            self._open.pop(place.request, None)
        elif place.request in self._open:
            self._open[place.request] = asking[0].question

    def count(self, record: Mapping[str, Any]) -> None:
        """Adds the tokens and USD of a recorded answer to :attr:`spent`."""
        self._spent[record.get("evaluator")].append((record.get("tokens") or {}, record.get("usd")))

    def spend(self, usd: float | None) -> None:
        """Adds ``usd`` to the cost of this run; None if the price is unknown."""
        if usd is not None:
            self.usd = (self.usd or 0.0) + usd

    @property
    def spent(self) -> dict[str, Any]:
        """The calls, tokens and USD of the judge in all runs, with repeated questions. Without a judge, the
        metric models count. USD are None if no price is known.
        """
        spent, tokens = self._spent[(self.answerers.judge or self).evaluator.id], Counter[str]()
        for counts, _ in spent:
            tokens.update(counts)
        prices = [usd for _, usd in spent if usd is not None]
        usd = round(sum(prices), 6) if prices else None
        return {"judge_calls": len(spent), "judge_tokens": dict(tokens), "judge_usd": usd}

    @property
    def requests(self) -> int:
        """The number of requests so far; answers may lead to more."""
        return len(self._asking)

    @property
    def repeated(self) -> int:
        """The number of requests with more replies than the official evaluator asks for."""
        most = self._benchmark.tries
        return sum(any(sum(p.seen.values()) > most for p in places) for places in self._asking.values())

    @property
    def has_lost_answers(self) -> bool:
        """Whether a question has only recorded thoughts, which an older version counted as an answer."""
        return any(one in self._asking and not self._replies.get(one) for one in self._thoughts)

    @property
    def is_asking(self) -> bool:
        """Whether a question is open."""
        return bool(self._open)

    def open(self) -> list[Question]:
        """Returns the questions to ask now, one per request; none with ``--rescore``."""
        return list(self._open.values()) if self._options.ask else []

    def fresh(self) -> list[Question]:
        """Returns the open questions that earlier calls did not return."""
        fresh, self._fresh = self._fresh, []
        return [self._open[request] for request in fresh if request in self._open]

    def report(self, progress: ProgressWriter, force: bool = False) -> None:
        """Writes the progress for the launcher."""
        done, failed = self.requests - len(self._open), self._failed.total()
        state = Progress(self.cell.key, "evaluate", done, self.requests, self._reused, failed, self.note)
        progress.report(state._replace(cost=self.usd), force)

    def run(self, progress: ProgressWriter) -> None:
        """Asks until no question is open or an evaluator stops."""
        waiting = self.open()
        say(f"{self._reused} of {self.requests} questions are answered, {len(waiting)} to ask")
        for answerer in self.answered:
            answerer.has_answered()

        def report_holdup() -> None:
            """Reports why answers are late. Without a reason, other notes stay visible."""
            before, self.note = self.note, self.answerers.holdup()
            if self.note or before:
                self.report(progress)

        self.report(progress, force=True)
        with (
            garbage_collection(True),
            closing(JsonlWriter(self.cell.judgements)) as writer,
            watched(report_holdup, writer.sync),
        ):
            # each round may open more questions: some quote an answer, others retry a reply without a value
            while waiting and not self.problem:
                self.problem = self._ask(waiting, writer, progress)
                waiting = self.open()
        self.note = ""
        self.report(progress, force=True)

    def _ask(self, waiting: Sequence[Question], writer: JsonlWriter, progress: ProgressWriter) -> str:
        """Asks ``waiting``. Returns the reason if an evaluator stopped, otherwise ""."""
        left = len(waiting)
        try:
            with closing(self.answerers.ask(waiting)) as answers:
                for answer in answers:
                    left -= 1
                    self.take(answer, writer)
                    self.report(progress)
        except JudgeUnusable as error:
            self.on_hold = isinstance(error, JudgeOnHold)
            return one_line(error)
        return f"{left} of {len(waiting)} questions got neither an answer nor an error" if left else ""

    def take(self, answer: Answer, writer: JsonlWriter) -> None:
        """Parses the answer to an open question and writes it to the record.

        Raises CellFailure if the question was not open or the benchmark breaks its contract. Raises
        JudgeUnusable if the judge or metric model has only failed so far, and often enough.
        """
        question, raw, asked = answer.question, answer.text, self.answerers.of(answer.question)
        place, who = self._places[question.item][question.name], asked.evaluator.id
        what = f"{who} answers {question.name} of item {question.item}"
        if self._open.pop(place.request, None) is None:
            raise CellFailure(f"{what} twice")
        if not isinstance(raw, str | None):
            raise CellFailure(
                f"{what} with {reprlib.repr(raw)}: an answer must be text; the answer of a metric model must be JSON"
            )
        answer = without_thoughts(answer)
        text = answer.text
        record: dict[str, Any] = {
            "item": question.item,
            "question": question.name,
            "evaluator": who,
            "run": self.began,
            "request": place.request,
            "status": UNPARSED,
            "raw": raw,
            "parsed": None,
            "error": None,
            "seconds": round(answer.seconds, 4),
            "attempts": answer.attempts,
            "tokens": answer.tokens,
        }
        if answer.probabilities is not None:
            record |= {"probabilities": dict(answer.probabilities), "outside": answer.outside}
        host = asked.host if isinstance(asked, Judge) else ""
        if host:
            record["host"] = host
        if question.variant:
            record["variant"] = question.variant
        if answer.usd is not None:
            record["usd"] = answer.usd
            self.spend(answer.usd)
        if answer.batch:
            record["batch"] = answer.batch
        sharing = [one for one in self._asking[place.request] if not one.answer]
        try:
            if text is not None:
                reply = Reply(text, answer.probabilities, answer.outside, self.began, host)
                self._replies[place.request].append(reply)
            for one in sharing:
                if text is not None:
                    self._take(one)
                else:
                    one.status = JUDGE_FAILED
                    one.reason = redact(answer.error) or "there is no answer, and no reason why"
            record |= {"status": _RECORDED[place.status], "error": place.reason or None}
            record["parsed"] = place.answer.value if place.answer else None
        except CellFailure as error:  # the benchmark's code failed; the answer is paid for, so it is recorded
            record["error"] = str(error)
            raise
        finally:
            writer.append(record)
            self.count(record)
        for item in dict.fromkeys(one.question.item for one in sharing):
            if not any(p.answer is None and p.request in self._open for p in self._places[item].values()):
                self._advance(item)
        if text is None:
            self._failed[asked] += 1
            say(f"{question.item} {question.name}: judge failed: {record['error']}")
            if self._failed[asked] >= _FIRST_FAILURES and asked not in self.answered:
                reason = one_line(answer.error)
                raise JudgeUnusable(f"the first {self._failed[asked]} questions all failed: {reason}")

    def places_of(self, answerer: Answerer) -> dict[str, list[Place]]:
        """Returns the requests to ``answerer``, each with the places that share the request."""
        asking = self._asking.items()
        return {one: places for one, places in asking if self.answerers.of(places[0].question) is answerer}

    def scored_item(self, state: ImageState, unasked: str, others: Mapping[str, Reply] = {}) -> ScoredItem:
        """Returns the item of ``state`` with its answers and score.

        ``unasked`` is the reason for questions without a reply. ``others`` replace replies, by request; this
        raises Unparsed if one of them has no value."""
        item, places = state.item, self._places[state.item.id]
        if any(place.request in others for place in places.values()):
            places = {
                name: self._with_other(place, others.get(place.request)) for name, place in places.items()
            }
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

    def _with_other(self, place: Place, reply: Reply | None) -> Place:
        return replace(place, answer=self.read(place.question, reply), text=reply.text) if reply else place

    def _advance(self, item: str) -> None:
        """Gets the item's questions from the benchmark and applies recorded replies, until none is new."""
        places, fresh = self._places[item], []
        moved = True
        while moved:
            moved = False
            for question in self._questions(item):
                if question.name not in places:
                    places[question.name] = Place(question)
                    fresh.append(places[question.name])
                place = places[question.name]
                if not place.request or (not place.answer and place.question != question):
                    if place.request:  # the wording has changed
                        self._withdraw(place)
                    place.question = question
                    place.request = request_hash(question, self.answerers.of(question).evaluator)
                    self._asking[place.request].append(place)
                moved |= self._take(place)
        for place in fresh if self._options.retry_unparsed else ():
            if not place.answer:
                place.forgiven, place.status, place.reason = place.attempts, JUDGE_FAILED, ""
                place.final = False
        for place in places.values():
            has_failed = place.status == JUDGE_FAILED and place.reason
            is_closed = place.answer or place.final or has_failed
            if not is_closed and place.attempts - place.forgiven < self._benchmark.tries:
                if place.request not in self._open:
                    self._fresh.append(place.request)
                self._open[place.request] = place.question

    def _questions(self, item: str) -> list[Question]:
        places, questions = self._places[item], dict[str, Question]()
        answers = Answers(
            {name: place.answer for name, place in places.items() if place.answer},
            {name: place.attempts for name, place in places.items()},
        )
        with benchmark_code(self._benchmark.name, f"questions() of item {item}") as where:
            for question in self._benchmark.questions(self._items[item], self._pictures[item], answers):
                is_one = isinstance(question, Question)
                require(is_one, f"{where}: one", question, "made by ask() or measure()")
                if (name := question.name) in questions:
                    raise CellFailure(f"{where} has more than one of the name '{name}': give each its own")
                questions[name] = question.of_item(item)
        self.depend_on_answers |= answers.looked_at
        return list(questions.values())

    def _take(self, place: Place) -> bool:
        """Parses the next reply to the request of ``place``. Returns False if there is none."""
        replies, number = self._replies.get(place.request, ()), place.seen.get(place.request, 0)
        if place.answer or number == len(replies):
            return False
        place.seen[place.request] = number + 1
        question, reply = place.question, replies[number]
        self.answered.add(self.answerers.of(question))
        place.text, place.status = reply.text, UNPARSED
        try:
            place.answer = self.read(question, reply)
        except Unparsed as error:
            place.reason, place.final = str(error) or "it holds no value", place.final or error.final
        else:
            place.run, place.host, place.status, place.reason = reply.run, reply.host, JUDGED, ""
        return True

    def read(self, question: Question, reply: Reply) -> Answer:
        """Returns the answer to ``question`` with the value of ``reply``. Raises Unparsed if there is no
        value, CellFailure if the benchmark breaks its contract.

        Every run parses recorded replies again, so a corrected parser needs no new questions.
        """
        answer = reply.to(question)
        unparsed: Unparsed | None = None
        with benchmark_code(
            self._benchmark.name, f"parse() of item {question.item}, {question.name}"
        ) as where:
            try:
                value = self._benchmark.parse(question, answer)
            except Unparsed as error:
                unparsed = error
            else:
                require(is_json(value), where, value, "a JSON value")
        if unparsed:
            raise unparsed
        return replace(answer, value=value)
