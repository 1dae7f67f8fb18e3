"""Rewrites the prompts of cells: reads recorded replies, asks for missing ones, writes the new prompts.

Replies are in ``output/rewrites/<rewriter>.jsonl`` by the hash of the request, for all models and benchmarks.
An answered request is never paid for again, and all models get the same rewritten prompts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from urllib.parse import urlsplit

from imageevalkit import registry
from imageevalkit.api.endpoint import place_of
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import say
from imageevalkit.common.locks import held
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.common.text import counted, dollars, some
from imageevalkit.extras.rewrite.contract import NotRewritten, Rewriter
from imageevalkit.extras.rewrite.order import RewriteOrder
from imageevalkit.extras.rewrite.refusals import is_refusal
from imageevalkit.jobs.plan import COMPLETE, FAILED, INCOMPLETE, BenchmarkSettings, Outcome
from imageevalkit.jobs.progress import Progress, ProgressWriter, watched
from imageevalkit.judges.choice import JudgeChoice, JudgeOptions, JudgeSetting
from imageevalkit.judges.client import ApiJudge
from imageevalkit.store.cell import REWRITES, Cell, output_root, short_path
from imageevalkit.store.items import Item, ShownTexts, items_of
from imageevalkit.store.jsonl import JsonlWriter, Reader, read_jsonl
from imageevalkit.store.records import OK, last_records

STAGE = "rewrite"
# A model that fails this often without any answer is unusable: every further request would fail too.
_FIRST_FAILURES = 10


Status = Literal["ok", "refused", "cut"]


class Reply(NamedTuple):
    """A reply: its ``text``, or the error text of a refusal. ``host`` sent it ("" if unknown)."""

    text: str
    status: Status
    host: str = ""

    def why_not(self, rewriter: Rewriter) -> str:
        """Returns the reason why the reply has no prompt, or "" if it has one."""
        if self.status != "ok":
            return self.text if self.status == "refused" else _CUT
        try:
            prompt = rewriter.prompt_in(self.text)
        except NotRewritten as error:
            return str(error)
        return f"the reply refuses: {one_line(prompt, 100)}" if is_refusal(prompt) else ""


class _Record(TypedDict):
    request: str
    status: Status
    text: str
    host: NotRequired[str]


_RECORD = Reader(_Record)
_CUT = (
    "the reply reached its token limit; a model that thinks needs more: --rewriter_kwargs "
    "'extra_body={\"max_tokens\":8000}'"
)


class RewritingModel(ApiJudge):
    """The language model of ``rewriter`` at a chat endpoint."""

    role, option = "prompt rewriter", "--rewriter_kwargs"

    def __init__(self, rewriter: Rewriter, options: RewriteOrder) -> None:
        model = rewriter.model_id
        given = JudgeOptions(
            rewriter.settings.of_chat,
            options.workers,
            options.requests_per_minute,
            max_cost=options.max_cost,
            shared=options.shared,
        )
        super().__init__(JudgeChoice(model, JudgeSetting("openai", model)), given, {})


def make_rewriter(name: str, kwargs: Mapping[str, Any]) -> Rewriter:
    """Returns the rewriter ``name`` with the settings ``kwargs``, which planning has checked.

    Raises UserError if there is no such rewriter."""
    cls: type[Rewriter] = registry.rewriter_class(name)
    return cls(cls.settings_class(**kwargs))


def replies_file(rewriter: Rewriter) -> Path:
    """Returns the path of the file with the replies to ``rewriter``."""
    return output_root() / REWRITES / f"{rewriter.id}.jsonl"


def read_replies(rewriter: Rewriter, retry_refused: bool) -> dict[str, Reply]:
    """Returns the recorded replies by request. With ``retry_refused``, replies without a prompt are left out,
    so that their requests are asked again. Raises CellFailure if the file cannot be read."""
    records = read_jsonl(replies_file(rewriter), _RECORD)
    replies = {one["request"]: Reply(one["text"], one["status"], one.get("host", "")) for one in records}
    if retry_refused:
        return {request: reply for request, reply in replies.items() if not reply.why_not(rewriter)}
    return replies


class _Text(NamedTuple):
    """A text of an item and the ``question`` to rewrite it. If the text stays as it is, there is no question,
    and ``why`` may be the reason for the user."""

    text: str
    question: Question | None = None
    why: str = ""


@dataclass(frozen=True)
class CellTexts:
    """The texts of the items of a cell.

    ``stands`` has the items whose image was generated from the original prompt, because the rewriting failed,
    with the reason. Such an image stays until ``--overwrite``."""

    cell: Cell
    rewriter: Rewriter
    items: Sequence[Item]
    texts: Mapping[str, Sequence[_Text]]
    stands: Mapping[str, str]

    @cached_property
    def questions(self) -> dict[str, Question]:
        """All questions of the cell by request."""
        asked = (item for item in self.items if item.id not in self.stands)
        texts = (text for item in asked for text in self.texts[item.id])
        return {text.question.name: text.question for text in texts if text.question}

    def shown(self, replies: Mapping[str, Reply], errors: Mapping[str, str]) -> list[ShownTexts]:
        """Returns each item's texts for the model. ``errors`` are the reasons for missing ``replies``.

        If one text of an item could not be rewritten, the item keeps all its original texts.
        """
        shown = []
        for item in self.items:
            texts, whys, lost = [], list[str](), list[str]()
            if why := self.stands.get(item.id):
                lost.append(why)
            for text in self.texts[item.id] if not lost else ():
                if text.question is None:
                    whys += filter(None, [text.why])
                    texts.append(text.text)
                elif not (reply := replies.get(text.question.name)):
                    lost.append(errors.get(text.question.name, "it was not asked for"))
                elif why := reply.why_not(self.rewriter):
                    lost.append(why)
                else:
                    texts.append(self.rewriter.prompt_in(reply.text))
            used, reasons = (item.texts, lost) if lost else (texts, whys)
            shown.append(ShownTexts(item.id, item.texts, used, "; ".join(reasons), bool(lost)))
        return shown


def texts_of(
    cell: Cell, rewriter: Rewriter, task: str, items: Sequence[Item], options: RewriteOrder
) -> CellTexts:
    """Returns the texts and questions of ``items``. Only reads files. Raises CellFailure if the rewriter
    cannot rewrite them."""
    rewriter.check(cell.raw, options.limit)
    records = {} if options.overwrite else last_records(cell)
    texts, stands = dict[str, list[_Text]](), dict[str, str]()
    for item in items:
        texts[item.id] = _texts(item, rewriter, cell.raw, task)
        record = records.get(item.id)
        behind = record.rewriting if record and record.status == OK else None
        if behind and behind["lost"] and behind["original_sha256"] == item.prompt_sha256 and behind["kept"]:
            stands[item.id] = behind["kept"]
    return CellTexts(cell, rewriter, items, texts, stands)


def _texts(item: Item, rewriter: Rewriter, raw: Cell, task: str) -> list[_Text]:
    parts = item.input_list or ()
    before_images = next((n for n, part in enumerate(parts) if not isinstance(part, str)), 0)
    texts: list[_Text] = []
    for text in item.texts:
        # in the task subject, a text before the images is the name of the subject: no prompt
        if not text.strip() or (task == "subject" and len(texts) < before_images):
            texts.append(_Text(text))
            continue
        try:
            texts.append(_Text(text, rewriter.question(rewriter.messages(item, text, raw, task))))
        except NotRewritten as error:
            texts.append(_Text(text, why=str(error)))
    return texts


def outcome_of(shown: Sequence[ShownTexts], *more: str) -> Outcome:
    """Returns the outcome of the stage for these texts. ``more`` are further sentences for its message."""
    lost = [one for one in shown if one.lost]
    stay = [one for one in shown if one.kept and not one.lost]
    rewritten = len(shown) - len(lost) - len(stay)
    parts = [f"{rewritten} of {counted(len(shown), 'prompt')} rewritten"]
    if stay:
        parts.append(f"{len(stay)} stay as they are (the first: {stay[0].kept})")
    if lost:
        ((why, count), *_) = Counter(one.kept for one in lost).most_common(1)
        times = f"{count} times" if count > 1 else "once"
        parts.append(
            f"{len(lost)} could not be and are used as they are ({times}: {one_line(why, 200)}; --overwrite asks "
            "again, for refused ones with --retry_refused)"
        )
    message = "; ".join([*parts, *filter(None, more)])
    if not rewritten:
        return Outcome(FAILED, f"{message}: the images would have the raw prompts")
    return Outcome(INCOMPLETE if lost else COMPLETE, message)


def _write(cell: Cell, shown: Iterable[ShownTexts]) -> None:
    """Write ``shown`` to ``prompts.jsonl``, entirely or not at all. Raises CellFailure: the disk is full."""
    lines = (json.dumps(vars(one), ensure_ascii=False, separators=(",", ":")) for one in shown)
    write_atomic(cell.prompts, "".join(f"{line}\n" for line in lines))


@dataclass
class RewriteRun:
    """The rewriting of all cells of a job: asks the open requests and writes the texts for the models."""

    rewriter: Rewriter
    options: RewriteOrder
    progress: ProgressWriter
    settings: BenchmarkSettings = field(default_factory=dict)
    planned: list[CellTexts] = field(default_factory=list)
    problem: str = ""
    """The reason why the model stopped answering, or ""."""
    _replies: dict[str, Reply] = field(default_factory=dict)
    _errors: dict[str, str] = field(default_factory=dict)
    _usd: dict[str, float] = field(default_factory=dict)
    _payers: dict[str, str] = field(default_factory=dict)  # by request, the cell that shows its cost
    _reused: set[str] = field(default_factory=set)

    def plan(self, cell: Cell) -> Outcome:
        """Adds ``cell`` to the run. Raises CellFailure if its prompts cannot be rewritten."""
        dataset = registry.load_dataset(cell.benchmark, self.settings.get(cell.benchmark, {}))
        items = items_of(dataset, cell, self.options.limit)
        planned = texts_of(cell, self.rewriter, dataset.dataset_task, items, self.options)
        self.planned.append(planned)
        for name in planned.questions:
            self._payers.setdefault(name, cell.key)
        return Outcome(COMPLETE)

    def ask(self) -> None:
        """Asks all open requests. Waits for other runs with the same rewriter, which may ask the same.

        Raises:
            CellFailure: The disk is full.
        """
        path = replies_file(self.rewriter)

        def wait() -> None:
            say(f"waiting for another run that writes {path}")
            self._tell("another run asks the same rewriter")

        with held(path.with_name(f".{path.name}.lock"), wait):
            self._replies = read_replies(self.rewriter, self.options.retry_refused)
            self._reused = set(self._replies)
            questions = {name: one for planned in self.planned for name, one in planned.questions.items()}
            waiting = [one for name, one in questions.items() if name not in self._replies]
            say(f"{len(questions) - len(waiting)} of {counted(len(questions), 'request')} are answered")
            self._tell(force=True)
            if waiting:
                model = RewritingModel(self.rewriter, self.options)
                if self._replies:
                    model.has_answered()
                with closing(JsonlWriter(path)) as writer:
                    self._ask(model, waiting, writer)
        self._tell(force=True)

    @property
    def _host(self) -> str:
        return urlsplit(place_of(vars(self.rewriter.settings)).url).hostname or ""

    def _from_elsewhere(self, planned: CellTexts) -> str:
        """Returns a sentence on replies from other hosts than the present one, or ""."""
        replies = (self._replies[name] for name in planned.questions if name in self._replies)
        hosts = Counter(reply.host for reply in replies if reply.host not in ("", self._host))
        if not hosts:
            return ""
        return (
            f"{hosts.total()} rewritten by {some(sorted(hosts), ', ')}, and this run asks {self._host}: to have all "
            f"asked again, delete {short_path(replies_file(self.rewriter))}"
        )

    def _ask(self, model: RewritingModel, waiting: Sequence[Question], writer: JsonlWriter) -> None:
        with (
            watched(lambda: self._tell(model.holdup()), writer.sync),
            closing(model.ask(waiting)) as answers,
        ):
            try:
                for answer in answers:
                    self._take(answer, writer)
                    if len(self._errors) >= _FIRST_FAILURES and not self._replies:
                        self.problem = (
                            f"the first {len(self._errors)} requests all failed: {one_line(answer.error)}"
                        )
                        return
            except JudgeUnusable as error:
                self.problem = one_line(error)

    def _take(self, answer: Answer, writer: JsonlWriter) -> None:
        request = answer.question.name
        if answer.usd is not None:
            self._usd[request] = answer.usd
        if answer.text is None and not answer.refused:
            self._errors[request] = redact(answer.error)
            say(f"request {request[:12]} failed: {self._errors[request]}")
            return
        text = redact(answer.error) if answer.text is None else answer.text
        status: Status = "refused" if answer.refused else "cut" if answer.cut else "ok"
        self._replies[request] = Reply(text, status, self._host)
        asked = [message.parts[0] for message in answer.question.messages if message.role == "user"]
        writer.append(
            {
                "request": request,
                "host": self._host,
                "status": status,
                "text": text,
                "asked": "".join(map(str, asked)),
                "seconds": round(answer.seconds, 4),
                "attempts": answer.attempts,
                "tokens": answer.tokens,
                "usd": answer.usd,
            }
        )

    def outcome(self, planned: CellTexts) -> Outcome:
        """Writes the texts for a cell's model and returns the outcome. Raises CellFailure on a full disk."""
        requests = planned.questions
        if self.problem and (left := [name for name in requests if name not in self._replies]):
            return Outcome(
                FAILED,
                f"{self.problem} ({len(left)} of {counted(len(requests), 'request')} left; the same command "
                "resumes here)",
            )
        shown = planned.shown(self._replies, self._errors)
        usd = self._paid(planned)
        money = "" if usd is None else f"{dollars(usd)} for {self.rewriter.model_id}"
        more = self.rewriter.basis(planned.cell.raw), money, self._from_elsewhere(planned)
        outcome = outcome_of(shown, *more)
        if outcome.state != FAILED:
            _write(planned.cell, shown)
        return outcome

    def _paid(self, planned: CellTexts) -> float | None:
        """Returns the USD of this run's answers for a cell. A shared answer counts for the first cell."""
        key = planned.cell.key
        mine = [name for name in planned.questions if name in self._usd and self._payers[name] == key]
        return sum(self._usd[name] for name in mine) if mine else None

    def _tell(self, note: str = "", force: bool = False) -> None:
        for planned in self.planned:
            requests, key = planned.questions, planned.cell.key
            failed = sum(name in self._errors for name in requests)
            done = failed + sum(name in self._replies for name in requests)
            reused = sum(name in self._reused for name in requests)
            state = Progress(key, STAGE, done, len(requests), reused, failed, note)
            self.progress.report(state._replace(cost=self._paid(planned)), force)
