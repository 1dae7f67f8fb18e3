"""What ``judgements.jsonl`` holds of a cell's questions, and which of them are still to be asked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imageevalkit.atomic import sync_folder
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.kept_twice import KeptTwiceWriter, copy_of, read_kept
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.benchmark import Benchmark, Unparsed
from imageevalkit.evaluation.question import Picture, Question, Reply
from imageevalkit.json_values import Shape, is_number, is_text, mapping_of, one_of, or_null
from imageevalkit.jsonl import Tell, tell_nobody

OK, UNPARSED, FAILED = "ok", "unparsed", "failed"


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
    """What was replied about ``cell`` so far; none where the file was deleted, which is how a user has all asked anew.

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


class Judgement(NamedTuple):
    """Where one question stands: its ``reply`` and the value ``parsed`` from it, or why there is none.

    ``status`` is "ok", "unparsed" or "failed"; ``tries`` counts the replies so far. ``beyond`` tells what of the value
    is beyond the judge's scale.
    """

    status: str
    reply: Reply | None = None
    parsed: Any = None
    reason: str = ""
    tries: int = 0
    beyond: str = ""


class Judgements:
    """The ``questions`` about some pictures of a cell, and where each stands (``known``), by request hash.

    Items may share a request: it is asked once. ``requests`` are the hashes of an item's questions by their names.
    ``replies`` counts those of each request, of all runs. With ``retry_unparsed`` replies on record that hold no
    score count as none. What is no record is told.

    Raises:
        CellFailure: the benchmark's questions about an item cannot be told apart.
    """

    def __init__(
        self,
        cell: Cell,
        benchmark: Benchmark,
        items: Mapping[str, Item],
        pictures: Mapping[str, Picture],
        retry_unparsed: bool,
        tell: Tell = tell_nobody,
    ) -> None:
        self._benchmark = benchmark
        self.questions: dict[str, Question] = {}
        self.requests: dict[str, dict[str, str]] = {}
        for item, picture in pictures.items():
            questions = list(benchmark.questions(items[item], picture))
            _check_questions(questions, item, cell)
            hashes = {
                question.name: question.request_hash(benchmark.answerer(question)) for question in questions
            }
            self.requests[item] = hashes
            self.questions.update(zip(hashes.values(), questions, strict=True))
        self.known: dict[str, Judgement] = {}
        self.replies: Counter[str] = Counter()
        for record in judgement_records(cell, tell):
            request = record["request"]
            replied = record["status"] in (OK, UNPARSED) and record.get("raw") is not None
            if replied and request in self.questions:
                reply = Reply(record["raw"], record.get("probabilities"), record.get("outside"))
                self.add_reply(request, reply)
        if retry_unparsed:
            self.known = {request: j for request, j in self.known.items() if j.status != UNPARSED}

    def request(self, question: Question) -> str:
        """The hash of one of the questions."""
        return self.requests[question.item][question.name]

    def open(self) -> list[Question]:
        """The questions to ask: without a reply, or with one that the benchmark asks for again."""
        return [question for request, question in self.questions.items() if self._is_open(request)]

    @property
    def asked_again(self) -> int:
        """How many questions have more replies than the official evaluator asks for."""
        return sum(count > self._benchmark.tries for count in self.replies.values())

    def add_reply(self, request: str, reply: Reply) -> Judgement:
        """What a request's replies say together with one more: the first that holds a score decides."""
        before = self.known.get(request)
        if before and before.status == OK:
            return before  # what other rules asked for once more
        self.replies[request] += 1
        tries = before.tries + 1 if before else 1
        # parsed anew at every run: a mended parser counts without asking again
        question, benchmark = self.questions[request], self._benchmark
        try:
            parsed, beyond = benchmark.parse(question, reply), benchmark.beyond_scale(question, reply)
            if beyond and benchmark.rules == "corrected":
                raise Unparsed(f"beyond the judge's scale: {beyond}")
            judgement = Judgement(OK, reply, parsed, "", tries, beyond)
        except Unparsed as error:
            judgement = Judgement(UNPARSED, reply, None, str(error), tries)
        self.known[request] = judgement
        return judgement

    def add_failure(self, request: str, reason: str) -> Judgement:
        """The evaluator gave no reply to a request."""
        self.known[request] = Judgement(FAILED, reason=reason)
        return self.known[request]

    def _is_open(self, request: str) -> bool:
        judgement = self.known.get(request)
        if judgement is None or judgement.status == FAILED:
            return True
        # a further try would choose among replies, so there are as many as the official evaluator makes
        return judgement.status == UNPARSED and judgement.tries < self._benchmark.tries


def _check_questions(questions: Sequence[Question], item: str, cell: Cell) -> None:
    problem = ""
    if strangers := [question.item for question in questions if question.item != item]:
        problem = f"one whose item is '{strangers[0]}': give each the id of its own item"
    elif len({question.name for question in questions}) < len(questions):
        [(name, count)] = Counter(question.name for question in questions).most_common(1)
        problem = f"{count} of the name '{name}': give each a name of its own"
    if problem:
        raise CellFailure(f"benchmark {cell.benchmark}: questions() of item {item} has {problem}")
