"""Uploads files and creates batches through an endpoint's Batch API, and reads the result lines.

Source: https://platform.openai.com/docs/api-reference/batch
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from imageevalkit.api.client import http_client, official_client
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind, classify_connection, classify_status
from imageevalkit.common.redaction import one_line

if TYPE_CHECKING:
    from openai.types import Batch

T = TypeVar("T")

OURS = "ImageEvalKit"
_UPLOAD_TIMEOUT = 3600.0  # seconds
_LONGEST_BACKOFF = 60.0
_CLOCKS_DIFFER = 86_400  # seconds: the provider's clock may be behind by so much
_SHOWN_WITHIN = 60.0  # seconds within which a provider shows a new batch
# An endpoint replies so if it has no Batch API, none for this model, or not the named batch.
_NOT_THERE = frozenset({400, 404, 405, 410, 415, 422, 501})
_ID = re.compile(rb'"custom_id"\s*:\s*"([0-9a-f]{40})"')
# Error codes of requests that the provider has not started: https://platform.openai.com/docs/guides/batch
_NOT_STARTED = frozenset({"batch_expired", "batch_cancelled"})


class BatchFailed(Exception):
    """The request gets no result line in this run.

    ``kind`` DOWN: a later run can continue. ``gone``: the provider does not show a batch that may exist.
    """

    def __init__(self, text: str, kind: Kind = Kind.PERMANENT, gone: bool = False) -> None:
        super().__init__(text)
        self.kind, self.gone = kind, gone


class Unclear(Exception):
    """The request failed, but the endpoint may have created the batch."""


class Line(NamedTuple):
    """The place of a result line."""

    file: Path
    offset: int
    length: int


class BatchClient:
    """A client for the files and batches of an endpoint.

    It repeats requests while the endpoint is down, for at most ``max_outage`` seconds.
    """

    def __init__(self, endpoint: Endpoint, max_outage: float, timeout: float) -> None:
        import httpx2

        self.endpoint, self.max_outage = endpoint, max_outage
        self.patience = min(_SHOWN_WITHIN, max_outage)
        http = http_client(timeout, httpx2.create_ssl_context())
        self._api = official_client(endpoint, http).with_options(timeout=timeout)

    async def close(self) -> None:
        await self._api.close()

    async def _asked(
        self, ask: Callable[[], Awaitable[T]], known: str = "", patience: float = 0.0, once: bool = False
    ) -> T:
        """Returns the result of ``ask``, which is called again while the endpoint is down.

        ``known`` names an object that the endpoint has or may have. The endpoint may hide the object for
        ``patience`` seconds.

        Raises BatchFailed. Raises Unclear only if ``once``.
        """
        import httpx2
        import openai

        down_since, wait = 0.0, 1.0
        while True:
            bound, is_hidden = self.max_outage, False
            try:
                return await ask()
            except openai.APIStatusError as error:
                status, reply = error.status_code, error.response
                failure = classify_status(
                    status, reply.headers, reply.text, False, self.endpoint.key_variable
                )
                if status in _NOT_THERE and not known:
                    # a missing address says nothing about the model or BASE_URL
                    raise self._not_there("", "" if status in (404, 405) else failure.text) from None
                if status in _NOT_THERE:
                    bound, is_hidden, failure = patience, True, Failure(Kind.TRANSIENT, f"HTTP {status}")
                if not failure.kind.retried:
                    raise BatchFailed(self.endpoint.redact(failure.text)) from None
                wait = max(wait, min(failure.retry_after or 0.0, _LONGEST_BACKOFF))
            except LookupError as error:
                bound, is_hidden, failure = patience, True, Failure(Kind.TRANSIENT, str(error))
            except (openai.APIConnectionError, httpx2.HTTPError, ssl.SSLError) as error:
                failure = classify_connection(error.__cause__ or error)
            except (openai.APIError, AttributeError, TypeError, ValueError):
                # some gateways reply to an unknown address with HTTP 200 and their own page
                failure = Failure(Kind.TRANSIENT, "the reply (HTTP 200) is not from a Batch API")
                if not (known or once):
                    raise self._not_there("", failure.text) from None
            if once and failure.kind is Kind.TRANSIENT:
                raise Unclear(self.endpoint.redact(failure.text)) from None
            now = time.monotonic()
            down_since = down_since or now
            if now - down_since >= bound:
                if is_hidden:
                    raise self._not_there(known, failure.text)
                words = f"the Batch API has been down for {duration(bound)}: {failure.text}"
                raise BatchFailed(self.endpoint.redact(words), Kind.DOWN)
            await asyncio.sleep(wait)
            wait = min(_LONGEST_BACKOFF, 2 * wait)

    def _not_there(self, known: str, words: str) -> BatchFailed:
        missing = f"no {known} for this key" if known else "no Batch API for this model: leave out --batch"
        text = f"{self.endpoint.host} has {missing}" + f" ({words})" * bool(words)
        return BatchFailed(self.endpoint.redact(text), gone=bool(known))

    async def upload(self, path: Path) -> str:
        """Uploads the file and returns its id. A lost upload costs nothing."""

        async def send() -> str:
            with path.open("rb") as file:
                sent = await self._api.files.create(
                    file=(f"{OURS}-{path.name}", file), purpose="batch", timeout=_UPLOAD_TIMEOUT
                )
            if not sent.id:
                raise ValueError("the reply names no file")
            return sent.id

        return await self._asked(send)

    async def create(self, file: str, path: Any, about: Mapping[str, str]) -> Batch:
        """Creates the batch of an uploaded file. Raises Unclear: the batch may exist now."""

        async def send() -> Batch:
            batch = await self._api.batches.create(
                input_file_id=file,
                endpoint=path,
                completion_window="24h",
                metadata=dict(about),
                extra_headers={"Idempotency-Key": about["set"]},
            )
            return _checked(batch)

        return await self._asked(send, once=True)

    async def find(self, set_id: str, file: str, since: float) -> Batch:
        """Returns the set's batch, found by ``set_id`` or ``file``. It is not older than ``since``."""

        async def look() -> Batch:
            async for batch in self._api.batches.list(limit=100):
                if is_of(batch, set_id, file):
                    return _checked(batch)
                if (batch.created_at or since) < since - _CLOCKS_DIFFER:  # the newest come first
                    break
            raise LookupError("its list shows none")

        return await self._asked(look, f"batch of {file}", self.patience)

    async def retrieve(self, batch: str, patience: float) -> Batch:
        """Returns the state of the batch, which the endpoint may hide for ``patience`` seconds."""

        async def look() -> Batch:
            return _checked(await self._api.batches.retrieve(batch))

        return await self._asked(look, batch, patience)

    async def download(self, file: str, path: Path) -> bool:
        """Writes the file to ``path``. Returns False if the endpoint states another size."""
        import openai

        async def get() -> None:
            part = path.with_suffix(".part")
            async with self._api.files.with_streaming_response.content(file) as response:
                with part.open("wb") as out:
                    async for piece in response.iter_bytes():
                        out.write(piece)
                    out.flush()
                    os.fsync(out.fileno())
            part.replace(path)

        await self._asked(get, file, self.patience)
        try:
            size = (await self._api.files.retrieve(file)).bytes
        except (openai.OpenAIError, AttributeError):  # not every gateway supports this request
            size = 0
        return not size or size == path.stat().st_size


