"""Proxies and certificates that the environment names, and the URLs that need no proxy."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import ipaddress
import os
from urllib.parse import urlsplit

from imageevalkit.common.errors import UserError

_SCHEMES = ("http", "https", "socks5", "socks5h")


def proxy_of(url: str) -> str | None:
    """Returns the URL of the proxy for ``url``, or None if requests go there directly.

    NO_PROXY wins over every proxy. A loopback address has no proxy: the proxy would look on its own machine.
    """
    parts, proxies = urlsplit(url), _proxies()
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    if is_on_this_machine(url) or any(_names(e, host, port) for e in proxies.get("no", "").split(",")):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def _proxies() -> dict[str, str]:
    # imported here: with ssl and http.client it takes a tenth of the start time of a process without requests
    from urllib.request import getproxies

    return getproxies()


def is_on_this_machine(url: str) -> bool:
    """Returns whether the host of ``url`` is ``localhost`` or a loopback address."""
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:  # an unclosed bracket
        return False
    with contextlib.suppress(ValueError):
        ip = ipaddress.ip_address(host)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        return ip.is_loopback or ip.is_unspecified  # 0.0.0.0 is this machine too
    return host == "localhost" or host.endswith(".localhost")


def _names(entry: str, host: str, port: int | None) -> bool:
    """Returns whether ``entry`` of NO_PROXY names ``host``.

    An entry is ``*``, a network, an address, or a name. A name also stands for all its subdomains.
    """
    entry = entry.strip().lower()
    if entry in ("", "*"):
        return bool(entry)
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    name, _, of_port = entry.removeprefix("*").lstrip(".").partition(":")
    return (host == name or host.endswith(f".{name}")) and of_port in ("", str(port))


def check_network(url: str) -> None:
    """Checks the certificates and the proxy that the environment names for ``url``. Raises UserError."""
    for name, is_there in (("SSL_CERT_FILE", os.path.isfile), ("SSL_CERT_DIR", os.path.isdir)):
        if path := os.environ.get(name):
            if not is_there(path):
                raise UserError(f"{name}: {path} does not exist: correct or unset the variable")
            if name == "SSL_CERT_FILE" and (why := _why_unreadable(path)):
                raise UserError(f"{name}: {path} cannot be used ({why}): correct or unset the variable")
            break  # httpx2 reads the folder only if no file is named
    check_proxy(url)


@functools.cache
def _why_unreadable(path: str) -> str:
    import ssl  # here for the same reason as in _proxies

    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:  # ssl.SSLError is a subclass
        return str(error.strerror or error)
    return ""


def check_proxy(url: str) -> None:
    """Checks the proxy that the environment names for ``url``. Raises UserError: it cannot be used."""
    proxy = proxy_of(url)
    if proxy is None:
        return
    scheme = urlsplit(url).scheme
    name, host = f"{scheme if _proxies().get(scheme) else 'all'}_proxy".upper(), urlsplit(url).hostname
    kind = proxy.partition("://")[0].lower()
    if kind not in _SCHEMES:
        raise UserError(
            f"{name}: no proxy of the kind '{kind}' can be used, only {', '.join(_SCHEMES)}: correct the variable, or "
            f"add {host} to NO_PROXY"
        )
    try:
        is_whole = bool(urlsplit(proxy).hostname) and urlsplit(proxy).port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise UserError(f"{name}: it must look like {kind}://host:port")
    if kind.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise UserError(
            f"{name}: a SOCKS proxy needs the package 'socksio': pip install -r requirements/driver.txt"
        )
