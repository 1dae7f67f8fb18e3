"""Downloads the images that replies link to, from addresses that these replies may point to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from custom_models.model_utils.image_replies import checked
from imageevalkit.api.client import http_client, in_time, read_body
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind, asked_wait
from imageevalkit.api.settings import RequestSettings
from imageevalkit.common.images import EncodedImage
from imageevalkit.common.machine import on_cpu

if TYPE_CHECKING:
    import httpx2

_PUBLIC = "public"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# proxies such as Clash return these addresses for every name (a block for benchmarks, RFC 2544)
_STAND_INS = ipaddress.ip_network("198.18.0.0/15")
# some Python versions call this network global, but a cloud serves machine credentials at 192.0.0.192
_PROTOCOL = ipaddress.ip_network("192.0.0.0/24")


class NotAllowed(Exception):
    """A reply points to an address of a kind that is not allowed. The text names the address."""


def kind_of(address: str) -> str:
    """Returns "public", "loopback", "link-local", "private", "stand-in" or "special" for an IP address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    site_local = False
    if isinstance(ip, ipaddress.IPv6Address):
        site_local = ip.is_site_local
        # some IPv6 addresses only wrap an IPv4 address
        inner = ipaddress.IPv4Address(int(ip) % 2**32) if ip in _NAT64 else ip.ipv4_mapped or ip.sixtofour
        ip = inner or (ip.teredo[1] if ip.teredo else ip)
    if ip.is_loopback or ip.is_unspecified:  # 0.0.0.0 is this machine too
        return "loopback"
    if ip.is_link_local:
        return "link-local"
    if ip in _STAND_INS:
        return "stand-in"
    if ip.is_multicast or ip.is_reserved:
        return "special"
    return _PUBLIC if ip.is_global and not site_local and ip not in _PROTOCOL else "private"


class Places:
    """Checks the addresses that the replies of the endpoint at ``base_url`` point to.

    A reply must not make this machine send requests to its own services or to its network. A non-public
    address is therefore allowed only if the endpoint's address is of the same kind. The address of the actual
    connection decides. Names are also resolved before, to open no connection in vain, and for proxies, which
    resolve names themselves.
    """

    def __init__(self, base_url: str) -> None:
        import httpx2

        self._host = httpx2.URL(base_url).raw_host.decode("ascii")
        self._connected = ""

    async def learn(self, request: httpx2.Request) -> None:
        """Makes the connection of ``request`` to the endpoint record the kind of the endpoint's address."""

        async def look(address: str, stream: Any) -> None:
            self._connected = kind_of(address)

        if not self._connected:
            request.extensions = {**request.extensions, **_on_connection(self._host, look)}

    async def guard(self, request: httpx2.Request) -> None:
        """Checks the addresses of ``request`` now, and the address of its connection later.

        Raises NotAllowed: an address is of another kind than the endpoint's.
        """
        url = request.url
        host = url.raw_host.decode("ascii")

        async def look(address: str, stream: Any) -> None:
            try:
                await self._check(url.host, address)
            except NotAllowed:
                await stream.aclose()
                raise

        for address in await _addresses(host):
            await self._check(url.host, address)
        request.extensions = {**request.extensions, **_on_connection(host, look)}

    async def _check(self, host: str, address: str) -> None:
        kind, own = kind_of(address), self._connected
        if kind == _PUBLIC:
            return
        if not own:
            # behind a proxy the connection shows no address: use the local DNS, else assume a public one
            kinds = {kind_of(each) for each in await _addresses(self._host)}
            own = kinds.pop() if len(kinds) == 1 else _PUBLIC
        if kind != own:
            where = host if host == address else f"{host} ({address})"
            raise NotAllowed(
                f"the image from {where} is not fetched: that is a {kind} address, and the endpoint is at a {own} one "
                "(response_format=b64_json asks many endpoints for the image itself)"
            )


