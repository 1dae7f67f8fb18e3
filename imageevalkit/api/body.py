"""The bytes of a reply, within bounds; this module needs httpx2 at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx2


class Body(NamedTuple):
    """The bytes of a body; not ``whole``: there are more."""

    data: bytes
    whole: bool


async def read_body(response: httpx2.Response, longest: int) -> Body:
    """At most ``longest`` bytes of a streamed ``response``, inflated. Raises httpx2.HTTPError: it did not come."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    # gigabytes may inflate to nothing
    response.stream = _Bounded(response.stream, longest)
    pieces: list[bytes] = []
    length = 0
    try:
        async for piece in response.aiter_bytes():  # of 1 MiB at most, however much a few bytes inflate to
            pieces.append(piece[: longest - length])
            length += len(piece)
            if length > longest:
                return Body(b"".join(pieces), whole=False)
    except _TooLong:
        return Body(b"".join(pieces), whole=False)
    return Body(b"".join(pieces), whole=True)


class _TooLong(Exception):
    pass


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, longest: int) -> None:
        self._stream, self._longest = stream, longest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for piece in self._stream:
            length += len(piece)
            if length > self._longest:
                raise _TooLong
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
