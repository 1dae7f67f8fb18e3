"""Getting the image that a reply only points to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from imageevalkit.api.failures import Failure, Kind, classify_connection
from imageevalkit.api.image_reply import prove
from imageevalkit.api.limiter import Limiter
from imageevalkit.api.rate_headers import asked_wait
from imageevalkit.api.retry import RetryPolicy, retry
from imageevalkit.cpu import on_cpu

if TYPE_CHECKING:
    import httpx2

_LARGEST_IMAGE = 100 * 2**20
# The image exists and may have been billed: asking for it again is cheaper than asking for a new one.
_TRIES = 3
_MAY_PASS = frozenset({408, 425, 429})


async def download_image(
    client: httpx2.AsyncClient, url: httpx2.URL, headers: dict[str, str], timeout: float, policy: RetryPolicy
) -> bytes | Failure:
    """The bytes at ``url``, proven to be a whole image; each try takes at most ``timeout`` seconds.

    A failure is a LOST, or an ITEM where a new image would be no better.
    ``client`` follows redirects and drops an ``Authorization`` among ``headers`` where one leaves the origin.
    """

    async def attempt() -> bytes | Failure:
        try:
            return await asyncio.wait_for(_fetch(client, url, headers), timeout)
        except asyncio.TimeoutError:
            return Failure(Kind.TRANSIENT, f"the image from {url.host} did not arrive within {timeout:g} s")

    # a limiter of its own: the file host's troubles are not the endpoint's
    tried = await retry(
        attempt, policy._replace(max_attempts=_TRIES), Limiter(1, max_outage=policy.max_elapsed)
    )
    result = tried.result
    if isinstance(result, Failure) and result.kind is not Kind.ITEM:
        return Failure(Kind.LOST, result.text)
    return result


async def _fetch(client: httpx2.AsyncClient, url: httpx2.URL, headers: dict[str, str]) -> bytes | Failure:
    import httpx2

    # messages name the host only: the query of a signed URL is a secret
    data = bytearray()
    try:
        async with client.stream("GET", url, headers=headers) as response:
            status = response.status_code
            if status != 200:
                gone = 400 <= status < 500 and status not in _MAY_PASS
                return Failure(
                    Kind.PERMANENT if gone else Kind.TRANSIENT,
                    f"the image from {url.host} could not be had: HTTP {status}",
                    asked_wait(response.headers),
                )
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > _LARGEST_IMAGE:
                    return Failure(
                        Kind.ITEM, f"the image from {url.host} is larger than {_LARGEST_IMAGE >> 20} MiB"
                    )
    except httpx2.HTTPError as error:
        # the endpoint itself answered, so a dead file host is never UNREACHABLE
        text = f"the image from {url.host} could not be had: {classify_connection(error).text}"
        return Failure(Kind.TRANSIENT, text)
    image = bytes(data)
    return await on_cpu(prove, image) or image
