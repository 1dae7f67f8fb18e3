"""``judgements.jsonl``: ask the evaluator only what it has not answered before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from imageevalkit.cell import Cell
from imageevalkit.evaluation.benchmark import Benchmark, Score, Unparsed
from imageevalkit.evaluation.question import Answer, JudgeUnusable, Picture, Question, Reply
from imageevalkit.evaluation.survey import ImageState
from imageevalkit.evaluation.watch import Watch
from imageevalkit.items import Item
from imageevalkit.jsonl import JsonlWriter, read_jsonl
from imageevalkit.progress import Progress, ProgressWriter
from imageevalkit.secrets import one_line, redact

JUDGED, UNPARSED, JUDGE_FAILED = "judged", "unparsed", "judge_failed"
_OK, _FAILED = "ok", "failed"


class AskOptions(NamedTuple):
    """``ask`` False: only what is on record counts. ``retry_unparsed``: replies without a score are asked anew.

    ``workers`` are the CPU cores of the job.
    """

    workers: int = 1
    ask: bool = True
    retry_unparsed: bool = False


class Judgement(NamedTuple):
    """Where one question stands: its ``reply`` and the value ``parsed`` from it, or why there is none.

    ``status`` is "ok", "unparsed" or "failed"; ``tries`` counts the replies so far.
    """

    status: str
    reply: Reply | None = None
    parsed: Any = None
    reason: str = ""
    tries: int = 0


class Verdict(NamedTuple):
    """One item: judged with a score, or unparsed / judge_failed with the reason."""

    verdict: str
    score: Score | None
    reason: str
    replies: Mapping[str, Reply]
    parsed: Mapping[str, Any]


class Judging(NamedTuple):
    """The verdicts by item, and the one line why the evaluator stopped answering (empty: it did not).

    ``asked_again`` is how many questions have more replies than ``Benchmark.tries``.
    """

    verdicts: dict[str, Verdict]
    problem: str
    asked_again: int


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
        CellFailure: the evaluator cannot start, or the disk is full.
    """
    asking = _Asking(cell, benchmark, items, states, options, progress)
    problem = asking.ask() if options.ask else "not asked: --rescore takes what is on record"
    verdicts = {item: asking.verdict(item, problem) for item in states}
    return Judging(verdicts, problem if options.ask else "", asking.asked_again)


def answered_requests(cell: Cell) -> set[str]:
    """The request hashes of all questions of ``cell`` with a reply on record, by any evaluator."""
    return {r["request"] for r in read_jsonl(cell.judgements) if r.get("status") in (_OK, UNPARSED)}


