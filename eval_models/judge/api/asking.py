"""Asking a chat endpoint many questions at once, in one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from eval_models.judge.api.chat_reply import FEW_LOGPROBS, NO_LOGPROBS, read_reply
from eval_models.judge.api.chat_request import chat_request, request_parameters
from eval_models.judge.api.picture_cache import PictureCache
from eval_models.judge.api.settings import ApiSettings
from eval_models.judge.served import edition, is_away, problem
from imageevalkit.api.clients import Clients, HttpReply
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind, classify_status
from imageevalkit.api.limiter import Limiter
from imageevalkit.api.rate_headers import used_up_for
from imageevalkit.api.request import Request
from imageevalkit.api.retry import Tried, UnderWay, retry, under_way
from imageevalkit.evaluation.question import Answer, JudgeUnusable, Question, Reply
from imageevalkit.images import CorruptImage
from imageevalkit.secrets import one_line

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
class Known:
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


class Chat(NamedTuple):
    """Whom to ask, and how; ``address_file`` is that of a server of this run."""

    model_id: str
    endpoint: Endpoint
    settings: ApiSettings
    limiter: Limiter
    known: Known
    address_file: str = ""

    @property
    def room(self) -> int:
        """Questions under way: others are ready for when some wait to be asked again."""
        return max(4, 2 * self.limiter.ceiling)


class _NotSendable(Exception):
    """The question cannot be put: one line why."""


class Asking:
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
            self._chat.known.holdup = ""
            await self._give_up()
            await self._clients.close()
        if self._problem:
            raise JudgeUnusable(self._problem)

    async def _wait(self) -> None:
        """Wait for all workers; of a judge that is unusable, only for the requests that are out already."""
        pending, clock, given_up = set(self._states), asyncio.get_running_loop().time, 0.0
        while pending:
            tick = _TICK if self._problem else _LOOK_EVERY
            self._chat.known.holdup = self._chat.endpoint.redact(self._chat.limiter.state())
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
            return Answer(question, None, self._error(tried.result, tried), tried.seconds, tried.attempts)
        return Answer(question, tried.result, "", tried.seconds, tried.attempts)

    async def _attempt(self, question: Question) -> Reply | Failure:
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
        chat.known.answered = True
        if not raw.is_success:
            return self._failure(raw, repr(parameters))
        if reset := used_up_for(raw.headers):
            chat.limiter.window_used_up(reset)
        reply = read_reply(raw.body, question.wanted, chat.settings.top_logprobs, chat.settings.price)
        if reply in (NO_LOGPROBS, FEW_LOGPROBS) and chat.known.gives_logprobs:
            return Failure(Kind.LOST, "the reply holds no log-probabilities, or too few")
        if isinstance(reply, Reply):
            chat.known.proven.add(repr(parameters))
            chat.known.gives_logprobs |= bool(question.wanted)
            return replace(reply, text=chat.endpoint.without_own_key(reply.text))
        return reply

    def _failure(self, raw: HttpReply, parameters: str) -> Failure:
        """What a status other than 200 means. Belongs to one question: such a failure is not asked again."""
        known, key = self._chat.known, self._chat.endpoint.key_variable
        proven = parameters in known.proven
        failure = classify_status(raw.status, raw.headers, raw.text, proven, key)
        if not failure.doubtful:
            return failure
        known.doubted[parameters] += 1
        if not known.answered_before and known.doubted[parameters] > _MOST_DOUBTED:
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

    def _error(self, failure: Failure, tried: Tried[Reply]) -> str:
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
        if failure.kind is Kind.UNREACHABLE and not chat.known.answered:
            raise JudgeUnusable(f"{where}: {text}; check its address and the network")
        return text
