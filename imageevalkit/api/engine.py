"""Asking an endpoint: the one way from a request to what its reply means, for image models and judges alike."""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from imageevalkit.api.clients import Clients, Request, in_time, read_body
from imageevalkit.api.endpoint import Endpoint, Places
from imageevalkit.api.failures import LONGEST_WAIT, Failure, Kind, classify_status, used_up_for
from imageevalkit.api.in_flight import under_way
from imageevalkit.api.limiter import EndpointDown, Limiter, Trial
from imageevalkit.api.money import check_numbers
from imageevalkit.errors import UserError

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

# what is read of a reply that is none: a gateway may quote the whole request, with its pictures
_LONGEST_ERROR = 2**18
# of pages; Python also has codecs like punycode, which takes hours for what is that long
_ENCODINGS = re.compile(r"utf|gb|big5|shift|euc|iso|latin|windows|(us-)?ascii", re.IGNORECASE)
_LONGEST_BACKOFF = 60.0
_MOST_DOUBLINGS = 16
# A 429 of an item while requests that started later are served: not the account's rate but this one request ("too
# large for your tokens per minute"). Even of an account that refuses every other request, one item in 4096 is.
_MOST_LIMITS = 12
# its own generator: a model's seed must not depend on how often a server failed, nor the other way round
_jitter = random.Random()


@dataclass(frozen=True)
class RequestSettings:
    """What a user may set of a model or judge behind an API. Raises UserError for a malformed value.

    ``timeout`` (seconds) bounds one request, its reply included, ``max_outage`` (seconds) how long the endpoint may
    be down, ``max_elapsed`` (seconds) the requests of one item and the waits between; ``backoff`` (seconds) is the
    longest first wait. What says nothing about the item counts neither there nor as one of its ``max_attempts``:
    rate limits of the account, failures during an outage, waiting for a slot. ``base_url`` and ``api_key_env`` name
    another endpoint than the environment does. ``price`` is the user's word (see :mod:`imageevalkit.api.money`).
    ``extra_body``: request parameters, None taking one back.
    """

    timeout: float = 300.0
    max_attempts: int = 6
    max_elapsed: float = 600.0
    backoff: float = 2.0
    max_outage: float = 1800.0
    base_url: str | None = None
    api_key_env: str | None = None
    price: Any = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_numbers(self)
        if not isinstance(self.extra_body, Mapping):
            raise UserError(f"extra_body must be an object of request parameters, not {self.extra_body!r}")

    def delay(self, failures: int, asked: float | None, limited: bool = False) -> float:
        """Seconds to wait after that many failures (429s, where ``limited``): never less than ``asked`` (capped).

        Full jitter: uniform in [0, min(cap, backoff · 2^(failures-1))]
        (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/); the limiter sees to it that those
        who were told when do not come back at once.
        """
        ceiling = min(_LONGEST_BACKOFF, self.backoff * 2 ** min(max(failures, 1) - 1, _MOST_DOUBLINGS))
        if limited and asked:
            ceiling = 0.1 * min(asked, 1.0)
        return min(asked or 0.0, LONGEST_WAIT) + _jitter.uniform(0.0, ceiling)


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """The last outcome, requests, seconds with the waits between; ``down``: the endpoint is to blame."""

    result: T | Failure
    attempts: int
    seconds: float
    down: bool = False


async def retry(
    ask: Callable[[], Awaitable[T | Failure]], policy: RequestSettings, limiter: Limiter
) -> Attempt[T]:
    """Call ``ask``, each time in a slot of ``limiter``, until it succeeds, fails for good, or a bound is met."""
    loop = asyncio.get_running_loop()
    state = under_way()
    trial, limits, failures = Trial(), Trial(), Counter[Kind]()
    attempts = counted = 0
    seconds = counted_seconds = limited_seconds = 0.0
    result: T | Failure | None = None
    while True:
        try:
            async with limiter.slot(attempts) as sent:
                attempts += 1
                state.sent = True
                result = await ask()
                took = loop.time() - sent
                seconds += took
                if not isinstance(result, Failure) or not result.kind.retried:
                    limiter.served(sent)
                    return Attempt(result, attempts, seconds)
                failures[result.kind] += 1
                counts = False
                if result.kind is Kind.RATE_LIMIT:
                    limiter.limited(limits, sent, result.retry_after)
                elif result.kind is Kind.LOST:  # the endpoint did its part
                    limiter.served(sent)
                    counts = True
                else:
                    counts = limiter.failed(trial, sent, result.text)
        except EndpointDown as error:
            last = result if isinstance(result, Failure) else Failure(Kind.UNREACHABLE, str(error))
            return Attempt(last._replace(text=str(error)), attempts, seconds, down=True)
        finally:
            state.sent = False
        if result.kind is Kind.RATE_LIMIT:
            delay = policy.delay(failures[Kind.RATE_LIMIT], result.retry_after, limited=True)
            if limits.times_blamed:
                limited_seconds += took + delay
            if limits.times_blamed >= _MOST_LIMITS or limited_seconds > policy.max_elapsed:
                return Attempt(result, attempts, seconds)
        else:
            counted += counts
            delay = policy.delay(counted, result.retry_after)
            if counts:
                counted_seconds += took + delay
            # each new result is billed, and who lost two will lose a third
            lost_again = failures[Kind.LOST] > 1
            if counted >= policy.max_attempts or counted_seconds > policy.max_elapsed or lost_again:
                return Attempt(result, attempts, seconds)
        seconds += delay
        await asyncio.sleep(delay)


