"""Sends requests as batches of the provider: half the price, results within 24 hours, no double purchase.

Each task waits here for the result line of its request. When no more requests come, all waiting ones are sent
as one file (as several files if one would be too large). Each batch has a state file, which is written before
and after each step. The states are uploading → creating (the batch may exist from now on) → created (its id
is known) → finished (its status and result files are known) → downloaded (all results are here and counted) →
read (no task waits for a line any more).

After "creating", a request is sent again only if its result line says that it was not processed. A request
without a result line is lost. It may have been billed, so it is bought again only if the user deletes the
state file.

Limits and states: https://platform.openai.com/docs/guides/batch and /docs/api-reference/batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from imageevalkit.api.client import Request
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.api.failures import Failure, Kind
from imageevalkit.api.in_flight import under_way
from imageevalkit.api.money import BudgetSpent
from imageevalkit.api.sender import Delivery, NotSent, Sender
from imageevalkit.api.settings import RequestSettings
from imageevalkit.common.atomic import sync_folder, write_atomic
from imageevalkit.common.errors import CellFailure, UserError, say
from imageevalkit.common.redaction import one_line
from imageevalkit.extras.batch.batch_api import (
    OURS,
    BatchClient,
    BatchFailed,
    Line,
    Unclear,
    duration,
    is_of,
    lines_of,
    not_accepted,
    read,
)

T = TypeVar("T")

_MOST_REQUESTS = 50_000
_MOST_BYTES = 190_000_000  # size of one file; the provider's limit is 200 MB
_PATHS = frozenset({"/images/generations", "/images/edits", "/chat/completions", "/responses"})
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_TICK = 0.2  # seconds
# Seconds without a new request after which a file is complete. The longer one applies while more requests are
# expected: these may wait for the replies to the first.
_QUIET, _QUIET_FOR_LONG = 0.6, 5.0
_FIRST_POLL, _POLL_GROWS, _LONGEST_POLL = 1.0, 1.3, 60.0
# Seconds after a batch's end until missing results are an error: without an output file, and with one.
_NO_OUTPUT, _INCOMPLETE = 600.0, 60.0
# Lines that are read in parallel: an image may have megabytes, and 50,000 may arrive together.
_MOST_READ = 16


@dataclass(eq=False)
class _Set:
    """The requests of one batch. Its state file contains the fields up to ``lost``.

    ``lines`` are the ids of the requests whose results are not read yet. After ``has_outcomes`` is set, ``outcomes``
    has the outcomes, and ``problem`` is the outcome of all other requests. ``body`` is the open request file.
    """

    id: str
    account: str
    path: str
    state: str = "uploading"
    lines: set[str] = field(default_factory=set)
    prepared: float = field(default_factory=time.time)
    file: str = ""
    batch: str = ""
    status: str = ""
    results: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    outcomes: dict[str, Line | Failure] = field(default_factory=dict)
    problem: BatchFailed | None = None
    has_outcomes: asyncio.Event = field(default_factory=asyncio.Event)
    follower: asyncio.Task[None] | None = None
    note: str = ""
    body: IO[bytes] | None = None

    def add(self, line_id: str, request: Request) -> None:
        assert self.body
        head = {"custom_id": line_id, "method": "POST", "url": f"/v1{request.path}"}
        pieces = (json.dumps(head)[:-1].encode(), b', "body": ', *request.body, b"}\n")
        self.body.writelines(pieces)
        self.lines.add(line_id)

    def has_room(self, request: Request) -> bool:
        """Returns whether one more request fits into the file."""
        assert self.body
        size = self.body.tell() + sum(map(len, request.body))
        return len(self.lines) < _MOST_REQUESTS and size <= _MOST_BYTES


_SAVED = ["id", "account", "path", "state", "lines", "prepared", "file", "batch", "status", "results", "lost"]


class Batches(Sender):
    """The batches of one cell's images or questions, with their state files in ``folder``.

    If ``submits`` is False, it only collects earlier batches. The provider's list of batches shows ``cell``.
    Belongs to one event loop. Raises CellFailure: a state file is damaged.
    """

    price_share = 0.5  # https://platform.openai.com/docs/guides/batch
    most = _MOST_REQUESTS
    option = "--batch"
    way, discount, time = "in batches", "half of", "up to 24 hours for batches"

    def __init__(self, folder: Path, cell: str, submits: bool) -> None:
        self._submits, self._folder, self._cell, self._unsaved = submits, folder, cell, set[_Set]()
        _check_journal(folder.with_suffix(".jsonl"))
        self._sets = [_load(file) for file in sorted(folder.glob("*.json"))]
        for one in [one for one in self._sets if one.state == "uploading"]:
            self._drop(one)
        for file in folder.glob("*.requests"):  # left by a killed run
            file.unlink()
        self._coming: dict[str, _Set] = {}
        self._client: BatchClient | None = None
        self._preparing = set[asyncio.Task[Any]]()
        self._given: dict[str, tuple[_Set, str]] = {}
        self._settled = deque[tuple[_Set, str]]()
        self._reading = set[asyncio.Task[Any]]()
        self._room = asyncio.Semaphore(_MOST_READ)
        self._submitter: asyncio.Task[None] | None = None
        self._last = 0.0

    @classmethod
    def opened(cls, folder: Path, cell: str, sends: bool) -> Batches | None:
        """Returns the batches; None if this run submits none and no earlier run has left state files."""
        batches = cls(folder, cell, sends)
        return batches if sends or batches._sets else None

    @classmethod
    def goes_on(cls, folder: Path) -> str:
        """Returns a note on the batches that had not ended at the last check; empty if there are none."""
        batches = []
        for file in sorted(folder.glob("*.json")):
            with contextlib.suppress(CellFailure):
                one = _load(file)
                batches += [one.batch] * (one.state == "created")
        if not batches:
            return ""
        return (
            f"{', '.join(batches)} continues at the provider, and the same command collects it "
            f"(POST /batches/{batches[0]}/cancel there ends it)"
        )

    def _file_of(self, one: _Set, kind: str = "json") -> Path:
        return self._folder / f"{one.id}.{kind}"

    def _save(self, one: _Set, state: str = "") -> None:
        """Writes the state file, from which a later run continues."""
        one.state = state or one.state
        self._unsaved.discard(one)
        text = json.dumps({name: getattr(one, name) for name in _SAVED}, default=sorted)
        write_atomic(self._file_of(one), text)
        sync_folder(self._folder)

    def _drop(self, one: _Set) -> None:
        """Drops a batch that was not created, or whose lines are all read. Its state file remains if requests
        are lost.
        """
        if one.lost:
            self._save(one, "read")
        else:
            self._sets.remove(one)
            self._unsaved.discard(one)
            self._file_of(one).unlink(missing_ok=True)
        for file in self._folder.glob(f"{one.id}.*"):
            if file.suffix != ".json":
                file.unlink()

    def holdup(self) -> str:
        """Returns the progress of the batches in a few words; empty if none is running."""
        notes = [one.note for one in self._sets if one.follower and not one.follower.done() and one.note]
        return f"{notes[0]}, and {len(notes) - 1} more" if len(notes) > 1 else "".join(notes)

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Marks the running task as preparing a request: the next batch waits for it."""
        task = asyncio.current_task()
        assert task
        self._preparing.add(task)
        try:
            yield
        finally:
            self._preparing.discard(task)

    async def ask(
        self, attempt: Callable[[], Awaitable[T | Failure]], delivery: Delivery, most: int
    ) -> tuple[T | Failure, int]:
        """Calls ``attempt`` again while its batch has not done the request: any other result may be billed."""
        attempts = 0
        try:
            while True:
                result = await attempt()
                attempts += 1
                if not delivery.not_done or attempts >= most:
                    return result, attempts
        except BatchFailed as error:
            return Failure(error.kind, str(error)), attempts
        except BudgetSpent as error:
            return Failure(Kind.SPENT, str(error)), attempts

    async def reply(
        self,
        delivery: Delivery,
        request: Request,
        endpoint: Endpoint,
        settings: RequestSettings,
        proven: Callable[[], bool],
        longest: int,
    ) -> bytes | Failure:
        """Returns the body of the reply to ``request``, or its Failure. Raises NotSent, BatchFailed."""
        task = asyncio.current_task()
        assert task
        if request.path not in _PATHS or request.mime_type != "application/json":
            raise BatchFailed(f"a request to {request.path} cannot go in a batch: leave out --batch")
        if not self._client:
            try:
                self._client = BatchClient(endpoint, settings.max_outage, settings.timeout)
            except UserError as error:
                raise BatchFailed(str(error)) from None
            self._submitter = asyncio.create_task(self._submit_complete(self._client))
        self.settle(delivery.key)  # this is a retry: the previous reply was unusable
        self._take_settled()
        self._release(task)
        under_way().sent = False
        line_id = _id_of(delivery.key, request)
        if lost := next((one for one in self._sets if line_id in one.lost), None):
            return self._lost(lost)
        one = self._set_of(self._client, line_id, request)
        del request  # else 50,000 requests of several megabytes stay in memory
        self._preparing.discard(task)
        self._last = time.monotonic()
        await one.has_outcomes.wait()
        found, delivery.batch, delivery.not_done = one.outcomes.get(line_id), one.batch, False
        if found is None:
            assert one.problem
            raise BatchFailed(str(one.problem), one.problem.kind)
        self._given[delivery.key] = one, line_id
        if isinstance(found, Failure):
            return found
        under_way().sent = True
        await self._room.acquire()
        self._reading.add(task)
        task.add_done_callback(self._release)
        # a line holds the reply in JSON, which may be longer than the reply
        reply = await asyncio.to_thread(read, found, 2 * longest, proven, endpoint.key_variable)
        delivery.not_done = isinstance(reply, Failure) and reply.kind.retried and not reply.maybe_billed
        if delivery.not_done and one.status == "cancelled":
            self.settle(delivery.key)
            text = f"{one.batch} was cancelled at the provider: the same command submits what is left"
            raise BatchFailed(text, Kind.DOWN)
        return reply

    def _set_of(self, client: BatchClient, line_id: str, request: Request) -> _Set:
        """Returns the request's set: an earlier set that contains it, or the set that is being collected."""
        for one in self._sets:
            if line_id in one.lines:
                one.follower = one.follower or asyncio.create_task(self._follow(client, one))
                return one
        if not self._submits:
            raise NotSent
        path, coming = request.path, self._coming.get(request.path)
        if coming and line_id in coming.lines:
            return coming
        if coming and not coming.has_room(request):
            self._submit(client, path)
            coming = None
        if coming is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            coming = self._coming[path] = _Set(uuid.uuid4().hex[:16], client.endpoint.account, path)
            coming.body = self._file_of(coming, "requests").open("wb")
        coming.add(line_id, request)
        return coming

    def _remedy(self, one: _Set) -> str:
        return f"delete {os.path.relpath(self._file_of(one))} to buy its requests again"

    def _lost(self, one: _Set, maybe_billed: bool = False) -> Failure:
        """Returns the Failure of a request without a result line. Only the first run counts its cost."""
        text = f"{one.batch} ({one.status}) has no result for it, but may have billed it, so it is not sent again"
        return Failure(Kind.ITEM, f"{text}: {self._remedy(one)}", maybe_billed=maybe_billed)

    async def _submit_complete(self, client: BatchClient) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self._take_settled()
            quiet = time.monotonic() - self._last
            if not self._preparing and quiet > (_QUIET_FOR_LONG if self.expected else _QUIET):
                for path in list(self._coming):
                    self._submit(client, path)

    def _submit(self, client: BatchClient, path: str) -> None:
        one = self._coming.pop(path)
        self._sets.append(one)
        one.follower = asyncio.create_task(self._follow(client, one))

    async def _follow(self, client: BatchClient, one: _Set) -> None:
        """Leads a batch from its present state to the outcome of each line."""
        try:
            if one.state == "uploading":
                await self._create(client, one)
            if one.state == "creating":
                one.batch = one.batch or (await client.find(one.id, one.file, one.prepared)).id
                self._save(one, "created")
                count = len(one.lines)
                say(
                    f"{one.batch}: a batch of {count} requests, at half the price; it continues if this run ends"
                )
            if one.state != "downloaded" or not all(file.exists() for file in self._results_of(one)):
                await self._finish(client, one)
            found, _ = await self._found(one)
            one.outcomes = {line: found.get(line) or self._lost(one, maybe_billed=True) for line in one.lines}
        except Exception as error:
            if not isinstance(error, BatchFailed):
                error = BatchFailed(client.endpoint.redact(f"{type(error).__name__}: {one_line(error)}"))
            elif error.gone:
                text = f"{error}: the same command checks again"
                if one.account != client.endpoint.account:
                    text = (
                        f"{one.batch or one.file} was sent with another key or to another endpoint: use that"
                    )
                error = BatchFailed(f"{text}, or {self._remedy(one)}", Kind.DOWN)
            one.problem = error
        one.has_outcomes.set()

    async def _create(self, client: BatchClient, one: _Set) -> None:
        assert one.body
        body = self._file_of(one, "requests")
        one.note = f"batch of {len(one.lines)}: submitting"
        await asyncio.to_thread(one.body.close)
        self._take_settled(at_once=True)  # else a repeated request would be found in its old batch
        self._save(one)
        try:
            one.file = await client.upload(body)
            body.unlink()
            self._save(one, "creating")
            about = {"by": OURS, "cell": self._cell[:512], "set": one.id}
            with contextlib.suppress(Unclear):
                one.batch = (await client.create(one.file, f"/v1{one.path}", about)).id
        except BatchFailed:
            self._drop(one)
            raise

    async def _finish(self, client: BatchClient, one: _Set) -> None:
        """Waits until the batch has ended and all its results are downloaded and counted."""
        wait, ended = _FIRST_POLL, 0.0
        is_same = one.account == client.endpoint.account
        while True:
            batch = await client.retrieve(one.batch, client.patience if is_same else 0.0)
            if not is_same and not is_of(batch, one.id, one.file):
                raise BatchFailed(f"{one.batch} is another batch", gone=True)
            counts = batch.request_counts
            done = (counts.completed or 0) + (counts.failed or 0) if counts else 0
            since = max(0.0, time.time() - (batch.created_at or one.prepared))
            total = (counts and counts.total) or len(one.lines)
            one.note = f"batch of {total}: {done} done, {duration(since)}"
            if batch.status in _ENDED:
                wait, ended = (wait, ended) if ended else (_FIRST_POLL, time.monotonic())
                one.status = batch.status
                one.results = [*filter(None, (batch.output_file_id, batch.error_file_id))]
                self._save(one, "finished")
                files = zip(one.results, self._results_of(one), strict=True)
                have_size = all([await client.download(file, path) for file, path in files])
                found, is_whole = await self._found(one)
                if batch.status == "failed" and not (done or found):
                    self._drop(one)
                    raise not_accepted(batch)
                # the counts and files of a batch may appear some time after its end
                if one.lines <= found.keys() or (have_size and is_whole and done and len(found) >= done):
                    break
                has_output = have_size and is_whole and bool(batch.output_file_id)
                patience = _INCOMPLETE if has_output else _NO_OUTPUT
                if time.monotonic() - ended > min(patience, client.max_outage):
                    if has_output:
                        break
                    one.outcomes = dict(found)
                    raise BatchFailed(f"{one.batch} has ended, but its results are not all there", gone=True)
            await asyncio.sleep(wait)
            wait = min(_LONGEST_POLL, wait * _POLL_GROWS)
        self._save(one, "downloaded")

    def _results_of(self, one: _Set) -> list[Path]:
        return [self._file_of(one, f"{number}.jsonl") for number in range(len(one.results))]

    async def _found(self, one: _Set) -> tuple[dict[str, Line], bool]:
        """Returns the downloaded result lines, and whether each file ends with a complete line."""
        found, is_whole = dict[str, Line](), True
        for path in self._results_of(one):
            lines, ends_well = await asyncio.to_thread(lines_of, path)
            found, is_whole = lines | found, is_whole and ends_well
        return found, is_whole

    def settle(self, key: str) -> None:
        """Marks the line of an item as read: its reply is stored or unusable. May run in any thread."""
        if given := self._given.pop(key, None):
            self._settled.append(given)

    def _take_settled(self, at_once: bool = False) -> None:
        """Removes the read lines from their sets; if ``at_once``, also from the state files."""
        while self._settled:
            one, line_id = self._settled.popleft()
            one.lines.discard(line_id)
            if isinstance(one.outcomes.get(line_id), Failure):
                one.lost.add(line_id)
            self._unsaved.add(one)
        for one in list(self._unsaved):
            if not one.lines:
                self._drop(one)
            elif at_once:
                self._save(one)

    def _release(self, task: asyncio.Task[Any]) -> None:
        """Lets another line be read: the task has finished its line, or starts a new request."""
        if task in self._reading:
            self._reading.discard(task)
            self._room.release()

    async def close(self) -> None:
        """Stops waiting. The batches continue at the provider."""
        tasks = [*filter(None, [self._submitter, *(one.follower for one in self._sets)])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._coming.values():
            if one.body:
                one.body.close()
            self._file_of(one, "requests").unlink(missing_ok=True)
        self._coming.clear()
        self.end()
        if self._client:
            await self._client.close()
        self._client = self._submitter = None

    def end(self) -> None:
        """Writes the lines read since then to the state files. May be called after :meth:`close`."""
        self._take_settled(at_once=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def _load(file: Path) -> _Set:
    """Reads a state file. Raises CellFailure: the file is damaged."""
    try:
        saved = json.loads(file.read_bytes())
        one = _Set(**{name: saved[name] for name in _SAVED})
        one.lines, one.lost = set(one.lines), set(one.lost)
    except (ValueError, KeyError, TypeError, OSError):
        text = f"{os.path.relpath(file)} cannot be read, and requests of its batch may have been billed"
        raise CellFailure(f"{text}: restore it, or delete it to buy them again") from None
    return one


def _check_journal(journal: Path) -> None:
    """Raises CellFailure: an older version has submitted batches and not collected them."""
    files = [journal, journal.with_name(f".{journal.name}.copy")] if journal.exists() else []
    for data in [file.read_bytes() for file in files if file.exists()]:
        if data.count(b'"prepared"') > data.count(b'"collected"') + data.count(b'"dropped"'):
            text = f"{os.path.relpath(journal)}: an older version of the toolkit has submitted batches"
            raise CellFailure(f"{text}: collect them with it, or delete this file to buy the rest again")


def _id_of(key: str, request: Request) -> str:
    """Returns the ``custom_id`` of an item's request: items with the same prompt have different ids."""
    digest = hashlib.sha256(f"{key}\n{request.path}\n".encode(errors="surrogatepass"))
    for piece in request.body:
        digest.update(piece)
    return digest.hexdigest()[:40]
