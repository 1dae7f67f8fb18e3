"""Getting the image that a reply only points to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from imageevalkit.api.clients import OUT_OF_FILES, Clients, Patience
from imageevalkit.api.failures import Failure, Kind, classify_connection
from imageevalkit.api.image_reply import LARGEST_IMAGE, prove
from imageevalkit.api.limiter import Limiter
from imageevalkit.api.places import NotAllowed
from imageevalkit.api.rate_headers import asked_wait
from imageevalkit.api.retry import RetryPolicy, retry
from imageevalkit.cpu import on_cpu
from imageevalkit.open_files import are_used_up

if TYPE_CHECKING:
    import httpx2

# The image exists and may have been billed: asking for it again is cheaper than asking for a new one.
_TRIES = 3
_MAY_PASS = frozenset({408, 425, 429})
_MOST_REDIRECTS = 20


async def download_image(
    clients: Clients, url: httpx2.URL, headers: dict[str, str], timeout: float, policy: RetryPolicy
) -> bytes | Failure:
    """The bytes at ``url``, proven to be a whole image; each try takes at most ``timeout`` seconds.

    A failure is a LOST, or an ITEM where a new image would be no better. Redirects are followed, to allowed places
    only; an ``Authorization`` among ``headers`` is dropped where one leaves the origin.
    """

    async def attempt() -> bytes | Failure:
        patience = Patience()
        try:
            return await asyncio.wait_for(patience.connected(lambda: _fetch(clients, url, headers)), timeout)
        except asyncio.TimeoutError:
            if patience.in_vain:
                return Failure(Kind.TRANSIENT, f"the image from {url.host} could not be had: {OUT_OF_FILES}")
            return Failure(Kind.TRANSIENT, f"the image from {url.host} did not arrive within {timeout:g} s")

    # a limiter of its own: the file host's troubles are not the endpoint's
    tried = await retry(
        attempt, policy._replace(max_attempts=_TRIES), Limiter(1, max_outage=policy.max_elapsed)
    )
    result = tried.result
    if isinstance(result, Failure) and result.kind is not Kind.ITEM:
        return Failure(Kind.LOST, result.text)
    return result


async def _fetch(clients: Clients, url: httpx2.URL, headers: dict[str, str]) -> bytes | Failure:
    """Messages name the host only: the query of a signed URL is a secret."""
    import httpx2

    client = clients.files
    request: httpx2.Request | None = client.build_request("GET", url, headers=headers)
    redirects = 0
    try:
        while request and redirects <= _MOST_REDIRECTS:
            await clients.places.check(request.url)
            request.extensions = {**request.extensions, **clients.places.guarding(request.url)}
            response = await client.send(request, stream=True)
            try:
                request = response.next_request
                if request is None:
                    return await _image_in(response)
            finally:
                await response.aclose()
            redirects += 1
    except NotAllowed as error:
        return Failure(Kind.ITEM, str(error))
    except httpx2.ConnectError as error:
        if are_used_up(error):
            raise
        return _unreachable(url, error)
    except httpx2.HTTPError as error:
        return _unreachable(url, error)
    return Failure(Kind.TRANSIENT, f"the image from {url.host} could not be had: too many redirects")


def _unreachable(url: httpx2.URL, error: httpx2.HTTPError) -> Failure:
    # the endpoint itself answered, so a dead file host is never UNREACHABLE
    text = f"the image from {url.host} could not be had: {classify_connection(error).text}"
    return Failure(Kind.TRANSIENT, text)


async def _image_in(response: httpx2.Response) -> bytes | Failure:
    from imageevalkit.api.body import read_body

    status, host = response.status_code, response.url.host
    if status != 200:
        gone = 400 <= status < 500 and status not in _MAY_PASS
        return Failure(
            Kind.PERMANENT if gone else Kind.TRANSIENT,
            f"the image from {host} could not be had: HTTP {status}",
            asked_wait(response.headers),
        )
    image, whole = await read_body(response, LARGEST_IMAGE)
    if not whole:
        return Failure(Kind.ITEM, f"the image from {host} is larger than {LARGEST_IMAGE >> 20} MiB")
    return await on_cpu(prove, image) or image
