"""A judge behind a chat endpoint. It answers many questions in parallel in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from imageevalkit.api.channel import Engine
from imageevalkit.api.client import check_packages
from imageevalkit.api.endpoint import Endpoint, place_of
from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.feed import Feed
from imageevalkit.api.in_flight import InFlight
from imageevalkit.api.limiter import Traffic
from imageevalkit.api.money import Bill
from imageevalkit.api.sender import Delivery, Sender, current_delivery, open_sender
from imageevalkit.assets.weights import find_weights
from imageevalkit.benchmark.question import Answer, JudgeOnHold, JudgeUnusable, Question
from imageevalkit.benchmark.thoughts import begins_inside
from imageevalkit.common.errors import CellFailure, UserError, say
from imageevalkit.common.images import CorruptImage
from imageevalkit.common.machine import requests_that_fit
from imageevalkit.common.redaction import one_line
from imageevalkit.judges.api import (
    NO_LOGPROBS,
    WITHOUT_LOGPROBS,
    PictureCache,
    chat_request,
    cost_of_asking,
    read_reply,
    request_parameters,
)
from imageevalkit.judges.choice import WEIGHTS_USER, ApiSettings, Judge
from imageevalkit.judges.server import ServerAddress, split_kwargs
from imageevalkit.judges.thoughts import opens_thoughts

# Seconds for requests in flight after the judge proved unusable: they are billed and may still be answered.
_LAST_ANSWERS = 60.0
# Seconds until the run notices that its server died: the server's guard first ends leftover processes (5 s).
_DEATH_NOTICED = 10.0
_TICK = 0.2  # seconds between two checks of a restarting server
# Questions that may fail with a bare 400 before the first answer: one may be a bad item, but not all are.
_MOST_DOUBTED = 2
# Replies without log-probabilities before an error, if only an earlier run got some: the endpoint may have
# changed, and each such reply is billed.
_MOST_WITHOUT_LOGPROBS = 10
_LARGEST_REPLY = 4 * 2**20  # bytes; 100,000 tokens of thoughts take half a MiB


@dataclass
class ChatHistory:
    """The experience with the endpoint so far.

    ``proven`` and ``doubted`` hold request parameters (their repr): with them questions were answered, or
    rejected before any answer. ``replied``: the endpoint has sent any reply. ``answered_before``: an earlier
    run got answers. ``begins_inside``: whether replies with these parameters begin inside thoughts.
    """

    answered_before: bool = False
    replied: bool = False
    gives_logprobs: bool = False
    without_logprobs: int = 0
    proven: set[str] = field(default_factory=set)
    doubted: Counter[str] = field(default_factory=Counter)
    begins_inside: dict[str, bool] = field(default_factory=dict)


class ApiJudge(Judge):
    """A judge behind ``/chat/completions`` of a provider, a gateway or a vLLM server.

    Messages use ``role`` as its name, and ``option`` as the option for its settings.
    """

    role, option = "judge", "--judge_kwargs"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        kwargs = split_kwargs(self.kwargs)[1] if self.backend == "vllm" else self.kwargs
        self.settings = ApiSettings(**kwargs)
        self.history = ChatHistory()
        self.note = ""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that affects answers. Timeouts and retries do not, so they are not part of it."""
        model_path = self.choice.setting.model_path
        local = self.backend == "vllm" and Path(model_path).is_dir()
        return {
            "backend": self.backend,
            **(find_weights(WEIGHTS_USER, model_path, None).identity if local else {"model": model_path}),
            "top_logprobs": self.settings.top_logprobs,
            "extra_body": dict(self.settings.extra_body),
            **({"server": dict(self.options.served)} if self.options.served else {}),
        }

    @property
    def host(self) -> str:
        """The host name of the URL, known without a key. The port is left out: it may change between runs."""
        if self.backend == "vllm" and not self.settings.base_url:
            return ""
        return urlsplit(place_of(vars(self.settings)).url).hostname or ""

    def ready(self) -> None:
        if server := self.server:
            server.wait()

    def has_answered(self) -> None:
        self.history.answered_before = True

    def holdup(self) -> str:
        """Returns the current note. A starting server of this run is reported by the job that starts it."""
        return self.note

    def follow(self, feed: Feed[Question], workers: int = 1) -> Iterator[Answer]:
        """Asks each question as soon as it arrives."""
        return self.ask(feed, workers)

    def ask(
        self, questions: Sequence[Question] | Feed[Question], workers: int = 1
    ) -> Generator[Answer, None, None]:
        """Asks all questions in parallel. Images are read and encoded when their question is sent."""
        try:
            endpoint = self._endpoint()
            check_packages()
        except UserError as error:
            raise CellFailure(f"the {self.role} cannot be asked: {error}") from None
        fit = requests_that_fit(self.options.workers)
        if fit.reason:
            say(fit.reason)
        options, model = self.options, self.choice.setting.model_path
        folder = Path(options.shared) if options.shared else None
        traffic = Traffic(fit.requests, options.requests_per_minute, options.max_cost, fit.reason, folder)
        price = self.settings.price_of(model)
        who = f"{self.role} '{model}'"
        engine = Engine(who, endpoint, self.settings, traffic, _LARGEST_REPLY, price)
        sender = self._sender()
        try:
            session = in_background(lambda give: _Session(self, engine, sender, give).run(questions))
            with contextlib.closing(session) as answers:
                for answer in answers:
                    yield answer
                    if sender:  # the caller has stored the answer before it asks for the next
                        sender.settle(_key_of(answer.question))
        finally:
            if sender:
                sender.end()

    def _sender(self) -> Sender | None:
        """Returns the sender of the questions; None if they are sent one by one."""
        if not self.options.sender_folder:
            return None
        path = Path(self.options.sender_folder)
        return open_sender(path, "/".join(path.parts[-3:-1]), self.options.sender)

    @property
    def server(self) -> ServerAddress | None:
        """The address of this run's server; None for another endpoint. Raises CellFailure: no address."""
        if self.backend != "vllm" or self.settings.base_url:
            return None
        if not self.options.address_file:
            raise CellFailure(
                "no server of the judge is known: give its URL as the judge's kwarg base_url, or let eval.sh start one"
            )
        return ServerAddress(Path(self.options.address_file))

    def _endpoint(self) -> Endpoint:
        """Returns the endpoint. The first call starts the server of this run, which may take many minutes."""
        settings = self.settings
        if server := self.server:
            return Endpoint.without_key(server.wait(), f"the judge's address file {server.path}")
        if self.backend == "vllm" and not settings.api_key_env:
            # the server at base_url must not get the key of the user's API
            return Endpoint.without_key(settings.base_url or "", "base_url")
        return Endpoint.of(vars(settings), self.choice.setting.model_path)


