"""A judge behind a chat endpoint, asked many questions at once in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from imageevalkit.api.clients import Clients, HttpReply, Request
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind, classify_status, used_up_for
from imageevalkit.api.limiter import Limiter
from imageevalkit.api.retry import Attempt, UnderWay, retry, under_way
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
from imageevalkit.judges.server import edition, is_away, problem, split_kwargs, wait_for_address
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
        self._settings = ApiSettings(**kwargs)
        self._history = ChatHistory()

    @property
    def identity(self) -> dict[str, Any]:
        """How long and how often it is asked decides nothing."""
        model_path = self.choice.setting.model_path
        local = self.backend == "vllm" and Path(model_path).is_dir()
        return {
            "backend": self.backend,
            **(find_weights(WEIGHTS_USER, model_path, None).identity if local else {"model": model_path}),
            "top_logprobs": self._settings.top_logprobs,
            "extra_body": dict(self._settings.extra_body),
            **({"server": dict(self.options.served)} if self.options.served else {}),
        }

    def has_answered(self) -> None:
        self._history.answered_before = True

    def holdup(self) -> str:
        """Not of a server of this run that starts: the job that starts it tells of that."""
        return self._history.holdup

    def ask(self, questions: Sequence[Question], workers: int = 1) -> Iterator[Answer]:
        """Images are read and encoded when their question's turn comes."""
        for package in _PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise CellFailure(
                    f"a judge behind an API needs the package '{package}': pip install -r requirements/driver.txt"
                )
        settings, options = self._settings, self.options
        endpoint = endpoint_of(self.backend, settings, options)
        fit = requests_that_fit(options.workers)
        if fit.told:
            say(fit.told)
        limiter = Limiter(fit.requests, options.requests_per_minute, settings.max_outage, fit.told)
        served = "" if settings.base_url else options.address_file
        chat = Chat(self.choice.setting.model_path, endpoint, settings, limiter, self._history, served)

        async def produce(give: Callable[[Answer], None]) -> None:
            await ChatClient(chat, questions, give).run()

        yield from in_background(produce)


class Chat(NamedTuple):
    """Whom to ask, and how; ``address_file`` is that of a server of this run."""

    model_id: str
    endpoint: Endpoint
    settings: ApiSettings
    limiter: Limiter
    history: ChatHistory
    address_file: str = ""

    @property
    def room(self) -> int:
        """Questions under way: others are ready for when some wait to be asked again."""
        return max(4, 2 * self.limiter.ceiling)


class _NotSendable(Exception):
    """The question cannot be put: one line why."""


