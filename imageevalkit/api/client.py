"""Sends HTTP requests, with the official client or without it, and bounds their time and their size.

Both ways use the same connections and the same code for replies. The official client (``openai``) supports
Azure, organisations, projects and new features of providers. Its import takes 0.35 s and 25 MB, and each of
its requests takes more than a plain one (figures in ``perf/``). Images from a plain endpoint are therefore
requested without it.
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

from imageevalkit.api.endpoint import Endpoint, Places
from imageevalkit.api.failures import Failure, Kind, classify_connection
from imageevalkit.common.errors import UserError
from imageevalkit.common.machine import are_used_up

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI


def check_packages(official: bool = True) -> None:
    """Checks that the packages for API requests are installed (``official``: with the official client).

    Raises UserError: a package is missing.
    """
    for package in ("httpx2", "pybase64", *(["openai"] if official else [])):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"an API needs the package '{package}': pip install -r requirements/driver.txt")


def has_official() -> bool:
    """Returns whether the official client is installed: older environments do not contain it."""
    return importlib.util.find_spec("openai") is not None


class Request(NamedTuple):
    """A POST request: the path below the base URL and the body.

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

_CONNECT_TIMEOUT = 30.0
# A pool checks all its idle connections at each request: one pool with 64 requests in flight took a third of
# all CPU time.
_REQUESTS_PER_CLIENT = 8
_MOST_CLIENTS = 32
_USER_AGENT = "ImageEvalKit"
_STREAMED = {"X-Stainless-Raw-Response": "stream"}  # the official client returns the unread reply
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


async def _declare_body(request: httpx2.Request) -> None:
    if mime_type := request.headers.pop(_BODY_TYPE, ""):
        request.headers["Content-Type"] = mime_type


async def _raise_unsuccessful(response: httpx2.Response) -> None:
    """Raises Unsuccessful before the official client reads the body, which may be of any length."""
    if not response.is_success:
        body, _ = await read_body(response, _LONGEST_ERROR)
        raise Unsuccessful(response, body)


class Clients:
    """The HTTP clients for ``in_flight`` parallel requests to ``endpoint``. Belongs to one event loop.

    If ``official``, the official client sends the requests. ``timeout`` (seconds) bounds connecting.
    """

    def __init__(self, endpoint: Endpoint, in_flight: int, timeout: float, official: bool) -> None:
        import httpx2

        from imageevalkit.common.transports import AsyncTransport

        self.loop = asyncio.get_running_loop()
        self._endpoint, self._official = endpoint, official
        places = Places(endpoint.base_url)
        # no read timeout: it restarts at every byte, while `in_time` bounds the whole request
        bounds = httpx2.Timeout(None, connect=min(timeout, _CONNECT_TIMEOUT))
        # the limiter bounds the requests in flight; a second bound in the pool would hide waiting requests
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        # one context for all clients: reading the certificates takes most of the time here
        verify = httpx2.create_ssl_context()
        # the encodings that `read_body` can decompress
        headers = {"Accept-Encoding": "gzip, deflate", "User-Agent": _USER_AGENT}

        # no redirects: another host would get the user's prompt, often as a GET; the error names the host
        def http() -> httpx2.AsyncClient:
            return httpx2.AsyncClient(
                transport=AsyncTransport(limits=limits, verify=verify),
                timeout=bounds,
                headers=headers,
                follow_redirects=False,
            )

        self.plain = http
        """Returns a client that the caller closes. Links of a reply need `files`, which checks addresses."""
        # fetches the links of replies
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
        """Sends ``request``; yields the reply with an unread body. Raises Unsuccessful, httpx2.HTTPError."""
        client = min(self._in_flight, key=self._in_flight.__getitem__)
        self._in_flight[client] += 1
        headers = {
            # else the body is sent in chunked encoding, which some gateways refuse
            "Content-Length": str(sum(map(len, request.body))),
            # else a gateway with a cache returns one reply for two repetitions of a prompt
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
        raise wrapped  # outside the except block: else the APIConnectionError would be its context

    def official(self, client: httpx2.AsyncClient) -> AsyncOpenAI:
        """Returns an official client of the endpoint that uses the connections of ``client``."""
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
        ):  # the variables belong to another account, but the client would read them
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
        """Closes all connections."""
        for client in (*self._in_flight, self.files):
            await client.aclose()


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
