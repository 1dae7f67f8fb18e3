"""A judge behind a chat endpoint, asked many questions at once in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from imageevalkit.api.clients import Attempt, Clients, HttpReply, Request, UnderWay, retry, under_way
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind, classify_status, used_up_for
from imageevalkit.api.limiter import Limiter
from imageevalkit.benchmark.question import Answer, JudgeUnusable, Question
from imageevalkit.errors import CellFailure, UserError, say
from imageevalkit.images import CorruptImage
from imageevalkit.judges.answerer import WEIGHTS_USER, Judge
from imageevalkit.judges.api import (
    FEW_LOGPROBS,
    NO_LOGPROBS,
    PictureCache,
    chat_request,
    read_reply,
    request_parameters,
)
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.judges.server import ServerAddress, split_kwargs
from imageevalkit.judges.settings import ApiSettings
from imageevalkit.machine import requests_that_fit
from imageevalkit.secrets import one_line
from imageevalkit.weights import find_weights

_PACKAGES = ("httpx2", "pybase64")
# Once the judge is known to be unusable, requests already sent may still be answered (and are paid for).
_LAST_ANSWERS = 60.0
# How long the run may need to see that its server died: the server's guard ends what it left first, within 5 s.
_DEATH_NOTICED = 10.0
_LOOK_EVERY = 0.5  # seconds between two looks at what holds requests back
_TICK = 0.2  # seconds between two looks at those, and at a server that is started again
# Questions that a judge without an answer so far may turn down with a bare 400: each may be a bad item, all are not.
_MOST_DOUBTED = 2
_LARGEST_REPLY = 4 * 2**20  # bytes; a hundred thousand tokens of thinking are half a MiB


@dataclass
class ChatHistory:
    """What the endpoint has shown so far, by which its failures are told apart.

    ``proven`` are the request parameters (their repr) with which a question was answered, ``doubted`` how many
    were turned down without such an answer. ``answered_before``: an earlier run has answers to such questions.
    ``holdup`` is what holds requests back now.
    """

    answered: bool = False
    answered_before: bool = False
    gives_logprobs: bool = False
    proven: set[str] = field(default_factory=set)
    doubted: Counter[str] = field(default_factory=Counter)
    holdup: str = ""


class ApiJudge(Judge):
    """Behind an OpenAI-compatible ``/chat/completions``: a provider's API, a gateway, or a vLLM server.

    It is asked as many questions at a time as ``options.workers`` allows; see ``ApiSettings`` for its kwargs.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        kwargs = split_kwargs(self.kwargs)[1] if self.backend == "vllm" else self.kwargs
        self.settings = ApiSettings(**kwargs)
        self.history = ChatHistory()

    @property
    def identity(self) -> dict[str, Any]:
        """How long and how often it is asked decides nothing."""
        model_path = self.choice.setting.model_path
        local = self.backend == "vllm" and Path(model_path).is_dir()
        return {
            "backend": self.backend,
            **(find_weights(WEIGHTS_USER, model_path, None).identity if local else {"model": model_path}),
            "top_logprobs": self.settings.top_logprobs,
            "extra_body": dict(self.settings.extra_body),
            **({"server": dict(self.options.served)} if self.options.served else {}),
        }

    def has_answered(self) -> None:
        self.history.answered_before = True

    def holdup(self) -> str:
        """Not of a server of this run that starts: the job that starts it tells of that."""
        return self.history.holdup

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Images are read and encoded when their question's turn comes."""
        for package in _PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise CellFailure(
                    f"a judge behind an API needs the package '{package}': pip install -r requirements/driver.txt"
                )
        settings, options = self.settings, self.options
        endpoint = endpoint_of(self.backend, settings, options)
        fit = requests_that_fit(options.workers)
        if fit.told:
            say(fit.told)
        limiter = Limiter(fit.requests, options.requests_per_minute, settings.max_outage, fit.told)
        client = ChatClient(self, endpoint, limiter)
        yield from in_background(lambda give: client.run(questions, give))


class _NotSendable(Exception):
    """The question cannot be put: one line why."""