class _Session:
    def __init__(
        self, judge: ApiJudge, engine: Engine, sender: Sender | None, give: Callable[[Answer], None]
    ) -> None:
        self._judge, self._engine, self._sender, self._give = judge, engine, sender, give
        self._model_id = judge.choice.setting.model_path
        self._server = judge.server
        self._pictures = PictureCache()
        self._template = asyncio.Lock()
        self._problem: JudgeUnusable | None = None
        self._fault: BaseException | None = None
        engine.answered = judge.history.replied
        engine.worked = judge.history.answered_before or bool(judge.history.proven)

    async def run(self, questions: Sequence[Question] | Feed[Question]) -> None:
        """Asks all questions and passes answers on as they come. Raises JudgeUnusable: no more will come."""
        limiter = self._engine.limiter
        in_flight = InFlight(self._answer, lambda: bool(self._problem), self._fail, _LAST_ANSWERS)
        settled = asyncio.create_task(in_flight.settled(self._look))
        try:
            # more tasks than slots: while a question waits for a retry, another one uses its slot
            room = asyncio.Semaphore(self._sender.most if self._sender else max(4, 2 * limiter.ceiling))
            await in_flight.begin(questions, room, self._expect)
            await settled
        finally:
            settled.cancel()
            await in_flight.abandon()
            if self._sender:
                await self._sender.close()
            self._judge.note, self._judge.history.replied = "", self._engine.answered
            await self._engine.close()
        if self._fault:
            raise self._fault
        if self._problem:
            raise self._problem

    def _expect(self, left: int) -> None:
        self._engine.limiter.expect(self, left)
        if self._sender:
            self._sender.expected = left

    def _look(self) -> None:
        self._judge.note = (self._sender.holdup() if self._sender else "") or self._engine.holdup()

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, JudgeUnusable):
            self._fault = self._fault or error
            error = JudgeUnusable(one_line(error))
        self._problem = self._problem or error

    async def _answer(self, question: Question) -> None:
        estimate, bill = cost_of_asking([question], self._engine.price), Bill()
        if self._sender:
            current_delivery.set(Delivery(self._sender, _key_of(question)))
        try:
            tried = await self._engine.ask(
                lambda: self._attempt(question), lambda answer: (answer.usd, {}), estimate, bill
            )
        except CorruptImage as error:
            self._give(Answer(question, error=str(error), attempts=0))
        except JudgeUnusable:
            raise
        except Exception as error:  # an exception of a library fails this question only, not the cell
            text = self._engine.endpoint.redact(f"{type(error).__name__}: {one_line(error)}")
            self._give(Answer(question, error=text))
        else:
            answer = tried.result
            if isinstance(answer, Failure):
                answer = Answer(
                    question, error=self._error(answer, question), refused=answer.kind is Kind.REFUSAL
                )
            self._give(
                replace(
                    answer, usd=bill.cost, seconds=tried.seconds, attempts=tried.attempts, batch=tried.batch
                )
            )

    async def _attempt(self, question: Question) -> Answer | Failure:
        if self._problem:
            raise self._problem
        settings, history = self._judge.settings, self._judge.history
        parameters = request_parameters(question, settings)
        key = repr(parameters)
        asked = self._server.edition if self._server else 0
        if self._judge.backend == "vllm":
            await self._look_at_template(key, parameters)

        async def post() -> bytes | Failure:
            # built for each attempt: else questions that wait for a retry or a batch would hold megabytes
            pictures = {picture: await self._pictures.get(picture) for picture in question.pictures}
            request = chat_request(self._model_id, question, parameters, pictures)
            reply = self._engine.post(request, lambda: key in history.proven)
            del pictures, request
            return await reply

        while isinstance(body := await post(), Failure):
            if not self._server or not await self._restarted(self._server, body, asked):
                history.doubted[key] += bool(body.doubt)
                is_item = history.answered_before or history.doubted[key] <= _MOST_DOUBTED
                return body._replace(kind=Kind.ITEM, text=body.doubt) if body.doubt and is_item else body
            asked = self._server.edition
        top, inside = question.likeliest or settings.top_logprobs, history.begins_inside.get(key, False)
        reply = read_reply(question, body, top, self._engine.price, inside)
        if isinstance(reply, Failure) and reply.text in WITHOUT_LOGPROBS:
            history.without_logprobs += 1
            before = history.answered_before and history.without_logprobs <= _MOST_WITHOUT_LOGPROBS
            if history.gives_logprobs or before:
                text = "the reply holds no log-probabilities, or too few"
                return reply._replace(kind=Kind.LOST, text=text)
        if isinstance(reply, Answer):
            history.proven.add(key)
            history.gives_logprobs |= bool(reply.probabilities)
            history.without_logprobs += reply.probabilities == {}
            if history.without_logprobs > _MOST_WITHOUT_LOGPROBS and not history.gives_logprobs:
                # an empty list is a valid answer to some questions, but not to all
                self._fail(JudgeUnusable(NO_LOGPROBS.text))
            if begins_inside(reply.text or ""):
                history.begins_inside[key] = True
            return replace(reply, text=self._engine.endpoint.without_own_key(reply.text or ""))
        return reply

    async def _look_at_template(self, key: str, parameters: Mapping[str, Any]) -> None:
        """Asks the server once whether the chat template opens thoughts.

        The reply's first token does not show it, because the opening tag is in the prompt.
        """
        known, endpoint = self._judge.history.begins_inside, self._engine.endpoint
        async with self._template:
            if key not in known:
                clients = self._engine.clients
                opens = await opens_thoughts(clients, endpoint, self._model_id, parameters)
                if opens is not None:
                    known[key] = opens

    async def _restarted(self, server: ServerAddress, failure: Failure, asked: int) -> bool:
        """Returns whether the ``server`` of this run has restarted after the address edition ``asked``.

        If the ``failure`` indicates a dead server, it waits for the restart. Raises JudgeUnusable: there will
        be none.
        """
        if failure.kind not in (Kind.TRANSIENT, Kind.UNREACHABLE):
            return False
        clock = asyncio.get_running_loop().time
        noticed_by = clock() + (_DEATH_NOTICED if failure.kind is Kind.UNREACHABLE else 0.0)
        while True:
            if why := server.problem(self._engine.endpoint.base_url):
                raise JudgeUnusable(why)
            if server.edition not in (0, asked):
                return True
            if server.is_away:
                with self._engine.limiter.returning():
                    while server.is_away:
                        await asyncio.sleep(_TICK)
            elif clock() >= noticed_by:
                return False
            else:
                await asyncio.sleep(_TICK)

    def _error(self, failure: Failure, question: Question) -> str:
        kind, text = failure.kind, failure.text
        if kind is Kind.REFUSAL:
            return f"the {self._judge.role} refused: {text}"
        if kind is Kind.SPENT or (kind is Kind.DOWN and self._sender):
            raise JudgeOnHold(text)
        if kind not in (Kind.PERMANENT, Kind.DOWN, Kind.UNREACHABLE):
            return text
        if "max_completion_tokens" in text:
            text += f"; {self._judge.option} max_tokens_parameter=max_completion_tokens"
        elif refused := _refused_parameter(text, request_parameters(question, self._judge.settings)):
            extra = json.dumps({**self._judge.settings.extra_body, refused: None}, separators=(",", ":"))
            text += f"; {self._judge.option} 'extra_body={extra}' leaves it out"
        # set it here: else the next question would be sent before this task ends
        self._problem = self._problem or JudgeUnusable(text)
        raise self._problem


