"""Sending requests to one endpoint: its HTTP clients, and asking again, bounded by count and time."""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from imageevalkit.api.endpoint import Endpoint, Places
from imageevalkit.api.failures import LONGEST_WAIT, Failure, Kind, classify_connection
from imageevalkit.api.limiter import EndpointDown, Limiter, Trial
from imageevalkit.machine import are_used_up


class Request(NamedTuple):
    """What is sent for an item: a path below the base URL, the body and its MIME type.

    A ``body`` in pieces is sent one after the other, never joined: pieces of several requests may be the same.
    """

    path: str
    body: bytes | tuple[bytes, ...]
    mime_type: str


if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

_CONNECT_TIMEOUT = 30.0
# A connection pool looks at all its idle connections for each request: at 64 in flight in one pool that was a
# third of all CPU time.
_REQUESTS_PER_CLIENT = 8
_MOST_CLIENTS = 32
# what is read of a reply that is none: a gateway may quote the whole request, with its pictures
_LONGEST_ERROR = 2**18
# of pages; Python also has codecs like punycode, which takes hours for what is that long
_ENCODINGS = re.compile(r"utf|gb|big5|shift|euc|iso|latin|windows|(us-)?ascii", re.IGNORECASE)
_LOOK_AGAIN = 0.1  # seconds, while no descriptor is free


@dataclass
class _Client:
    http: httpx2.AsyncClient
    in_flight: int = 0


class HttpReply(NamedTuple):
    """What came back: ``headers`` are case-insensitive (httpx2's); of an error ``body`` may be the beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    charset: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether the status says that the request was served."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text."""
        charset = self.charset if self.charset and _ENCODINGS.match(self.charset) else "utf-8"
        try:
            return self.body.decode(charset, errors="replace")
        except LookupError:
            return self.body.decode(errors="replace")


