"""Sends HTTP requests with the official client (``openai``), and bounds their time and their size.

The official client supports Azure, organisations, projects and new features of providers. Its import takes longer
than many requests, so only a process that sends requests imports it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import ssl
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind, classify_connection
from imageevalkit.common.errors import UserError
from imageevalkit.common.machine import are_used_up

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI


def check_packages() -> None:
    """Checks that the packages for API requests are installed. Raises UserError: a package is missing."""
    for package in ("httpx2", "openai", "pybase64"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"an API needs the package '{package}': pip install -r requirements/driver.txt")


class Request(NamedTuple):
    """A POST request: the path below the base URL (or a whole URL) and the body.

    The pieces of the body are never joined: requests may share pieces of several megabytes.
    """

    path: str
    body: tuple[bytes, ...]
    mime_type: str = "application/json"

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields the pieces of the body."""
        for piece in self.body:
            yield piece


T = TypeVar("T")
RequestHook = Callable[["httpx2.Request"], Awaitable[None]]

_CONNECT_TIMEOUT = 30.0
# A pool checks all its idle connections at each request: one pool with 64 requests in flight took a third of
# all CPU time.
_REQUESTS_PER_CLIENT = 8
_MOST_CLIENTS = 32
_USER_AGENT = "ImageEvalKit"
_LOOK_AGAIN = 0.1  # seconds between two attempts while no descriptor is free


class Unsuccessful(Exception):
    """A reply with a status other than 2xx, and the beginning of its body."""

    def __init__(self, response: httpx2.Response, body: bytes) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response, self.body = response, body


# Bytes read of an unsuccessful reply: a gateway may quote the whole request with its pictures.
_LONGEST_ERROR = 2**18


# Carries the content type past the official client, which would encode a finished form again.
_BODY_TYPE = "X-Body-Type"


async def _correct_headers(request: httpx2.Request) -> None:
    """Declares the body, and removes the official client's statements about this machine."""
    request.headers["Content-Type"] = request.headers.pop(_BODY_TYPE)
    for name in list(request.headers):
        if name.startswith("x-stainless-"):
            del request.headers[name]


async def _raise_unsuccessful(response: httpx2.Response) -> None:
    """Raises Unsuccessful before the official client reads the body, which may be of any length."""
    if not response.is_success:
        body, _ = await read_body(response, _LONGEST_ERROR)
        raise Unsuccessful(response, body)


def http_client(timeout: float, certificates: ssl.SSLContext) -> httpx2.AsyncClient:
    """Returns a client with connections of its own. ``timeout`` (seconds) bounds connecting."""
    import httpx2

    from imageevalkit.common.transports import AsyncTransport

    # the limiter bounds the requests in flight; a second bound in the pool would hide waiting requests
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(
        transport=AsyncTransport(limits=limits, verify=certificates),
        # no read timeout: it restarts at every byte, while `in_time` bounds the whole request
        timeout=httpx2.Timeout(None, connect=min(timeout, _CONNECT_TIMEOUT)),
        # the encodings that `read_body` can decompress
        headers={"Accept-Encoding": "gzip, deflate", "User-Agent": _USER_AGENT},
        # no redirects: another host would get the user's prompt, often as a GET; the error names the host
        follow_redirects=False,
    )


def official_client(endpoint: Endpoint, http: httpx2.AsyncClient) -> AsyncOpenAI:
    """Returns an official client of ``endpoint`` that uses the connections of ``http`` and never retries."""
    import openai

    headers: dict[str, Any] = {"User-Agent": _USER_AGENT}
    if not any(endpoint.official_words):  # the variables belong to another account, but the client reads them
        lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
        names = [line.partition(":")[0].strip() for line in lines]
        headers |= dict.fromkeys(filter(None, ["OpenAI-Organization", "OpenAI-Project", *names]), openai.omit)
        if not endpoint.azure:  # `omit` of a custom Authorization would remove the key, too
            headers["Authorization"] = f"Bearer {endpoint.key}"
    given: dict[str, Any] = {
        "api_key": endpoint.key,
        "default_headers": headers,
        "max_retries": 0,
        "http_client": http,
    }
    if azure := endpoint.azure:
        given |= {"azure_deployment": azure.deployment, "api_version": azure.api_version}
        return openai.AsyncAzureOpenAI(azure_endpoint=endpoint.base_url, **given)
    return openai.AsyncOpenAI(base_url=endpoint.base_url, **given)


