"""Where on the network an address is, and whether the replies of an endpoint may send us there.

A reply names the URL of its image. Whoever wrote it must not make this machine ask its own services or those of its
network: such an address is asked only where the endpoint itself is reached at one of the same kind. What counts is the
address of the very connection; names are looked up before, so that none is opened in vain, and for a proxy, which
looks them up itself.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PUBLIC = "public"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# what proxies such as Clash give out for every name (a block for benchmarks, RFC 2544)
_STAND_INS = ipaddress.ip_network("198.18.0.0/15")
# not all versions of Python know: a cloud serves its machines' credentials at 192.0.0.192
_PROTOCOL = ipaddress.ip_network("192.0.0.0/24")


class NotAllowed(Exception):
    """The endpoint is not at an address of this kind; the text says where the URL leads."""


def kind_of(address: str) -> str:
    """What kind of place ``address`` is: "public", "loopback", "link-local", "private", "stand-in" or "special"."""
    ip = _reached(ipaddress.ip_address(address.partition("%")[0]))
    if ip.is_loopback or ip.is_unspecified:  # 0.0.0.0 is this machine too
        return "loopback"
    if ip.is_link_local:
        return "link-local"
    if ip in _STAND_INS:
        return "stand-in"
    if ip.is_multicast or ip.is_reserved:
        return "special"
    site_local = isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local
    return _PUBLIC if ip.is_global and not site_local and ip not in _PROTOCOL else "private"


def _reached(ip: _Address) -> _Address:
    """The address that is reached by way of one that only wraps it."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) % 2**32)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)


class Places:
    """The kind of place that the endpoint at ``base_url`` is, and with it where its replies may point."""

    def __init__(self, base_url: str) -> None:
        import httpx2

        self._host = httpx2.URL(base_url).raw_host.decode("ascii")
        self._connected = ""

    def learning(self) -> dict[str, Any]:
        """The extensions of a request to the endpoint, whose connection shows where that is."""
        return {} if self._connected else _on_connection(self._host, self._learn)

    async def _learn(self, address: str, stream: Any) -> None:
        self._connected = kind_of(address)

    async def check(self, url: httpx2.URL) -> None:
        """Raises NotAllowed where ``url`` leads to what must not be asked, as far as its name is known here."""
        for address in await _addresses(url.raw_host.decode("ascii")):
            await self._check(url.host, address)

    def guarding(self, url: httpx2.URL) -> dict[str, Any]:
        """The extensions of a request for ``url``: its connection is closed, with NotAllowed, where it must not be."""

        async def guard(address: str, stream: Any) -> None:
            try:
                await self._check(url.host, address)
            except NotAllowed:
                await stream.aclose()
                raise

        return _on_connection(url.raw_host.decode("ascii"), guard)

    async def _check(self, host: str, address: str) -> None:
        kind = kind_of(address)
        if kind == _PUBLIC or kind == (own := await self._kind()):
            return
        where = host if host == address else f"{host} ({address})"
        raise NotAllowed(
            f"the image from {where} is not fetched: that is a {kind} address, and the endpoint is at a {own} one "
            "(response_format=b64_json asks many endpoints for the image itself)"
        )

    async def _kind(self) -> str:
        if self._connected:
            return self._connected
        # through a proxy: what its name says here, if it says anything
        kinds = {kind_of(address) for address in await _addresses(self._host)}
        return kinds.pop() if len(kinds) == 1 else _PUBLIC


def _on_connection(host: str, look: Callable[[str, Any], Awaitable[None]]) -> dict[str, Any]:
    """The extension by which httpx2 tells of a new connection to ``host`` itself, no proxy: its address and stream."""
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
    """Those of ``host``; none where its name is not known here."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in found]