class ChatClient:
    """All questions of one call to ``judge``, of which one event loop takes care."""

    def __init__(self, judge: ApiJudge, endpoint: Endpoint, limiter: Limiter) -> None:
        self._endpoint, self._limiter = endpoint, limiter
        self._settings, self._history = judge.settings, judge.history
        self._model_id = judge.choice.setting.model_path
        # of a server of this run
        file = "" if judge.settings.base_url else judge.options.address_file
        self._address = ServerAddress(Path(file)) if file else None
        self._states: dict[asyncio.Task[None], UnderWay] = {}
        self._problem = ""

    async def run(self, questions: Sequence[Question], give: Callable[[Answer], None]) -> None:
        """Ask all ``questions``; answers are given as they come. Raises JudgeUnusable: no further one will."""
        self._give, self._left, self._todo = give, len(questions), iter(questions)
        self._pictures = PictureCache(questions)
        most = self._limiter.ceiling
        self._clients = Clients(self._endpoint, most, self._settings.timeout, _LARGEST_REPLY)
        # others are ready for when some wait to be asked again
        for _ in range(min(max(4, 2 * most), self._left)):
            state = UnderWay()
            self._states[asyncio.create_task(self._work(state))] = state
        try:
            await self._wait()
        finally:
            self._history.holdup = ""
            await self._give_up()
            await self._clients.close()
        if self._problem:
            raise JudgeUnusable(self._problem)

    async def _wait(self) -> None:
        """Wait for all workers; of a judge that is unusable, only for the requests that are out already."""
        pending, clock, given_up = set(self._states), asyncio.get_running_loop().time, 0.0
        while pending:
            tick = _TICK if self._problem else _LOOK_EVERY
            self._history.holdup = self._endpoint.redact(self._limiter.state())
            done, pending = await asyncio.wait(pending, timeout=tick, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
            if self._problem:
                given_up = given_up or clock()
                for task in pending:
                    if not self._states[task].sent or clock() - given_up > _LAST_ANSWERS:
                        task.cancel()

    async def _give_up(self) -> None:
        self._todo = iter(())
        pending = set(self._states)
        while pending:
            # again and again: before Python 3.12 wait_for loses a cancellation that comes together with the reply
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=_TICK)

    async def _work(self, state: UnderWay) -> None:
        under_way.set(state)
        while (question := next(self._todo, None)) is not None:
            self._left -= 1
            self._limiter.expect(self, self._left)
            try:
                self._give(await self._answer(question))
            except JudgeUnusable as error:
                self._problem = self._problem or str(error)
            self._pictures.answered(question)
            if self._problem:
                return

    async def _answer(self, question: Question) -> Answer:
        try:
            tried = await retry(lambda: self._attempt(question), self._settings.policy, self._limiter)
        except _NotSendable as error:
            return Answer(question, error=str(error), attempts=0)
        except JudgeUnusable:
            raise
        except Exception as error:  # whatever a library raises costs this question, not the cell
            return Answer(question, None, self._endpoint.redact(f"{type(error).__name__}: {one_line(error)}"))
        answer = tried.result
        if isinstance(answer, Failure):
            answer = Answer(question, error=self._error(answer, tried))
        return replace(answer, seconds=tried.seconds, attempts=tried.attempts)

    async def _attempt(self, question: Question) -> Answer | Failure:
        if self._problem:
            raise JudgeUnusable(self._problem)
        parameters = request_parameters(question, self._settings)
        # made anew for each attempt: what waits to be asked again must not hold megabytes
        request = await self._request(question, parameters)
        asked = self._address.edition if self._address else 0
        while isinstance(raw := await self._clients.post(request), Failure):
            if not self._address or not await self._restarted(self._address, raw, asked):
                return raw
            asked = self._address.edition
        self._history.answered = True
        if not raw.is_success:
            return self._failure(raw, repr(parameters))
        if reset := used_up_for(raw.headers):
            self._limiter.window_used_up(reset)
        reply = read_reply(
            question, raw.body, self._settings.top_logprobs, self._settings.price_of(self._model_id)
        )
        if reply in (NO_LOGPROBS, FEW_LOGPROBS) and self._history.gives_logprobs:
            return Failure(Kind.LOST, "the reply holds no log-probabilities, or too few")
        if isinstance(reply, Answer):
            self._history.proven.add(repr(parameters))
            self._history.gives_logprobs |= bool(question.choices)
            return replace(reply, text=self._endpoint.without_own_key(reply.text or ""))
        return reply

    def _failure(self, raw: HttpReply, parameters: str) -> Failure:
        """What a status other than 200 means. Belongs to one question: such a failure is not asked again."""
        history, key = self._history, self._endpoint.key_variable
        proven = parameters in history.proven
        failure = classify_status(raw.status, raw.headers, raw.text, proven, key)
        if not failure.doubtful:
            return failure
        history.doubted[parameters] += 1
        if not history.answered_before and history.doubted[parameters] > _MOST_DOUBTED:
            return failure
        return classify_status(raw.status, raw.headers, raw.text, True, key)

    async def _restarted(self, server: ServerAddress, failure: Failure, asked: int) -> bool:
        """Whether the ``server`` of this run was started again since ``asked``, the edition of its address back then.

        Waits while it is being started, and where by this ``failure`` it must be dead, until that is noticed.
        Raises JudgeUnusable: it will not come back.
        """
        clock = asyncio.get_running_loop().time
        noticed_by = clock() + (_DEATH_NOTICED if failure.kind is Kind.UNREACHABLE else 0.0)
        while True:
            if why := server.problem(self._endpoint.base_url):
                raise JudgeUnusable(why)
            if server.edition not in (0, asked):
                return True
            if server.is_away:
                with self._limiter.returning():
                    while server.is_away:
                        await asyncio.sleep(_TICK)
            elif clock() >= noticed_by:
                return False
            else:
                await asyncio.sleep(_TICK)

    async def _request(self, question: Question, parameters: dict[str, object]) -> Request:
        pictures = {}
        for picture in question.pictures:
            try:
                pictures[picture] = await self._pictures.get(picture)
            except (OSError, CorruptImage) as error:
                raise _NotSendable(f"the image {picture.path} cannot be sent: {one_line(error)}") from None
        return chat_request(self._model_id, question, parameters, pictures)

    def _error(self, failure: Failure, tried: Attempt[Answer]) -> str:
        """``failure`` in words, without the key. Raises JudgeUnusable: it is not about one question."""
        text = self._endpoint.redact(failure.text)
        where = self._endpoint.redact(f"judge '{self._model_id}' at {self._endpoint.host}")
        if tried.down:
            raise JudgeUnusable(f"{where}: {text}")
        if failure.kind.retried:
            text += f" (gave up after {tried.attempts} attempt{'s' * (tried.attempts > 1)} in {tried.seconds:.0f} s)"
        if failure.kind is Kind.REFUSAL:
            return f"the judge refused: {text}"
        if failure.kind is Kind.PERMANENT:
            renamed = "max_completion_tokens" in text
            remedy = "; --judge_kwargs max_tokens_parameter=max_completion_tokens" if renamed else ""
            raise JudgeUnusable(f"{where}: {text}{remedy}")
        if failure.kind is Kind.UNREACHABLE and not self._history.answered:
            raise JudgeUnusable(f"{where}: {text}; check its address and the network")
        return text