class Clients:
    """The HTTP clients for ``in_flight`` parallel requests to ``endpoint``. Belongs to one event loop.

    ``timeout`` (seconds) bounds connecting. ``look`` is called with each request before it is sent.
    """

    def __init__(
        self, endpoint: Endpoint, in_flight: int, timeout: float, look: RequestHook | None = None
    ) -> None:
        import httpx2

        self.loop = asyncio.get_running_loop()
        # one context for all clients: reading the certificates takes most of the time here
        certificates = httpx2.create_ssl_context()
        self._in_flight: dict[AsyncOpenAI, int] = {}
        for _ in range(min(_MOST_CLIENTS, -(-in_flight // _REQUESTS_PER_CLIENT))):
            http = http_client(timeout, certificates)
            http.event_hooks = {
                "request": [*filter(None, [look]), _correct_headers],
                "response": [_raise_unsuccessful],
            }
            self._in_flight[official_client(endpoint, http)] = 0

    @asynccontextmanager
    async def post(self, request: Request) -> AsyncIterator[httpx2.Response]:
        """Sends ``request``; yields the reply with an unread body. Raises Unsuccessful, httpx2.HTTPError."""
        client = min(self._in_flight, key=self._in_flight.__getitem__)
        self._in_flight[client] += 1
        try:
            response = await _sent(client, request)
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            self._in_flight[client] -= 1

    async def close(self) -> None:
        """Closes all connections."""
        for client in self._in_flight:
            await client.close()


async def _sent(client: AsyncOpenAI, request: Request) -> httpx2.Response:
    import httpx2
    import openai

    headers = {
        # else the body is sent in chunked encoding, which some gateways refuse
        "Content-Length": str(sum(map(len, request.body))),
        # else a gateway with a cache returns one reply for two repetitions of a prompt
        "X-Client-Request-Id": str(uuid.uuid4()),
        _BODY_TYPE: request.mime_type,
    }
    try:
        reply = await client.post(
            request.path,
            content=request.stream(),
            cast_to=httpx2.Response,
            options={"headers": headers},
            stream=True,  # the body stays unread
            stream_cls=openai.AsyncStream[Any],
        )
        # `cast_to` has priority over `stream_cls`; the type stubs omit this
        return cast("httpx2.Response", reply)
    except openai.APIConnectionError as error:
        cause = error.__cause__ or error
    raise cause  # outside the except block: else the APIConnectionError would be its context


async def read_body(response: httpx2.Response, longest: int) -> tuple[bytes, bool]:
    """Returns at most ``longest`` decompressed bytes of ``response``, and whether the body is complete."""
    import httpx2

    pieces: list[bytes] = []
    left = longest
    async for piece in response.aiter_raw():
        pieces.append(piece[:left])
        left -= len(piece)
        if left < 0:
            break
    body = b"".join(pieces)
    # other values ("utf-8", "aws-chunked", none) do not mean compression: only these two were requested
    coding = response.headers.get("content-encoding", "").strip().lower().removeprefix("x-")
    if coding not in ("gzip", "deflate"):
        return body, left >= 0
    # some servers send deflate without the zlib header
    raw = coding == "deflate" and body[:1] and body[0] & 0x0F != 8
    try:
        # bounded: a few bytes may decompress to gigabytes
        inflated = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32).decompress(
            body, longest + 1
        )
    except zlib.error as error:
        raise httpx2.DecodingError(str(error)) from None
    return inflated[:longest], left >= 0 and len(inflated) <= longest


async def in_time(send: Callable[[], Awaitable[T | Failure]], timeout: float) -> T | Failure:
    """Returns the result of ``send``, or a Failure if ``send`` takes more than ``timeout`` seconds.

    If no file descriptor is free, it calls ``send`` again until one is.
    """
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
    # httpx2 does not wrap the error of a damaged TLS record
    except (httpx2.HTTPError, OSError, anyio.EndOfStream) as error:
        return classify_connection(error)