class ChatClient:
    """All questions of one call. Belongs to one event loop."""

    def __init__(self, chat: Chat, questions: Sequence[Question], give: Callable[[Answer], None]) -> None:
        self._chat = chat
        self._give = give
        self._left = len(questions)
        self._todo = iter(questions)
        self._pictures = PictureCache(questions)
        self._clients = Clients(chat.endpoint, chat.limiter.ceiling, chat.settings.timeout, _LARGEST_REPLY)
        self._states: dict[asyncio.Task[None], UnderWay] = {}
        self._problem = ""

    async def run(self) -> None:
        """Ask all questions; answers are given as they come.

        Raises:
            JudgeUnusable: no further answer will come.
        """
        for _ in range(min(self._chat.room, self._left)):
            state = UnderWay()
            self._states[asyncio.create_task(self._work(state))] = state
        try:
            await self._wait()
        finally:
            self._chat.history.holdup = ""
            await self._give_up()
            await self._clients.close()
        if self._problem:
            raise JudgeUnusable(self._problem)

    async def _wait(self) -> None:
        """Wait for all workers; of a judge that is unusable, only for the requests that are out already."""
        pending, clock, given_up = set(self._states), asyncio.get_running_loop().time, 0.0
        while pending:
            tick = _TICK if self._problem else _LOOK_EVERY
            self._chat.history.holdup = self._chat.endpoint.redact(self._chat.limiter.state())
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
            self._chat.limiter.expect(self, self._left)
            try:
                self._give(await self._answer(question))
            except JudgeUnusable as error:
                self._problem = self._problem or str(error)
            self._pictures.answered(question)
            if self._problem:
                return

    async def _answer(self, question: Question) -> Answer:
        chat = self._chat
        try:
            tried = await retry(lambda: self._attempt(question), chat.settings.policy, chat.limiter)
        except _NotSendable as error:
            return Answer(question, None, str(error), attempts=0)
        except JudgeUnusable:
            raise
        except Exception as error:  # whatever a library raises costs this question, not the cell
            return Answer(question, None, chat.endpoint.redact(f"{type(error).__name__}: {one_line(error)}"))
        if isinstance(tried.result, Failure):
            answer = Answer(question, None, self._error(tried.result, tried))
        else:
            answer = tried.result
        return replace(answer, seconds=tried.seconds, attempts=tried.attempts)

    async def _attempt(self, question: Question) -> Answer | Failure:
        chat = self._chat
        if self._problem:
            raise JudgeUnusable(self._problem)
        parameters = request_parameters(question, chat.settings)
        # made anew for each attempt: what waits to be asked again must not hold megabytes
        request = await self._request(question, parameters)
        asked = edition(chat.address_file)
        while isinstance(raw := await self._clients.post(request), Failure):
            if not await self._restarted(raw, asked):
                return raw
            asked = edition(chat.address_file)
        chat.history.answered = True
        if not raw.is_success:
            return self._failure(raw, repr(parameters))
        if reset := used_up_for(raw.headers):
            chat.limiter.window_used_up(reset)
        reply = read_reply(
            question, raw.body, chat.settings.top_logprobs, chat.settings.price_of(chat.model_id)
        )
        if reply in (NO_LOGPROBS, FEW_LOGPROBS) and chat.history.gives_logprobs:
            return Failure(Kind.LOST, "the reply holds no log-probabilities, or too few")
        if isinstance(reply, Answer):
            chat.history.proven.add(repr(parameters))
            chat.history.gives_logprobs |= bool(question.choices)
            return replace(reply, text=chat.endpoint.without_own_key(reply.text or ""))
        return reply

    def _failure(self, raw: HttpReply, parameters: str) -> Failure:
        """What a status other than 200 means. Belongs to one question: such a failure is not asked again."""
        history, key = self._chat.history, self._chat.endpoint.key_variable
        proven = parameters in history.proven
        failure = classify_status(raw.status, raw.headers, raw.text, proven, key)
        if not failure.doubtful:
            return failure
        history.doubted[parameters] += 1
        if not history.answered_before and history.doubted[parameters] > _MOST_DOUBTED:
            return failure
        return classify_status(raw.status, raw.headers, raw.text, True, key)

    async def _restarted(self, failure: Failure, asked: int) -> bool:
        """Whether a server of this run was started again since ``asked``, the edition of its address back then.

        Waits while it is being started, and where by this ``failure`` it must be dead, until that is noticed.

        Raises:
            JudgeUnusable: it will not come back.
        """
        file, clock = self._chat.address_file, asyncio.get_running_loop().time
        if not file:
            return False
        noticed_by = clock() + (_DEATH_NOTICED if failure.kind is Kind.UNREACHABLE else 0.0)
        while True:
            if why := problem(file, self._chat.endpoint.base_url):
                raise JudgeUnusable(why)
            given = edition(file)
            if given not in (0, asked):
                return True
            if is_away(file):
                with self._chat.limiter.returning():
                    await self._while_away(file)
            elif clock() >= noticed_by:
                return False
            else:
                await asyncio.sleep(_TICK)

    async def _while_away(self, file: str) -> None:
        while is_away(file):
            await asyncio.sleep(_TICK)

    async def _request(self, question: Question, parameters: dict[str, object]) -> Request:
        pictures = {}
        for picture in question.pictures:
            try:
                pictures[picture] = await self._pictures.get(picture)
            except (OSError, CorruptImage) as error:
                raise _NotSendable(f"the image {picture.path} cannot be sent: {one_line(error)}") from None
        return chat_request(self._chat.model_id, question, parameters, pictures)

    def _error(self, failure: Failure, tried: Attempt[Answer]) -> str:
        """``failure`` in words, without the key.

        Raises:
            JudgeUnusable: it is not about one question.
        """
        chat = self._chat
        text = chat.endpoint.redact(failure.text)
        where = chat.endpoint.redact(f"judge '{chat.model_id}' at {chat.endpoint.host}")
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
        if failure.kind is Kind.UNREACHABLE and not chat.history.answered:
            raise JudgeUnusable(f"{where}: {text}; check its address and the network")
        return text


T = TypeVar("T")

_END = object()


def in_background(produce: Callable[[Callable[[T], None]], Awaitable[None]]) -> Iterator[T]:
    """What ``produce(give)`` gives, as it comes; then what it raises, if it does.

    Closing the iterator, or an interrupt while it waits, cancels the coroutine and waits for its end.
    """
    given: SimpleQueue[Any] = SimpleQueue()
    cancel: Future[Callable[[], object]] = Future()
    raised: list[BaseException] = []

    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task
        cancel.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        await produce(given.put)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # the caller's thread raises it
            raised.append(error)
        finally:
            given.put(_END)

    thread = threading.Thread(target=run, name="judge", daemon=True)
    thread.start()
    try:
        while (value := given.get()) is not _END:
            yield value
        if raised:
            raise raised[0]
    finally:
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                cancel.result()()
        thread.join()


def endpoint_of(backend: str, settings: ApiSettings, options: JudgeOptions) -> Endpoint:
    """The endpoint of a judge: what ``base_url`` names, else the server of this run, else the user's API.

    A server of this run starts when it is first asked for: that may take many minutes.

    Raises:
        CellFailure: there is none, or it has no key.
        JudgeUnusable: the server of this run does not start.
    """
    given = {"base_url": settings.base_url, "api_key_env": settings.api_key_env}
    try:
        if backend != "vllm":
            return Endpoint.of(given)
        if not settings.base_url:
            address = _address(options)
            return Endpoint.without_key(address, f"the judge's address file {options.address_file}")
        # the key of the user's API is no business of a server that is named here
        return (
            Endpoint.of(given)
            if settings.api_key_env
            else Endpoint.without_key(settings.base_url, "base_url")
        )
    except UserError as error:
        raise CellFailure(f"the judge cannot be asked: {error}") from None


def _address(options: JudgeOptions) -> str:
    if not options.address_file:
        raise CellFailure(
            "no server of the judge is known: give its URL as the judge's kwarg base_url, or let eval.sh start one"
        )
    return wait_for_address(options.address_file)