_END = object()


def in_background(produce: Callable[[Callable[[Answer], None]], Awaitable[None]]) -> Iterator[Answer]:
    """What ``produce(give)`` gives, as it comes; then what it raises, if it does.

    Closing the iterator, or an interrupt while it waits, cancels the coroutine and waits for its end.
    """
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
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(task.cancel)
        ended.result()


def endpoint_of(backend: str, settings: ApiSettings, options: JudgeOptions) -> Endpoint:
    """The endpoint of a judge: what ``base_url`` names, else the server of this run, else the user's API.

    A server of this run starts when it is first asked for, which may take many minutes. Raises CellFailure: there is
    none, or it has no key; JudgeUnusable: the server does not start.
    """
    given = {"base_url": settings.base_url, "api_key_env": settings.api_key_env}
    try:
        if backend != "vllm":
            return Endpoint.of(given)
        if not settings.base_url:
            if not options.address_file:
                raise CellFailure(
                    "no server of the judge is known: give its URL as the judge's kwarg base_url, or let eval.sh start "
                    "one"
                )
            address = ServerAddress(Path(options.address_file)).wait()
            return Endpoint.without_key(address, f"the judge's address file {options.address_file}")
        # the key of the user's API is no business of a server that is named here
        return (
            Endpoint.of(given)
            if settings.api_key_env
            else Endpoint.without_key(settings.base_url, "base_url")
        )
    except UserError as error:
        raise CellFailure(f"the judge cannot be asked: {error}") from None
