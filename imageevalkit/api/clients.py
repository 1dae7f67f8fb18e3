"""HTTP: clients, and how long and how much they wait for."""

from __future__ import annotations

import asyncio
import importlib.util
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from imageevalkit.api.failures import Failure, Kind, classify_connection
from imageevalkit.errors import UserError
from imageevalkit.machine import are_used_up

if TYPE_CHECKING:
    import httpx2


def check_packages() -> None:
    """Raises UserError: what requests to an API take is not installed."""
    for package in ("httpx2", "pybase64"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"an API needs the package '{package}': pip install -r requirements/driver.txt")


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
_LOOK_AGAIN = 0.1  # seconds, while no descriptor is free


class Clients:
    """For ``in_flight`` requests at a time; ``timeout`` (seconds) is for connecting. Belongs to one event loop."""

    def __init__(
        self, in_flight: int, timeout: float, guard: Callable[[httpx2.Request], Awaitable[None]]
    ) -> None:
        import httpx2

        self.loop = asyncio.get_running_loop()
        # a read timeout starts anew with every byte: `in_time` bounds the whole request
        bounds = httpx2.Timeout(None, connect=min(timeout, _CONNECT_TIMEOUT))
        # the limiter bounds what is in flight; a second bound in the pool would only hide waiting
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        # reading the certificates takes longer than all the rest
        verify = httpx2.create_ssl_context()
        # `read_body` inflates these
        headers = {"Accept-Encoding": "gzip, deflate", "User-Agent": "ImageEvalKit"}

        # what another host would get is the user's prompt, and often as a GET: name it, do not follow
        def http() -> httpx2.AsyncClient:
            return httpx2.AsyncClient(
                timeout=bounds, limits=limits, verify=verify, headers=headers, follow_redirects=False
            )

        # for what replies point to
        self.files = http()
        self.files.event_hooks = {"request": [guard]}
        count = min(_MOST_CLIENTS, -(-in_flight // _REQUESTS_PER_CLIENT))
        self._in_flight = {http(): 0 for _ in range(count)}

    @contextmanager
    def idlest(self) -> Iterator[httpx2.AsyncClient]:
        """The client with the fewest requests in flight, for one more."""
        client = min(self._in_flight, key=self._in_flight.__getitem__)
        self._in_flight[client] += 1
        try:
            yield client
        finally:
            self._in_flight[client] -= 1

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