class End(Enum):
    """What the last failure of an item means for it and the others."""

    REFUSED = "refused"
    FAILED = "failed"
    UNUSABLE = "no item can succeed"
    UNREACHABLE = "the endpoint has never answered"
    DOWN = "the endpoint is down"


class Engine:
    """Asks the endpoint of the model ``who`` ("judge 'x'"), whose replies have at most ``longest_reply`` bytes."""

    def __init__(
        self, who: str, endpoint: Endpoint, settings: RequestSettings, limiter: Limiter, longest_reply: int
    ) -> None:
        self.endpoint, self.settings, self.limiter = endpoint, settings, limiter
        self.places = Places(endpoint.base_url)
        self.answered = False
        self._where = f"{who} at {endpoint.host}"
        self._longest_reply = longest_reply
        self._clients: Clients | None = None

    @property
    def clients(self) -> Clients:
        """Those of the running event loop: connections cannot move to another."""
        if self._clients is None or self._clients.loop is not asyncio.get_running_loop():
            self._clients = Clients(self.limiter.ceiling, self.settings.timeout, self.places.guard)
        return self._clients

    async def close(self) -> None:
        """Close the connections; the endpoint can be asked again afterwards."""
        clients, self._clients = self._clients, None
        if clients and clients.loop is asyncio.get_running_loop():
            await clients.close()

    def holdup(self) -> str:
        """What holds requests back now, in a few words; empty when nothing does."""
        return self.endpoint.redact(self.limiter.state())

    async def post(self, request: Request, proven: Callable[[], bool]) -> bytes | Failure:
        """The body of a reply that serves ``request``, or what went wrong.

        ``proven`` as in ``classify_status``, asked when the reply is here: another item may have succeeded meanwhile.
        """
        headers = {
            "Authorization": f"Bearer {self.endpoint.key}",
            "Content-Type": request.mime_type,
            # without it a body in pieces goes in chunked encoding, which some gateways refuse
            "Content-Length": str(sum(map(len, request.body))),
            # two repetitions of a prompt are two requests, for a gateway that caches too
            "X-Client-Request-Id": str(uuid.uuid4()),
        }

        async def send() -> bytes | Failure:
            async with client.stream(
                "POST",
                self.endpoint.base_url + request.path,
                content=request.stream(),
                headers=headers,
                extensions=self.places.learning(),
            ) as response:
                return await self._read(response, proven)

        with self.clients.idlest() as client:
            return await in_time(send, self.settings.timeout)

    async def _read(self, response: httpx2.Response, proven: Callable[[], bool]) -> bytes | Failure:
        status, headers = response.status_code, response.headers
        longest = self._longest_reply if response.is_success else _LONGEST_ERROR
        body, whole = await read_body(response, longest)
        self.answered = True
        if not response.is_success:
            charset = response.charset_encoding or ""
            try:
                text = body.decode(charset if _ENCODINGS.match(charset) else "utf-8", errors="replace")
            except LookupError:
                text = body.decode(errors="replace")
            return classify_status(status, headers, text, proven(), self.endpoint.key_variable)
        if not whole:
            text = f"the reply (HTTP {status}) is larger than {longest >> 20} MiB"
            return Failure(Kind.ITEM, text, maybe_billed=True)
        if reset := used_up_for(headers):
            self.limiter.window_used_up(reset)
        return body

    def end(self, failure: Failure, tried: Attempt[Any]) -> tuple[End, str]:
        """What the ``failure`` that was the result of ``tried`` means, and in words without the key."""
        text, attempts = self.endpoint.redact(failure.text), tried.attempts
        here = self.endpoint.redact(f"{self._where}: {text}")
        if tried.down:
            return End.DOWN, here
        if failure.kind is Kind.REFUSAL:
            return End.REFUSED, text
        if failure.kind is Kind.PERMANENT:
            return End.UNUSABLE, here
        gave_up = f" (gave up after {attempts} attempt{'s' * (attempts > 1)} in {tried.seconds:.0f} s)"
        if failure.kind is Kind.UNREACHABLE and not self.answered:
            return End.UNREACHABLE, here + gave_up
        return End.FAILED, text + gave_up * failure.kind.retried
