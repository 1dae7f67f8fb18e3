"""Sending requests to one endpoint: its HTTP clients."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from imageevalkit.api.endpoint import Endpoint, Places
from imageevalkit.api.failures import Failure, Kind, classify_connection
from imageevalkit.errors import UserError
from imageevalkit.machine import are_used_up


def check_packages() -> None:
    """Raises UserError: what requests to an API take is not installed."""
    for package in ("httpx2", "pybase64"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"an API needs the package '{package}': pip install -r requirements/driver.txt")


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

        async def send() -> HttpReply | Failure:
            url, content = self._base_url + request.path, _one_by_one(pieces)
            extensions = self.places.learning()
            async with client.http.stream(
                "POST", url, content=content, headers=headers, extensions=extensions
            ) as response:
                return await self._read(response)

        try:
            return await in_time(send, self._timeout)
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


async def in_time(send: Callable[[], Awaitable[T | Failure]], timeout: float) -> T | Failure:
    """What ``send`` returns within ``timeout`` seconds, else why not.

    Where no descriptor is free for a connection it waits: nothing is sent, and others will end.
    """
    import httpx2

    in_vain = False

    async def patiently() -> T | Failure:
        nonlocal in_vain
        while True:
            in_vain = False
            try:
                return await send()
            except (httpx2.ConnectError, OSError) as error:
                if not are_used_up(error):
                    raise
            in_vain = True
            await asyncio.sleep(_LOOK_AGAIN)

    try:
        return await asyncio.wait_for(patiently(), timeout)
    except asyncio.TimeoutError:
        if in_vain:
            return Failure(Kind.TRANSIENT, f"no open file was free (ulimit -n) for {timeout:g} s")
        return Failure(Kind.TRANSIENT, f"no reply within {timeout:g} s", maybe_billed=True)
    except httpx2.HTTPError as error:
        return classify_connection(error)


async def _one_by_one(pieces: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
