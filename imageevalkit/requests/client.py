"""HTTP: how a request is sent, by the official client or without it, how long that may take, how much is read.

Both ways go through connections of our own and end in the same hands. The official client (``openai``) knows Azure,
organisations and projects, and what providers come up with next. Importing it takes 0.35 s and 25 MB, and each of its
requests more than a plain one (``perf/`` has the figures): images from a plain endpoint are asked for without it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from imageevalkit.errors import UserError
from imageevalkit.machine import are_used_up
from imageevalkit.requests.endpoint import Endpoint, Places
from imageevalkit.requests.failures import Failure, Kind, classify_connection

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI


def check_packages(official: bool = True) -> None:
    """Raises UserError: what requests to an API take (``official``: by the official client) is not installed."""
    for package in ("httpx2", "pybase64", *(["openai"] if official else [])):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"an API needs the package '{package}': pip install -r requirements/driver.txt")


def has_official() -> bool:
    """Whether the official client is installed: environments made before it was asked for do without."""
    return importlib.util.find_spec("openai") is not None


class Request(NamedTuple):
    """A path below the base URL, and the body: its pieces, perhaps shared with others, are never joined."""

    path: str
    body: tuple[bytes, ...]
    mime_type: str = "application/json"

    async def stream(self) -> AsyncIterator[bytes]:
        """The body, as a client sends it."""
        for piece in self.body:
            yield piece


T = TypeVar("T")

_CONNECT_TIMEOUT = 30.0
# A connection pool looks at all its idle connections for each request: at 64 in flight in one pool that was a
# third of all CPU time.
_REQUESTS_PER_CLIENT = 8
_MOST_CLIENTS = 32
_USER_AGENT = "ImageEvalKit"
_STREAMED = {"X-Stainless-Raw-Response": "stream"}  # asks the official client for the reply as it comes
_LOOK_AGAIN = 0.1  # seconds, while no descriptor is free


class Unsuccessful(Exception):
    """A reply with a status other than 2xx, and the beginning of its body."""

    def __init__(self, response: httpx2.Response, body: bytes) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response, self.body = response, body


# what is read of such a reply: a gateway may quote the whole request, with its pictures
_LONGEST_ERROR = 2**18


# The official client makes a form itself wherever it is told of one; ours are made already.
_BODY_TYPE = "X-Body-Type"


async def _declare_body(request: httpx2.Request) -> None:
    if mime_type := request.headers.pop(_BODY_TYPE, ""):
        request.headers["Content-Type"] = mime_type


async def _raise_unsuccessful(response: httpx2.Response) -> None:
    """Before the official client reads it, however long it is."""
    if not response.is_success:
        body, _ = await read_body(response, _LONGEST_ERROR)
        raise Unsuccessful(response, body)


class Clients:
    """For ``in_flight`` requests at a time to ``endpoint``, ``official``: by the official client.

    ``timeout`` (seconds) is for connecting. Belongs to one event loop.
    """

    def __init__(self, endpoint: Endpoint, in_flight: int, timeout: float, official: bool) -> None:
        import httpx2

        from imageevalkit.requests.transports import AsyncTransport

        self.loop = asyncio.get_running_loop()
        self._endpoint, self._official = endpoint, official
        places = Places(endpoint.base_url)
        # a read timeout starts anew with every byte: `in_time` bounds the whole request
        bounds = httpx2.Timeout(None, connect=min(timeout, _CONNECT_TIMEOUT))
        # the limiter bounds what is in flight; a second bound in the pool would only hide waiting
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        # reading the certificates takes longer than all the rest
        verify = httpx2.create_ssl_context()
        # `read_body` inflates these
        headers = {"Accept-Encoding": "gzip, deflate", "User-Agent": _USER_AGENT}

        # what another host would get is the user's prompt, and often as a GET: name it, do not follow
        def http() -> httpx2.AsyncClient:
            return httpx2.AsyncClient(
                transport=AsyncTransport(limits=limits, verify=verify),
                timeout=bounds,
                headers=headers,
                follow_redirects=False,
            )

        self.plain = http
        """Makes a client of its own, which whoever has it closes; it is no place for a reply's links."""
        # for what replies point to
        self.files = http()
        self.files.event_hooks = {"request": [places.guard]}
        count = min(_MOST_CLIENTS, -(-in_flight // _REQUESTS_PER_CLIENT))
        self._in_flight = {http(): 0 for _ in range(count)}
        for client in self._in_flight:
            client.event_hooks = {
                "request": [places.learn, _declare_body],
                "response": [_raise_unsuccessful],
            }
        self._by_client: dict[httpx2.AsyncClient, AsyncOpenAI] = {}

    @asynccontextmanager
    async def post(self, request: Request) -> AsyncIterator[httpx2.Response]:
        """The reply, its body not yet read. Raises Unsuccessful, httpx2.HTTPError."""
        client = min(self._in_flight, key=self._in_flight.__getitem__)
        self._in_flight[client] += 1
        headers = {
            # without it a body in pieces goes in chunked encoding, which some gateways refuse
            "Content-Length": str(sum(map(len, request.body))),
            # two repetitions of a prompt are two requests, for a gateway that caches too
            "X-Client-Request-Id": str(uuid.uuid4()),
        }
        try:
            send = self._send_officially if self._official else self._send
            response = await send(client, request, headers)
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            self._in_flight[client] -= 1

    async def _send(
        self, client: httpx2.AsyncClient, request: Request, headers: Mapping[str, str]
    ) -> httpx2.Response:
        built = client.build_request(
            "POST",
            self._endpoint.base_url + request.path,
            content=request.stream(),
            headers={
                "Authorization": f"Bearer {self._endpoint.key}",
                "Content-Type": request.mime_type,
                **headers,
            },
        )
        return await client.send(built, stream=True)

    async def _send_officially(
        self, client: httpx2.AsyncClient, request: Request, headers: Mapping[str, str]
    ) -> httpx2.Response:
        import httpx2
        import openai

        if client not in self._by_client:
            self._by_client[client] = self.official(client)
        try:
            return await self._by_client[client].post(
                request.path,
                content=request.stream(),
                cast_to=httpx2.Response,
                options={"headers": {**headers, **_STREAMED, _BODY_TYPE: request.mime_type}},
            )
        except openai.APIConnectionError as error:
            wrapped = error.__cause__ or error
        raise wrapped  # out here, where its context is not the error that it caused

    def official(self, client: httpx2.AsyncClient) -> AsyncOpenAI:
        """The official client of the endpoint, on the connections of ``client``."""
        import openai

        endpoint = self._endpoint
        given: dict[str, Any] = {
            "api_key": endpoint.key,
            "default_headers": {"User-Agent": _USER_AGENT},
            "max_retries": 0,
            "http_client": client,
        }
        if not any(
            endpoint.official_words
        ):  # they are of another account, and the client reads them by itself
            lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
            names = [
                "OpenAI-Organization",
                "OpenAI-Project",
                *(line.partition(":")[0].strip() for line in lines),
            ]
            given["default_headers"] |= dict.fromkeys(filter(None, names), openai.omit)
        if azure := endpoint.azure:
            given |= {"azure_deployment": azure.deployment, "api_version": azure.api_version}
            return openai.AsyncAzureOpenAI(azure_endpoint=endpoint.base_url, **given)
        return openai.AsyncOpenAI(base_url=endpoint.base_url, **given)

    async def close(self) -> None:
        """Close all connections."""
        for client in (*self._in_flight, self.files):
            await client.aclose()


async def read_body(response: httpx2.Response, longest: int) -> tuple[bytes, bool]:
    """At most ``longest`` bytes of a streamed ``response``, inflated, and whether they are all there are."""
    import httpx2

    pieces: list[bytes] = []
    left = longest
    async for piece in response.aiter_raw():
        pieces.append(piece[:left])
        left -= len(piece)
        if left < 0:
            break
    body = b"".join(pieces)
    # whatever else stands there ("utf-8", "aws-chunked", nothing) compresses nothing that was asked for
    coding = response.headers.get("content-encoding", "").strip().lower().removeprefix("x-")
    if coding not in ("gzip", "deflate"):
        return body, left >= 0
    # some servers send a deflate without the header of zlib
    raw = coding == "deflate" and body[:1] and body[0] & 0x0F != 8
    try:
        # a few bytes may inflate to gigabytes, and gigabytes to nothing
        inflated = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32).decompress(
            body, longest + 1
        )
    except zlib.error as error:
        raise httpx2.DecodingError(str(error)) from None
    return inflated[:longest], left >= 0 and len(inflated) <= longest


async def in_time(send: Callable[[], Awaitable[T | Failure]], timeout: float) -> T | Failure:
    """What ``send`` returns within ``timeout`` seconds, else why not; waits for a descriptor to be free."""
    import anyio
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
    # a damaged TLS record comes as it is
    except (httpx2.HTTPError, OSError, anyio.EndOfStream) as error:
        return classify_connection(error)
