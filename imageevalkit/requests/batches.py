"""Requests that go as batches of the provider's (half the price, within 24 hours), and how none is ever paid twice.

Whoever has a request waits for its line here; when no more are coming, all that wait go together as one file (several
where it would be too large). What was submitted is on record before it is, by the ids of its lines, so that a run that
was killed at any moment finds its batches again: those that it has no id of, by our metadata in the provider's list.
A line is done with when what it said is on record, and not before.

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
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from imageevalkit.atomic import disk_error, sync_folder
from imageevalkit.errors import UserError, say
from imageevalkit.requests.batch_api import (
    OURS,
    BatchFailed,
    Desk,
    Line,
    duration,
    lines_of,
    read,
    was_cancelled,
    why_missing,
)
from imageevalkit.requests.client import Request
from imageevalkit.requests.failures import Failure, Kind
from imageevalkit.requests.in_flight import under_way
from imageevalkit.secrets import one_line

if TYPE_CHECKING:
    from openai.types import Batch

MOST_REQUESTS = 50_000
_MOST_BYTES = 190_000_000  # of one file; 200 MB is the limit
_PATHS = frozenset({"/images/generations", "/images/edits", "/chat/completions", "/responses"})
_STATES = ("prepared", "uploaded", "created", "ended", "taken", "dropped", "collected")
"""Of a set on record, in their order."""
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_TICK = 0.2  # seconds
# A file is complete when nobody makes a request any more. Where more are said to come and none does, they may wait for
# the answers of these.
_QUIET, _QUIET_FOR_LONG = 0.6, 5.0
_FIRST_POLL, _POLL_GROWS, _LONGEST_POLL = 1.0, 1.3, 60.0
_FILE_IS_LATE = 600.0  # seconds
# Lines that are worked at: an image may have megabytes, and 50,000 are there at once.
_MOST_READ = 16


class NotBatched(Exception):
    """The request is in no batch that was submitted before, and none is submitted now."""


@dataclass
class Place:
    """Where the requests of an item go, which is known there as ``key``; ``batch``: that of the latest reply."""

    batches: Batches
    key: str
    batch: str = ""


@dataclass(eq=False)
class _Set:
    """The requests of one batch, in ``file`` while they come; ``left`` are those whose lines are not done with,
    ``waiting`` who waits for one. In the end it is known which are ``found``, and what it means where one is not."""

    id: str
    account: str
    path: str
    left: set[str] = field(default_factory=set)
    prepared: float = 0.0
    batch: str = ""
    is_uploaded: bool = False
    has_ended: bool = False
    waiting: dict[str, asyncio.Future[Line | Failure]] = field(default_factory=dict)
    found: Mapping[str, Line] = field(default_factory=dict)
    missing: Failure | BatchFailed | None = None
    follower: asyncio.Task[None] | None = None
    note: str = ""
    file: IO[bytes] | None = None
    size: int = 0

    def wait(self, line_id: str) -> asyncio.Future[Line | Failure]:
        """Who is told of the line: at once, where the batch has been collected."""
        future = self.waiting[line_id] = asyncio.get_running_loop().create_future()
        self.tell([line_id])
        return future

    def tell(self, line_ids: Iterable[str]) -> None:
        """Those who wait for these lines what is known of them."""
        for line_id in line_ids:
            future, found = self.waiting[line_id], self.found.get(line_id, self.missing)
            if future.done() or found is None:
                continue
            if isinstance(found, BatchFailed):
                future.set_exception(found)
                future.exception()  # who waited for it may be gone
            else:
                future.set_result(found)

    def add(self, line_id: str, request: Request) -> None:
        assert self.file
        head = {"custom_id": line_id, "method": "POST", "url": f"/v1{request.path}"}
        pieces = (json.dumps(head)[:-1].encode(), b', "body": ', *request.body, b"}\n")
        self.file.writelines(pieces)
        self.size += sum(map(len, pieces))
        self.left.add(line_id)

    def has_room(self, line_id: str, request: Request) -> bool:
        """Whether one more fits in its file."""
        size = self.size + sum(map(len, request.body))
        return line_id not in self.left and len(self.left) < MOST_REQUESTS and size <= _MOST_BYTES


class Batches:
    """The batches of one cell's images, or of its questions, on record in ``path``; their files are beside it.

    ``submits`` False: only what was submitted before is collected. ``cell`` is what the provider's list shows. Belongs
    to one event loop.
    """

    def __init__(self, path: Path, cell: str, submits: bool) -> None:
        self.submits, self.expected = submits, 0
        self._path, self._cell, self._folder = path, cell, path.with_suffix("")
        self._sets = _known(path)
        self._coming: dict[str, _Set] = {}
        self._desk: Desk | None = None
        self._preparing = set[asyncio.Task[Any]]()
        self._given: dict[str, tuple[_Set, str]] = {}
        self._settled = deque[tuple[_Set, str]]()
        self._reading = set[asyncio.Task[Any]]()
        self._room = asyncio.Semaphore(_MOST_READ)
        self._opening = asyncio.Lock()
        self._submitter: asyncio.Task[None] | None = None
        self._last = 0.0

    @property
    def are_open(self) -> bool:
        """Whether requests may go, or have gone, as batches."""
        return self.submits or bool(self._sets)

    def _note(self, one: _Set, state: str, **more: Any) -> None:
        """Put a change on record, twice: what it is lost with is paid again."""
        record = {"set": one.id, "state": state, "time": round(time.time(), 3), **more}
        copy = _copy_of(self._path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not self._path.exists()
            if is_new:
                copy.unlink(missing_ok=True)
            for path in (self._path, copy):
                with path.open("ab") as file:
                    # a torn line before it takes it not along
                    file.write(b"\n" * bool(file.tell()) + json.dumps(record).encode() + b"\n")
                    file.flush()
                    if state != "taken":  # what that is lost with is not asked again
                        os.fsync(file.fileno())
            if is_new:
                sync_folder(self._path.parent)
        except OSError as error:
            raise disk_error(error, self._path) from error

    def holdup(self) -> str:
        """How far the batches are, in a few words; empty where none is under way."""
        notes = [one.note for one in self._sets if one.follower and not one.follower.done() and one.note]
        return f"{notes[0]}, and {len(notes) - 1} more" if len(notes) > 1 else "".join(notes)

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """The running task makes a request: a batch does not go without it."""
        task = asyncio.current_task()
        assert task
        self._preparing.add(task)
        try:
            yield
        finally:
            self._preparing.discard(task)

    async def line(
        self,
        make_desk: Callable[[], Desk],
        place: Place,
        request: Request,
        proven: Callable[[], bool],
        longest: int,
    ) -> bytes | Failure:
        """The body of the reply to the ``request`` of the item at ``place``, which is told its batch; or what it means.

        Raises NotBatched, BatchFailed.
        """
        task = asyncio.current_task()
        assert task
        if request.path not in _PATHS or request.mime_type != "application/json":
            raise BatchFailed(f"a request to {request.path} cannot go in a batch: leave out --batch")
        desk = await self._open(make_desk)
        self.settle(place.key)  # it is asked again: what it was told before is no answer
        self._release(task)
        under_way().sent = False
        line_id = _id_of(place.key, request)
        one = self._set_of(desk, line_id, request)
        del request  # megabytes; a batch may hold 50,000
        self._preparing.discard(task)
        self._last = time.monotonic()
        found = await asyncio.shield(one.wait(line_id))
        self._given[place.key], place.batch = (one, line_id), one.batch
        if isinstance(found, Failure):
            return found
        under_way().sent = True
        await self._room.acquire()
        self._reading.add(task)
        task.add_done_callback(self._release)
        return await asyncio.to_thread(read, found, longest, proven, desk.endpoint.key_variable)

    def _set_of(self, desk: Desk, line_id: str, request: Request) -> _Set:
        """The one whose batch has the request, or will have it."""
        for one in self._sets:
            if one.account == desk.endpoint.account and line_id in one.left and line_id not in one.waiting:
                one.follower = one.follower or asyncio.create_task(self._follow(desk, one))
                return one
        if not self.submits:
            raise NotBatched
        path, coming = request.path, self._coming.get(request.path)
        if coming and not coming.has_room(line_id, request):
            self._submit(desk, path)
            coming = None
        if coming is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            coming = self._coming[path] = _Set(uuid.uuid4().hex, desk.endpoint.account, path)
            coming.file = self._body_of(coming).open("wb")
        coming.add(line_id, request)
        return coming

    def _body_of(self, one: _Set) -> Path:
        return self._folder / f"{one.id}.jsonl"

    async def _open(self, make_desk: Callable[[], Desk]) -> Desk:
        """Find what an earlier run had submitted when it was killed, before anything is submitted again."""
        async with self._opening:
            if self._submitter and self._desk:
                return self._desk
            try:
                desk = self._desk = self._desk or make_desk()
            except UserError as error:
                raise BatchFailed(str(error)) from None
            for one in [each for each in self._sets if not each.batch]:
                if one.account != desk.endpoint.account:
                    continue
                try:
                    # without a file there is no batch
                    found = await desk.find(one.id, one.prepared) if one.is_uploaded else None
                except BatchFailed as error:
                    raise self._remedied(error) from None
                if found:
                    one.batch = found.id
                    self._note(one, "created", batch=found.id)
                else:
                    self._drop(one)
                    self._body_of(one).unlink(missing_ok=True)
            self._submitter = asyncio.create_task(self._submit_complete(desk))
            return desk

    def _drop(self, one: _Set) -> None:
        """No batch came of it."""
        self._note(one, "dropped")
        self._sets.remove(one)

    def _remedied(self, error: BatchFailed) -> BatchFailed:
        """With what is to be done where the provider has lost what it had."""
        if not error.gone:
            return error
        text = (
            f"{error}: give the key that had it, or delete {self._cell}/{self._path.name} to pay for all anew"
        )
        return BatchFailed(text, error.kind)

    async def _submit_complete(self, desk: Desk) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self._put_on_record()
            quiet = time.monotonic() - self._last
            if not self._preparing and quiet > (_QUIET_FOR_LONG if self.expected else _QUIET):
                for path in list(self._coming):
                    self._submit(desk, path)

    def _submit(self, desk: Desk, path: str) -> None:
        one = self._coming.pop(path)
        one.prepared = time.time()
        self._sets.append(one)
        one.follower = asyncio.create_task(self._follow(desk, one))

    async def _follow(self, desk: Desk, one: _Set) -> None:
        """From the requests to their lines, or the reason why there is none."""
        try:
            if one.file:
                await self._create(desk, one, one.file)
            batch = await self._ended(desk, one)
            self._note(one, "ended", status=batch.status)
            await self._collect(desk, one, batch)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            text = desk.endpoint.redact(f"{type(error).__name__}: {one_line(error)}")
            one.missing = self._remedied(error) if isinstance(error, BatchFailed) else BatchFailed(text)
            one.tell(one.waiting)

    async def _create(self, desk: Desk, one: _Set, file: IO[bytes]) -> None:
        lines, body = sorted(one.left), self._body_of(one)
        one.note = f"batch of {len(lines)}: submitting"
        await asyncio.to_thread(file.close)
        one.file = None
        self._note(one, "prepared", account=one.account, path=one.path, lines=lines)
        try:
            uploaded = await desk.upload(body)
            self._note(one, "uploaded", file=uploaded)
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
            about = {"by": OURS, "cell": self._cell[:512], "set": one.id, "requests": digest}
            batch = await desk.create(uploaded, f"/v1{one.path}", about, one.prepared)
        except BatchFailed as error:
            if error.kind is not Kind.DOWN:
                self._drop(one)
            raise
        finally:
            body.unlink(missing_ok=True)
        one.batch = batch.id
        self._note(one, "created", batch=batch.id)
        say(f"{batch.id}: a batch of {len(lines)} requests, at half the price; it goes on if this run ends")

    async def _ended(self, desk: Desk, one: _Set) -> Batch:
        """The batch when it has ended, with its files."""
        wait, late_since = _FIRST_POLL, 0.0
        while True:
            batch = await desk.retrieve(one.batch)
            counts = batch.request_counts
            done = counts.completed + counts.failed if counts else 0
            since = max(0.0, time.time() - (batch.created_at or one.prepared))
            total = (counts.total if counts else 0) or len(one.left)
            one.note = f"batch of {total}: {done} done, {duration(since)}"
            if batch.status in _ENDED:
                if batch.output_file_id or not (counts and counts.completed):
                    return batch
                late_since = late_since or time.monotonic()  # its answers are paid for
                if time.monotonic() - late_since > _FILE_IS_LATE:
                    text = f"{one.batch} has ended, but its answers are not there yet"
                    raise BatchFailed(f"{text}: the same command looks again", Kind.DOWN)
            await asyncio.sleep(wait)
            wait = min(_LONGEST_POLL, wait * _POLL_GROWS)

    async def _collect(self, desk: Desk, one: _Set, batch: Batch) -> None:
        """Tell those who wait where their lines are; the others that there is none."""
        one.note = f"batch of {len(one.left)}: collecting"
        found: dict[str, Line] = {}
        for number, file in enumerate(filter(None, (batch.output_file_id, batch.error_file_id))):
            path = self._folder / f"{one.id}.{number}.jsonl"
            if not path.exists():
                await desk.download(file, path)
            for line_id, line in await asyncio.to_thread(list, lines_of(path)):
                if batch.status != "cancelled" or not was_cancelled(line):
                    found.setdefault(line_id, line)
        one.found, missing = found, why_missing(batch)
        one.tell(one.waiting)
        if isinstance(missing, BatchFailed):
            # that ends the cell: what is there comes first
            there = found.keys() & one.waiting.keys()
            while not one.left.isdisjoint(there):
                await asyncio.sleep(_TICK)
            self._settled.extend((one, line_id) for line_id in one.left - found.keys())
        one.missing = missing
        one.tell(one.waiting)

    def settle(self, key: str) -> None:
        """What the item was told is on record, or worth nothing: its line is done with. From any thread."""
        if given := self._given.pop(key, None):
            self._settled.append(given)

    def _put_on_record(self) -> None:
        """Which lines are done with, and which batches."""
        by_set = defaultdict[_Set, list[str]](list)
        while self._settled:
            one, line_id = self._settled.popleft()
            one.left.discard(line_id)
            by_set[one].append(line_id)
        for one, lines in by_set.items():
            if one.left:
                self._note(one, "taken", lines=lines)
            elif one in self._sets:
                self._note(one, "collected")
                self._sets.remove(one)
                for file in self._folder.glob(f"{one.id}.*"):
                    file.unlink(missing_ok=True)

    def _release(self, task: asyncio.Task[Any]) -> None:
        """What the task has read is dealt with, or it asks again: another line may be read."""
        if task in self._reading:
            self._reading.discard(task)
            self._room.release()

    async def close(self) -> None:
        """Stop waiting; batches go on at the provider."""
        tasks = [*filter(None, [self._submitter, *(one.follower for one in self._sets)])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self._coming.values():
            if one.file:
                one.file.close()
            self._body_of(one).unlink(missing_ok=True)
        self._coming.clear()
        self.end()
        if self._desk:
            await self._desk.close()
        self._desk = self._submitter = None

    def end(self) -> None:
        """Put on record what was settled since; also after :meth:`close`."""
        self._put_on_record()
        with contextlib.suppress(OSError):
            self._folder.rmdir()


here: ContextVar[Place | None] = ContextVar("batches", default=None)
"""Where those of the running task go; None: they are asked one by one."""


def not_ended(path: Path) -> list[str]:
    """The batches on record in ``path`` that had not ended when that was last looked at."""
    return [one.batch for one in _known(path) if one.batch and not one.has_ended]


def _known(path: Path) -> list[_Set]:
    """What earlier runs have submitted, or were about to, and not collected wholly."""
    sets: dict[str, _Set] = {}
    for record in _records(path):
        name, state, lines = record["set"], record["state"], record.get("lines", [])
        if state == "prepared":
            account, endpoint, since = (record.get(key) for key in ("account", "path", "time"))
            sets[name] = _Set(name, str(account), str(endpoint), set(lines), since or 0.0)
        elif one := sets.get(name):
            one.is_uploaded |= state == "uploaded"
            one.has_ended |= state == "ended"
            one.batch = record.get("batch") or one.batch
            if state == "taken":
                one.left.difference_update(lines)
            elif state in ("dropped", "collected"):
                del sets[name]
    return list(sets.values())


def _copy_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.copy")


def _records(path: Path) -> list[dict[str, Any]]:
    """The lines of ``batches.jsonl`` and of its copy, if it exists; a torn one is none."""
    if not path.exists():  # who deletes it has all asked anew
        return []
    files = [file.read_bytes() for file in (path, _copy_of(path)) if file.exists()]
    records = []
    for line in dict.fromkeys(line for data in files for line in data.splitlines()):
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and "set" in record and record.get("state") in _STATES:
                records.append(record)
    return sorted(records, key=lambda record: _STATES.index(record["state"]))


def _id_of(key: str, request: Request) -> str:
    """The ``custom_id`` of what an item asks: two items with the same words have two."""
    digest = hashlib.sha256(f"{key}\n{request.path}\n".encode(errors="surrogatepass"))
    for piece in request.body:
        digest.update(piece)
    return digest.hexdigest()[:40]