def _refused_parameter(error: str, parameters: Collection[str]) -> str:
    """Returns the request parameter that an ``error`` of status 400 or 422 names; empty if it names none."""
    rest = re.split(r"\bHTTP 4(?:00|22)\b", error, maxsplit=1)[1:]
    words = re.findall(r"\w+", "".join(rest))
    needed = ("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs")
    return next((word for word in words if word in parameters and word not in needed), "")


def _key_of(question: Question) -> str:
    return f"{question.item} {question.name}"


_END = object()


def in_background(
    produce: Callable[[Callable[[Answer], None]], Awaitable[None]],
) -> Generator[Answer, None, None]:
    """Yields the answers that ``produce`` gives, and raises its errors. Closing cancels ``produce``."""
    given: SimpleQueue[Any] = SimpleQueue()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def main() -> None:
        task = asyncio.current_task()
        assert task
        started.set_result((asyncio.get_running_loop(), task))
        await produce(given.put)

    with ThreadPoolExecutor(1, "judge") as thread:
        ended = thread.submit(lambda: asyncio.run(main()))
        ended.add_done_callback(lambda _: given.put(_END))
        try:
            while (value := given.get()) is not _END:
                yield value
        finally:
            if not ended.done():
                loop, task = started.result()
                with contextlib.suppress(RuntimeError):  # the loop has already ended
                    loop.call_soon_threadsafe(task.cancel)
        ended.result()