class _Asking:
    """The questions of one cell and where each stands, by request hash: items may share a request."""

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
        self._evaluator = benchmark.evaluator
        self._items = items
        self._options = options
        self._progress = progress
        self._requests: dict[str, dict[str, str]] = {}
        self._questions: dict[str, Question] = {}
        for item, state in states.items():
            questions = benchmark.questions(items[item], Picture(state.path, state.sha256))
            hashes = {question.name: question.request_hash(self._evaluator) for question in questions}
            self._requests[item] = hashes
            self._questions.update(zip(hashes.values(), questions, strict=True))
        self._hash_of = {
            (question.item, question.name): request for request, question in self._questions.items()
        }
        self._replies: Counter[str] = Counter()
        self._judgements = self._known()
        self._reused = len(self._judgements) - len(self._open())
        self._failed = 0
        self._note = ""

    def ask(self) -> str:
        """Ask until nothing is open; why the evaluator stopped answering, or an empty string."""
        total, waiting = len(self._questions), self._open()
        self._reused = total - len(waiting)
        print(f"{self._reused} of {total} questions are answered, {len(waiting)} to ask", flush=True)
        self._report(force=True)
        if self._replies:
            self._benchmark.has_answered()
        problem = ""
        with JsonlWriter(self._cell.judgements) as writer, Watch(self._report_holdup):
            # a question comes back here when its reply held no score and the benchmark asks for that again
            while waiting and not problem:
                problem = self._pass(waiting, writer)
                waiting = self._open_again()
        self._note = ""
        self._report(force=True)
        return problem

    def _pass(self, waiting: Sequence[Question], writer: JsonlWriter) -> str:
        try:
            with closing(self._answers(waiting)) as answers:
                for answer in answers:
                    self._take(answer, writer)
                    self._report()
        except JudgeUnusable as error:
            problem = redact(one_line(error))
            print(f"the judge stopped answering: {problem}", flush=True)
            return problem
        return ""

    def _answers(self, waiting: Sequence[Question]) -> Generator[Answer, None, None]:
        yield from self._benchmark.ask(waiting, self._options.workers)

    @property
    def asked_again(self) -> int:
        """How many questions have more replies than the official evaluator asks for."""
        return sum(count > self._benchmark.tries for count in self._replies.values())

    def verdict(self, item: str, problem: str) -> Verdict:
        """What all answers about ``item`` together are worth."""
        judgements = {name: self._judgements.get(request) for name, request in self._requests[item].items()}
        replies = {n: j.reply for n, j in judgements.items() if j and j.reply}
        parsed = {n: j.parsed for n, j in judgements.items() if j and j.status == _OK}
        if len(parsed) == len(judgements):
            score = self._benchmark.score(self._items[item], parsed, replies)
            return Verdict(JUDGED, score, "", replies, parsed)
        failed = [
            (n, j.reason if j else problem) for n, j in judgements.items() if j is None or j.status == _FAILED
        ]
        verdict = JUDGE_FAILED if failed else UNPARSED
        unparsed = ((n, j.reason) for n, j in judgements.items() if j and j.status == UNPARSED)
        name, reason = failed[0] if failed else next(unparsed)
        return Verdict(verdict, None, f"{name}: {reason}" if len(judgements) > 1 else reason, replies, parsed)

    def _open(self) -> list[Question]:
        return [q for request, q in self._questions.items() if self._is_open(self._judgements.get(request))]

    def _open_again(self) -> list[Question]:
        """Open for another try in this run: what failed has had its own."""
        return [
            question
            for question in self._open()
            if (known := self._judgements.get(self._hash(question))) and known.status == UNPARSED
        ]

    def _is_open(self, judgement: Judgement | None) -> bool:
        if judgement is None or judgement.status == _FAILED:
            return True
        # a further try would choose among replies, so there are as many as the official evaluator makes
        return judgement.status == UNPARSED and judgement.tries < self._benchmark.tries

    def _hash(self, question: Question) -> str:
        return self._hash_of[question.item, question.name]

    def _known(self) -> dict[str, Judgement]:
        known: dict[str, Judgement] = {}
        for record in read_jsonl(self._cell.judgements):
            request = record.get("request", "")
            if record.get("status") not in (_OK, UNPARSED) or request not in self._questions:
                continue
            if not isinstance(record.get("raw"), str):
                continue
            reply = Reply(record["raw"], record.get("probabilities"), record.get("outside"))
            self._replies[request] += 1
            known[request] = self._judge(self._questions[request], reply, self._replies[request])
        if self._options.retry_unparsed:
            known = {request: j for request, j in known.items() if j.status != UNPARSED}
        return known

    def _judge(self, question: Question, reply: Reply, tries: int) -> Judgement:
        # parsed anew at every run: a mended parser counts without asking again
        try:
            return Judgement(_OK, reply, self._benchmark.parse(question, reply), "", tries)
        except Unparsed as error:
            return Judgement(UNPARSED, reply, None, str(error), tries)

    def _take(self, answer: Answer, writer: JsonlWriter) -> None:
        question = answer.question
        request = self._hash(question)
        if answer.reply is None:
            judgement = Judgement(_FAILED, reason=redact(answer.error))
            self._failed += 1
            print(f"{question.item} {question.name}: judge failed: {judgement.reason}", flush=True)
        else:
            self._replies[request] += 1
            tries = self._judgements[request].tries if request in self._judgements else 0
            judgement = self._judge(question, answer.reply, tries + 1)
        self._judgements[request] = judgement
        writer.append(self._record(answer, request, judgement))

    def _record(self, answer: Answer, request: str, judgement: Judgement) -> dict[str, Any]:
        question, reply = answer.question, answer.reply
        record = {
            "item": question.item,
            "question": question.name,
            "evaluator": self._evaluator.id,
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
                done=len(self._judgements),
                total=len(self._questions),
                reused=self._reused,
                failed=self._failed,
                note=self._note,
            ),
            force,
        )
