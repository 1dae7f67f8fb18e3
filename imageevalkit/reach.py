"""Whether there is a way to a host at all, asked once: without one, hours of retries for each file tell nothing new."""

from __future__ import annotations

import functools
import os
import socket
import time
from urllib.parse import urlsplit

# a resolver may be away for a moment
_PAUSE = 2.0


def why_unreachable(url: str) -> str:
    """``"huggingface.co cannot be reached (Name or service not known)"``; empty where its host has an address.

    Behind a proxy nothing is asked: the proxy looks hosts up.
    """
    if any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") for name in os.environ):
        return ""
    return _why(urlsplit(url).hostname or "")


@functools.cache
def _why(host: str) -> str:
    for last in (False, True):
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            if last:
                return f"{host} cannot be reached ({error.strerror or error})"
            time.sleep(_PAUSE)
        else:
            break
    return ""
