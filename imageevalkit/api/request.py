"""One HTTP request to an endpoint."""

from __future__ import annotations

from typing import NamedTuple


class Request(NamedTuple):
    """What is sent for an item: a path below the base URL, the body and its MIME type.

    A ``body`` in pieces is sent one after the other, never joined: pieces of several requests may be the same.
    """

    path: str
    body: bytes | tuple[bytes, ...]
    mime_type: str