class Clients:
    """Clients for ``in_flight`` requests at a time, and ``files`` for what replies point to, at allowed ``places``.

    ``timeout`` is in seconds and bounds one request, its reply included, which has at most ``longest_reply`` bytes.
    Belongs to the event loop it is made in.
    """

    def __init__(self, endpoint: Endpoint, in_flight: int, timeout: float, longest_reply: int) -> None:
        import httpx2

        self.loop = asyncio.get_running_loop()
        # a read timeout starts anew with every byte: `post` bounds the whole request
        bounds = httpx2.Timeout(None, connect=min(timeout, _CONNECT_TIMEOUT))
        # the limiter bounds what is in flight; a second bound in the pool would only hide waiting
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        # reading the certificates takes longer than all the rest
        verify = httpx2.create_ssl_context()

        # what another host would get is the user's prompt, and often as a GET: name it, do not follow
        def http() -> httpx2.AsyncClient:
            return httpx2.AsyncClient(timeout=bounds, limits=limits, verify=verify, follow_redirects=False)

        self.files = http()
        self.places = Places(endpoint.base_url)
        count = min(_MOST_CLIENTS, -(-in_flight // _REQUESTS_PER_CLIENT))
        self._clients = [_Client(http()) for _ in range(count)]
        self._timeout = timeout
        self._longest_reply = longest_reply
        self._base_url = endpoint.base_url
        self._headers = {"Authorization": f"Bearer {endpoint.key}", "User-Agent": "ImageEvalKit"}

    async def post(self, request: Request) -> HttpReply | Failure:
        """Send ``request`` and read the reply, whatever its status; a failure when none came, or too long a one."""
        import httpx2

        client = min(self._clients, key=lambda client: client.in_flight)
        client.in_flight += 1
        pieces = (request.body,) if isinstance(request.body, bytes) else request.body
        headers = {
            **self._headers,
            "Content-Type": request.mime_type,
            # without it a body in pieces goes in chunked encoding, which some gateways refuse
            "Content-Length": str(sum(map(len, pieces))),
            # two repetitions of a prompt are two requests, for a gateway that caches too
            "X-Client-Request-Id": str(uuid.uuid4()),
        }
        patience = Patience()

        async def send() -> HttpReply | Failure:
            url, content = self._base_url + request.path, _one_by_one(pieces)
            extensions = self.places.learning()
            async with client.http.stream(
                "POST", url, content=content, headers=headers, extensions=extensions
            ) as response:
                return await self._read(response)

        try:
            return await asyncio.wait_for(patience.connected(send), self._timeout)
        except asyncio.TimeoutError:
            if patience.in_vain:
                return Failure(Kind.TRANSIENT, f"{OUT_OF_FILES} for {self._timeout:g} s")
            return Failure(Kind.TRANSIENT, f"no reply within {self._timeout:g} s", maybe_billed=True)
        except httpx2.HTTPError as error:
            return classify_connection(error)
        finally:
            client.in_flight -= 1

    async def _read(self, response: httpx2.Response) -> HttpReply | Failure:
        from imageevalkit.api.body import read_body

        longest = self._longest_reply if response.is_success else _LONGEST_ERROR
        body, whole = await read_body(response, longest)
        if response.is_success and not whole:
            text = f"the reply (HTTP {response.status_code}) is larger than {longest >> 20} MiB"
            return Failure(Kind.ITEM, text, maybe_billed=True)
        return HttpReply(response.status_code, response.headers, body, response.charset_encoding)

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.http.aclose()
        await self.files.aclose()


OUT_OF_FILES = "no open file was free (ulimit -n)"


class Patience:
    """Waits where no descriptor is free for a connection: nothing is sent, and others will end."""

    def __init__(self) -> None:
        self.in_vain = False

    async def connected(self, send: Callable[[], Awaitable[T]]) -> T:
        """What ``send`` returns or raises once there is a descriptor for it; ``in_vain`` while there is none."""
        import httpx2

        while True:
            self.in_vain = False
            try:
                return await send()
            except (httpx2.ConnectError, OSError) as error:
                if not are_used_up(error):
                    raise
            self.in_vain = True
            await asyncio.sleep(_LOOK_AGAIN)


async def _one_by_one(pieces: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


_LONGEST_BACKOFF = 60.0
_MOST_DOUBLINGS = 16
# A 429 of an item while requests that started later are served: not the account's rate but this one request ("too
# large for your tokens per minute"). Even of an account that refuses every other request, one item in 4096 is.
_MOST_LIMITS = 12
# its own generator: a model's seed must not depend on how often a server failed, nor the other way round
_jitter = random.Random()


class RetryPolicy(NamedTuple):
    """``max_elapsed`` and ``backoff`` (the ceiling of the first wait) are in seconds.

    ``max_elapsed`` bounds the requests of one item and the waits between them. Neither bound counts what says
    nothing about the item: rate limits of the account, failures during an outage, waiting for a slot; those end
    with the limiter's own bound.
    """

    max_attempts: int = 6
    max_elapsed: float = 600.0
    backoff: float = 2.0

    def delay(self, failures: int, asked: float | None) -> float:
        """Seconds to wait after that many failures: never less than the server ``asked`` (capped).

        Full jitter: uniform in [0, min(cap, backoff · 2^(failures-1))]
        (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
        """
        ceiling = min(_LONGEST_BACKOFF, self.backoff * 2 ** min(max(failures, 1) - 1, _MOST_DOUBLINGS))
        return min(asked or 0.0, LONGEST_WAIT) + _jitter.uniform(0.0, ceiling)

    def delay_after_limit(self, limits: int, asked: float | None) -> float:
        """Seconds to wait after that many 429s: a little more than the server ``asked`` (capped).

        The limiter sees to it that not all come back at once. A server that asks for nothing, or for 0 s, gets
        the growing waits of :meth:`delay`.
        """
        if not asked:
            return self.delay(limits, None)
        return min(asked, LONGEST_WAIT) + _jitter.uniform(0.0, 0.1 * min(asked, 1.0))


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """The value or the last failure, the number of requests, and the seconds spent on them and between them.

    ``down``: given up because the endpoint was, not because of the item.
    """

    result: T | Failure
    attempts: int
    seconds: float
    down: bool = False


@dataclass
class UnderWay:
    """How far an item is, for whoever may have to give it up: a request is out; the image is here."""

    sent: bool = False
    answered: bool = False


under_way: ContextVar[UnderWay | None] = ContextVar("under_way", default=None)
"""Set by the engine for each item; :func:`retry` keeps it true."""


async def retry(
    ask: Callable[[], Awaitable[T | Failure]], policy: RetryPolicy, limiter: Limiter
) -> Attempt[T]:
    """Call ``ask``, each time in a slot of ``limiter``, until it succeeds, fails for good, or a bound is met."""
    loop = asyncio.get_running_loop()
    state = under_way.get() or UnderWay()
    trial, limits, failures = Trial(), Trial(), Counter[Kind]()
    attempts = counted = 0
    seconds = counted_seconds = limited_seconds = 0.0
    result: T | Failure | None = None
    while True:
        state.sent = False
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
            delay = policy.delay_after_limit(failures[Kind.RATE_LIMIT], result.retry_after)
            if limits.blamed:
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
