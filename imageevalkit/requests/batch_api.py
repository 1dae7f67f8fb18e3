"""The files and batches of an endpoint that has a Batch API, and what the lines of their results mean.

Source: https://platform.openai.com/docs/api-reference/batch
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from imageevalkit.requests.client import Clients, check_packages
from imageevalkit.requests.endpoint import Endpoint
from imageevalkit.requests.failures import Failure, Kind, classify_status
from imageevalkit.secrets import one_line

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import Batch

T = TypeVar("T")

OURS = "ImageEvalKit"
_UPLOAD_TIMEOUT = 3600.0  # seconds
_LONGEST_BACKOFF = 60.0
_CLOCKS_DIFFER = 86_400  # seconds by which the provider's may be behind
# what an endpoint without a Batch API, or without one for this model, answers; or without what is asked for
_NOT_THERE = frozenset({400, 404, 405, 410, 415, 422, 501})
_NO_ADDRESS = frozenset({404, 405})
_ID = re.compile(rb'"custom_id"\s*:\s*"([^"\\]{1,100})"')
_ID_WITHIN = 4096  # bytes of a line


class BatchFailed(Exception):
    """No line will come of this request in this run. DOWN: a later run can go on; ``gone``: it was there once."""

    def __init__(self, text: str, kind: Kind = Kind.PERMANENT, gone: bool = False) -> None:
        super().__init__(text)
        self.kind, self.gone = kind, gone


class Line(NamedTuple):
    """What a batch says of a request: where in which file."""

    file: Path
    offset: int
    length: int


class Desk:
    """The files and batches of an endpoint, asked again where that may help, while it is down for ``max_outage``
    seconds at most. Raises UserError: the official client is not installed."""

    def __init__(self, endpoint: Endpoint, max_outage: float, timeout: float) -> None:
        check_packages()
        self.endpoint, self._max_outage = endpoint, max_outage
        self._clients = Clients(endpoint, 1, timeout, official=True)
        self._api: AsyncOpenAI = self._clients.official(self._clients.plain()).with_options(timeout=timeout)

    async def close(self) -> None:
        await self._api.close()
        await self._clients.close()

    async def _asked(
        self,
        ask: Callable[[], Awaitable[T]],
        lost: Callable[[], Awaitable[T | None]] | None = None,
        known: str = "",
    ) -> T:
        """What ``ask`` gives; ``lost`` looks whether a request without a good reply has done its work all the same.

        ``known``: what the endpoint had before, so that it has a Batch API.
        """
        import httpx2
        import openai

        down_since, wait = 0.0, 1.0
        while True:
            try:
                return await ask()
            except openai.APIStatusError as error:
                status, text = error.status_code, f"HTTP {error.status_code}: {one_line(error)}"
                key = self.endpoint.key_variable
                failure = classify_status(status, error.response.headers, error.response.text, False, key)
                if status in _NOT_THERE:
                    # that nothing is at the address of batches says nothing of the model or of BASE_URL
                    words = "" if status in _NO_ADDRESS else failure.text
                    raise self._not_there(known, f"HTTP {status}" if known else words) from None
                if not failure.kind.retried:
                    raise BatchFailed(self.endpoint.redact(failure.text)) from None
                wait = max(wait, min(failure.retry_after or 0.0, _LONGEST_BACKOFF))
            except (openai.APIConnectionError, httpx2.HTTPError, ssl.SSLError) as error:
                text = one_line(error.__cause__ or error) or type(error).__name__
            except (openai.APIError, AttributeError, TypeError, ValueError):
                # gateways answer what they do not know with a page of their own, and a 200
                text = "the reply (HTTP 200) is none of a Batch API"
                if not (lost or known):
                    raise self._not_there(known, text) from None
            now = time.monotonic()
            down_since = down_since or now
            if now - down_since > self._max_outage:
                words = f"the Batch API has been down for {duration(self._max_outage)}: {text}"
                raise BatchFailed(self.endpoint.redact(words), Kind.DOWN)
            await asyncio.sleep(wait)
            wait = min(_LONGEST_BACKOFF, 2 * wait)
            if lost:
                try:
                    found = await lost()
                except BatchFailed as error:  # it may be there all the same
                    error.kind = Kind.DOWN
                    raise
                if found is not None:
                    return found

    def _not_there(self, known: str, words: str) -> BatchFailed:
        host = self.endpoint.host
        missing = f"no {known} for this key" if known else "no Batch API for this model: leave out --batch"
        text = f"{host} has {missing}" + f" ({words})" * bool(words)
        return BatchFailed(self.endpoint.redact(text), gone=bool(known))

    async def upload(self, path: Path) -> str:
        """The id of the file; one that was lost on its way costs nothing."""

        async def send() -> str:
            with path.open("rb") as file:
                sent = await self._api.files.create(
                    file=(f"{OURS}-{path.name}", file), purpose="batch", timeout=_UPLOAD_TIMEOUT
                )
            return sent.id

        return await self._asked(send)

    async def create(self, file: str, path: Any, about: Mapping[str, str], since: float) -> Batch:
        """The batch of an uploaded file: one, whatever is lost on the way."""

        async def create() -> Batch:
            batch = await self._api.batches.create(
                input_file_id=file,
                endpoint=path,
                completion_window="24h",
                metadata=dict(about),
                extra_headers={"Idempotency-Key": about["set"]},
            )
            return _read(batch)

        return await self._asked(create, lambda: self.find(about["set"], since))

    async def find(self, set_id: str, since: float) -> Batch | None:
        """The batch whose metadata name the set, prepared at ``since``, if there is one."""

        async def look() -> list[Batch]:
            async for batch in self._api.batches.list(limit=100):
                if (batch.metadata or {}).get("set") == set_id:
                    return [batch]
                if batch.created_at < since - _CLOCKS_DIFFER:  # the newest come first
                    break
            return []

        found = await self._asked(look, known="list of batches")
        return found[0] if found else None

    async def retrieve(self, batch: str) -> Batch:
        """How far it is."""

        async def look() -> Batch:
            return _read(await self._api.batches.retrieve(batch))

        return await self._asked(look, known=batch)

    async def download(self, file: str, path: Path) -> None:
        """Have ``path`` be that file, or not be there."""

        async def get() -> None:
            part = path.with_suffix(".part")
            async with self._api.files.with_streaming_response.content(file) as response:
                with part.open("wb") as out:
                    async for piece in response.iter_bytes():
                        out.write(piece)
                    out.flush()
                    os.fsync(out.fileno())
            part.rename(path)

        path.parent.mkdir(parents=True, exist_ok=True)
        await self._asked(get, known=file)


def _read(batch: Batch) -> Batch:
    """The official client takes whatever a reply holds. Raises TypeError: it is no batch."""
    if not (isinstance(batch.id, str) and isinstance(batch.status, str)):
        raise TypeError
    return batch


def lines_of(path: Path) -> Iterator[tuple[str, Line]]:
    """The id and the place of each line of a result file, however long it is."""
    with path.open("rb") as file:
        offset, head, length = 0, b"", 0
        while piece := file.readline(1 << 20):
            if not length:
                head = piece[:_ID_WITHIN]
            length += len(piece)
            if piece.endswith(b"\n") or len(piece) < 1 << 20:
                if found := _ID.search(head):
                    yield found[1].decode(errors="replace"), Line(path, offset, length)
                offset, head, length = offset + length, b"", 0


def _object_at(line: Line) -> dict[str, Any] | None:
    with line.file.open("rb") as file:
        file.seek(line.offset)
        data = file.read(line.length)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read(line: Line, longest: int, proven: Callable[[], bool], key: str) -> bytes | Failure:
    """The body of the reply in the ``line``, or what it means: a reply there means what it would mean by itself.

    ``proven`` and ``key`` as in :func:`classify_status`. Takes CPU time.
    """
    if line.length > longest:
        return Failure(Kind.ITEM, f"the reply is larger than {longest >> 20} MiB", maybe_billed=True)
    said = _object_at(line)
    if said is None:
        text = "the line of the batch's result is no JSON object"
        return Failure(Kind.TRANSIENT, text, maybe_billed=True)
    response, error = said.get("response"), said.get("error")
    status = response.get("status_code") if isinstance(response, dict) else None
    body = json.dumps(response.get("body") if isinstance(response, dict) else None)
    if isinstance(status, int) and 200 <= status < 300:
        return body.encode()
    if isinstance(status, int) and status >= 300:
        return classify_status(status, {}, body, proven(), key)
    error = error if isinstance(error, dict) else {}
    text = f"not done by its batch: {error.get('code') or 'no code'}: {error.get('message') or 'no words'}"
    return Failure(Kind.TRANSIENT, one_line(text, 300))


def was_cancelled(line: Line) -> bool:
    """Whether it only says that its batch was cancelled before."""
    error = (_object_at(line) or {}).get("error") if line.length < _ID_WITHIN else None
    return isinstance(error, dict) and error.get("code") == "batch_cancelled"


def why_missing(batch: Batch) -> Failure | BatchFailed:
    """What it means that an ended ``batch`` has no line of a request."""
    if batch.status == "failed":
        errors = batch.errors.data or [] if batch.errors else []
        words = one_line("; ".join(f"{e.code}: {e.message}" for e in errors[:3]) or "no reason is told", 300)
        # so many tokens of an account may wait at a time: OpenAI says so after it has taken the batch
        if any("token_limit" in (e.code or "") for e in errors):
            text = f"{batch.id} has to wait for others: {words}; the same command submits it again"
            return BatchFailed(text, Kind.DOWN)
        return BatchFailed(f"{batch.id} was not accepted: {words}")
    if batch.status == "cancelled":
        text = f"{batch.id} was cancelled at the provider: the same command submits what is left"
        return BatchFailed(text, Kind.DOWN)
    return Failure(Kind.TRANSIENT, f"{batch.id} {batch.status} without a line for it")


def duration(seconds: float) -> str:
    minutes = int(seconds) // 60
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
