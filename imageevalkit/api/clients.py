"""The HTTP clients of one endpoint in one event loop.

They are httpx2's, which OpenAI's own client is built on: at thousands of images that one's share of the CPU time
was a quarter, and half a second of every start. ``tests/test_official_client.py`` keeps the requests the same.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind, classify_connection
from imageevalkit.api.request import Request

if TYPE_CHECKING:
    import httpx2

_CONNECT_TIMEOUT = 30.0
# A connection pool looks at all its idle connections for each request: at 64 in flight in one pool that was a
# third of all CPU time.
_REQUESTS_PER_CLIENT = 8
_MOST_CLIENTS = 32


@dataclass
class _Client:
    http: httpx2.AsyncClient
    in_flight: int = 0


class Clients:
    """Clients for ``in_flight`` requests at a time, and ``files`` for what replies point to.

    ``timeout`` is in seconds and bounds one request, its reply included. Belongs to the event loop it is made in.
    """

    def __init__(self, endpoint: Endpoint, in_flight: int, timeout: float) -> None:
        import httpx2

        self.loop = asyncio.get_running_loop()
        # a read timeout starts anew with every byte: `post` bounds the whole request
        bounds = httpx2.Timeout(None, connect=min(timeout, _CONNECT_TIMEOUT))
        # the limiter bounds what is in flight; a second bound in the pool would only hide waiting
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        # reading the certificates takes longer than all the rest
        verify = httpx2.create_ssl_context()

        def http(follow_redirects: bool) -> httpx2.AsyncClient:
            return httpx2.AsyncClient(
                timeout=bounds, limits=limits, verify=verify, follow_redirects=follow_redirects
            )

        self.files = http(follow_redirects=True)
        # what another host would get is the user's prompt, and often as a GET: name it, do not follow
        count = min(_MOST_CLIENTS, -(-in_flight // _REQUESTS_PER_CLIENT))
        self._clients = [_Client(http(follow_redirects=False)) for _ in range(count)]
        self._timeout = timeout
        self._base_url = endpoint.base_url
        self._headers = {"Authorization": f"Bearer {endpoint.key}", "User-Agent": "ImageEvalKit"}

    async def post(self, request: Request) -> httpx2.Response | Failure:
        """Send ``request`` and read the reply whole, whatever its status; a failure when none came."""
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
        try:
            url = self._base_url + request.path
            posted = client.http.post(url, content=_one_by_one(pieces), headers=headers)
            return await asyncio.wait_for(posted, self._timeout)
        except asyncio.TimeoutError:
            return Failure(Kind.TRANSIENT, f"no reply within {self._timeout:g} s", maybe_billed=True)
        except httpx2.HTTPError as error:
            return classify_connection(error)
        finally:
            client.in_flight -= 1

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.http.aclose()
        await self.files.aclose()


async def _one_by_one(pieces: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
