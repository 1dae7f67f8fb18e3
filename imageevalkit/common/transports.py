"""Transports of httpx2 that choose a proxy for each request, as :mod:`imageevalkit.common.network` says.

httpx2 reads all proxies of the environment when a client is made. It then fails for a proxy that it cannot use, even
if NO_PROXY names the host, and it asks a proxy for the loopback address.
"""

from __future__ import annotations

from typing import Any

import httpx2

from imageevalkit.common.errors import UserError
from imageevalkit.common.network import check_proxy, proxy_of

Origin = tuple[str, str, int | None]


def _origin(request: httpx2.Request) -> Origin:
    return request.url.scheme, request.url.host, request.url.port


def _proxy_for(request: httpx2.Request) -> str | None:
    """Returns the proxy for ``request``. Raises ProxyError: the proxy cannot be used."""
    url = str(request.url)
    try:
        check_proxy(url)
    except UserError as error:
        raise httpx2.ProxyError(str(error), request=request) from None
    return proxy_of(url)


class Transport(httpx2.BaseTransport):
    """Selects the proxy for each origin. ``options`` are passed to :class:`httpx2.HTTPTransport`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._proxies: dict[Origin, str | None] = {}
        self._made: dict[str | None, httpx2.HTTPTransport] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        origin = _origin(request)
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_for(request)
        proxy = self._proxies[origin]
        if proxy not in self._made:
            self._made[proxy] = httpx2.HTTPTransport(proxy=proxy, **self._options)
        return self._made[proxy].handle_request(request)

    def close(self) -> None:
        for transport in self._made.values():
            transport.close()


class AsyncTransport(httpx2.AsyncBaseTransport):
    """Async :class:`Transport`. ``options`` are passed to :class:`httpx2.AsyncHTTPTransport`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._proxies: dict[Origin, str | None] = {}
        self._made: dict[str | None, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        origin = _origin(request)
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_for(request)
        proxy = self._proxies[origin]
        if proxy not in self._made:
            self._made[proxy] = httpx2.AsyncHTTPTransport(proxy=proxy, **self._options)
        return await self._made[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        for transport in self._made.values():
            await transport.aclose()