def _checked(batch: Batch) -> Batch:
    """Returns ``batch``: the official client accepts any reply. Raises TypeError: it is no batch."""
    if not (isinstance(batch.id, str) and isinstance(batch.status, str)):
        raise TypeError
    return batch


def is_of(batch: Batch, set_id: str, file: str) -> bool:
    """Returns whether the batch was created for the set or from its uploaded file."""
    return (batch.metadata or {}).get("set") == set_id or bool(file and batch.input_file_id == file)


def lines_of(path: Path) -> tuple[dict[str, Line], bool]:
    """Returns the lines of a result file by id, and whether its last line is complete."""
    lines: dict[str, Line] = {}
    start, size = 0, path.stat().st_size
    if not size:
        return lines, True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        while start < size:
            end = data.find(b"\n", start) + 1 or size
            line = Line(path, start, end - start)
            if data[end - 1 : end] != b"\n" and _object_at(line) is None:
                return lines, False
            if found := _ID.search(data, start, end):
                lines.setdefault(found[1].decode(), line)
            start = end
    return lines, True


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
    """Returns the body of the reply in the ``line``, or the same Failure as outside a batch. Takes CPU time.

    ``proven`` and ``key``: see :func:`classify_status`.
    """
    if line.length > longest:
        return Failure(Kind.ITEM, f"the reply is larger than {longest >> 20} MiB", maybe_billed=True)
    parsed = _object_at(line)
    if parsed is None:
        return Failure(Kind.ITEM, "the result line of the batch is no JSON object", maybe_billed=True)
    response, error = parsed.get("response"), parsed.get("error")
    status = response.get("status_code") if isinstance(response, dict) else None
    body = json.dumps(response.get("body") if isinstance(response, dict) else None)
    if isinstance(status, int) and 200 <= status < 300:
        return body.encode()
    if isinstance(status, int) and status >= 300:
        return classify_status(status, {}, body, proven(), key)
    error = error if isinstance(error, dict) else {}
    code, words = error.get("code"), error.get("message")
    text = one_line(f"not done by its batch: {code or 'no code'}: {words or 'no words'}", 300)
    if code in _NOT_STARTED:
        return Failure(Kind.TRANSIENT, text)
    return Failure(Kind.ITEM, text, maybe_billed=True)


def not_accepted(batch: Batch) -> BatchFailed:
    """Returns the error for a batch that the provider rejected before its start."""
    errors = batch.errors.data or [] if batch.errors else []
    words = one_line("; ".join(f"{e.code}: {e.message}" for e in errors[:3]) or "no reason is given", 300)
    # OpenAI limits an account's waiting tokens, and reports it only after accepting the batch
    if any("token_limit" in (e.code or "") for e in errors):
        text = f"{batch.id} has to wait for others: {words}; the same command submits it again"
        return BatchFailed(text, Kind.DOWN)
    return BatchFailed(f"{batch.id} was not accepted: {words}")


def duration(seconds: float) -> str:
    minutes = int(seconds) // 60
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