def _on_connection(host: str, look: Callable[[str, Any], Awaitable[None]]) -> dict[str, Any]:
    """Returns an httpx2 extension that calls ``look`` for a new direct connection to ``host``."""
    asked = ""

    async def trace(event: str, info: dict[str, Any]) -> None:
        nonlocal asked
        if event == "connection.connect_tcp.started":
            asked = info["host"]
        elif event == "connection.connect_tcp.complete" and asked == host:
            stream = info["return_value"]
            await look(stream.get_extra_info("server_addr")[0], stream)

    return {"trace": trace}


async def _addresses(host: str) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in found]


LARGEST_IMAGE = 100 * 2**20
"""Bytes. An image of 4096² pixels that does not compress has half of it."""
# The image exists and may have been billed: a second download is cheaper than a new image.
_TRIES = 3
_MAY_PASS = frozenset({408, 425, 429})
_MOST_REDIRECTS = 20


class Downloads:
    """Downloads images of the replies of ``endpoint``."""

    def __init__(self, endpoint: Endpoint, settings: RequestSettings) -> None:
        self._endpoint, self._settings = endpoint, settings
        self.places = Places(endpoint.base_url)
        self._client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        """Closes the connections. A later download opens new ones."""
        client, self._client = self._client, None
        if client and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def image(self, link: str) -> EncodedImage | Failure:
        """Downloads the complete image at ``link``, which comes from a reply of the endpoint.

        Follows redirects to allowed addresses only. A redirect to another origin does not get the key. Returns a
        Failure: LOST after failed downloads, ITEM if a new image would fail too, TRANSIENT if ``link`` is no URL.
        """
        import httpx2

        base, timeout = httpx2.URL(self._endpoint.base_url), self._settings.timeout
        try:
            url = base.join(link)
        except httpx2.InvalidURL:
            return Failure(Kind.TRANSIENT, "the reply holds an image URL that is no URL")
        if url.scheme not in ("http", "https"):
            return Failure(Kind.TRANSIENT, f"the reply holds an image URL of scheme '{url.scheme}'")
        # some gateways require the key for their own files; no other host may get the key
        same_origin = (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)
        headers = {"Authorization": f"Bearer {self._endpoint.key}"} if same_origin else {}

        async def fetch() -> EncodedImage | Failure:
            # connections cannot move to another loop
            if self._client is None or self._loop is not asyncio.get_running_loop():
                self._loop = asyncio.get_running_loop()
                self._client = http_client(timeout, httpx2.create_ssl_context())
                self._client.event_hooks = {"request": [self.places.guard]}
            client = self._client  # close() may clear the attribute during a redirect
            request = client.build_request("GET", url, headers=headers)
            try:
                # not by the client, which would read each body of any length
                for _ in range(_MOST_REDIRECTS):
                    response = await client.send(request, stream=True)
                    try:
                        if response.next_request is None:
                            return await _image_in(response)
                        request = response.next_request
                    finally:
                        await response.aclose()
            except NotAllowed as error:
                return Failure(Kind.ITEM, str(error))
            return Failure(Kind.TRANSIENT, "too many redirects")

        clock = asyncio.get_running_loop().time
        until = clock() + self._settings.max_elapsed
        tries = 1
        while isinstance(result := await in_time(fetch, timeout), Failure) and result.kind is not Kind.ITEM:
            wait = self._settings.delay(tries, result.retry_after)
            if not result.kind.retried or tries == _TRIES or clock() + wait > until:
                # names only the host: the query of a signed URL is secret
                return Failure(Kind.LOST, f"the image from {url.host} could not be downloaded: {result.text}")
            tries += 1
            await asyncio.sleep(wait)
        return result


async def _image_in(response: httpx2.Response) -> EncodedImage | Failure:
    status = response.status_code
    if status != 200:
        gone = 400 <= status < 500 and status not in _MAY_PASS
        text, wait = f"HTTP {status}", asked_wait(response.headers)
        return Failure(Kind.PERMANENT if gone else Kind.TRANSIENT, text, wait)
    image, whole = await read_body(response, LARGEST_IMAGE)
    if not whole:
        host = response.url.host
        return Failure(Kind.ITEM, f"the image from {host} is larger than {LARGEST_IMAGE >> 20} MiB")
    return await on_cpu(checked, image)
