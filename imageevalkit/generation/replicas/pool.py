"""The replicas of a model: who makes which chunk of items, and what becomes of those of one that dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imageevalkit.api.in_flight import UnderWay
from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure, say
from imageevalkit.generation.model import Generated, ModelUnusable, RemoteError
from imageevalkit.generation.replicas.messages import (
    ImagesReport,
    LoadFailure,
    LoadOrder,
    LoadReport,
    MakeOrder,
    Remark,
)
from imageevalkit.generation.replicas.replica import Replica
from imageevalkit.machine import available_cores
from imageevalkit.secrets import one_line, redact


def environs(
    per_replica: int, most: int | None, environ: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    """What makes each worker see its own ``per_replica`` GPUs of those that the job sees, at most ``most`` workers.

    Without GPUs there is one worker, or ``most``; workers then share the cores.
    """
    if per_replica:
        names = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        groups = [names[n : n + per_replica] for n in range(0, len(names) - per_replica + 1, per_replica)]
        return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups[:most]]
    count = most or 1
    if count == 1 or "OMP_NUM_THREADS" in environ:
        return [{}] * count
    # numerical libraries take all cores each, and workers that fight for them are slower than one alone
    return [{"OMP_NUM_THREADS": str(max(1, available_cores() // count))}] * count


class QueuedItem(NamedTuple):
    """One item: what the model is shown, as it is sent, and who waits for the image."""

    given: Any
    seed: int
    answer: asyncio.Future[Generated]
    state: UnderWay


@dataclass
class Chunk:
    """Items of one cell that are made in one call of the model ``key``.

    ``log`` is the file for what the model prints. ``deaths``: workers that died on it. ``together_before``: how many
    items were made in one call until then.
    """

    number: int
    key: str
    log: str
    items: list[QueuedItem] = field(default_factory=list)
    deaths: int = 0
    together_before: int = 0

    def forget_the_cancelled(self) -> None:
        """Drop the items that nobody waits for any longer."""
        self.items = [item for item in self.items if not item.answer.done()]

    def fail(self, error: Exception) -> None:
        """Answer every item with ``error``."""
        for item in self.items:
            if not item.answer.done():
                item.answer.set_exception(error)


WORKER = (sys.executable, str(REPO / "infer" / "worker.py"))
_DEPTH = 2
"""Chunks that a worker has: the one it makes, and the next, so that it never waits for its parent."""
_MOST_DEATHS = 5
"""A worker that has died so often without an image in between is not started again."""
_MOST_DEATHS_LOADING = 2
_MOST_DEATHS_IN_ALL = 20
_ITEM_DEATHS = 2
"""An item on which so many workers have died is to blame, and fails."""
_ANY = 1 << 30


class Model:
    """A setting that workers can load. ``packages`` and ``batch_size`` are known once it is loaded somewhere.

    ``packages`` are those of each worker, as far as they differ: on a machine with two kinds of GPUs they do.
    ``failure``: why it does not load.
    """

    def __init__(self, key: str, setting: Mapping[str, Any], log: str) -> None:
        self.key, self.setting, self.log = key, setting, log
        self.packages: list[Mapping[str, str]] = []
        self.batch_size = 1
        self.failure = ""
        self.unloadable = ""
        self.settled = asyncio.Event()


@dataclass
class _Worker:
    """``key``: the model it has; ``loading``: the one it loads now; ``cannot``: those that do not load in it.

    ``chunks``: what it has been sent, in order; it is making the first. ``deaths``: in a row, without an image.
    """

    replica: Replica
    task: asyncio.Task[None] | None = None
    connected: bool = False
    key: str = ""
    loading: str = ""
    cannot: set[str] = field(default_factory=set)
    chunks: list[Chunk] = field(default_factory=list)
    deaths: int = 0
    deaths_in_all: int = 0
    retired: bool = False


class Replicas:
    """The workers of one model; each of ``environs`` makes one see its own GPUs. Used within one event loop."""

    def __init__(self, environs: Sequence[Mapping[str, str]], command: Sequence[str] = WORKER) -> None:
        self.size = len(environs)
        self.say: Callable[[str], None] = say
        self.on_packages: Callable[[Mapping[str, str]], object] = lambda packages: None
        self._workers = [_Worker(Replica(command, environ)) for environ in environs]
        self._models: dict[str, Model] = {}
        self._queue: deque[Chunk] = deque()
        self._numbers = itertools.count()
        self._last_death = ""
        self._together = _ANY
        self._closed = False

    async def load(self, key: str, setting: Mapping[str, Any], log: str, chunks: int) -> Model:
        """Have the model ``setting`` loaded, by as many workers as ``chunks`` need; returns when one has.

        Workers that have chunks of another model finish them first.

        Raises:
            CellFailure: it does not load in any worker.
        """
        self._models[key] = model = Model(key, setting, log)
        self.start(chunks)
        self._go_on()
        await model.settled.wait()
        if model.failure:
            raise CellFailure(model.failure)
        return model

    def start(self, chunks: int) -> None:
        """See that there are workers for so many chunks."""
        for worker in self._workers[:chunks]:
            if worker.task is None:
                worker.task = asyncio.create_task(self._keep_running(worker))

    def new_chunk(self, key: str, log: str) -> Chunk:
        """An empty chunk of the model ``key``."""
        return Chunk(next(self._numbers), key, log)

    def submit(self, chunk: Chunk) -> None:
        """Queue ``chunk``: each of its items is answered."""
        self._queue.append(chunk)
        self._go_on()

    def holdup(self) -> str:
        """What the progress line should tell; empty when all is well."""
        if gone := sum(worker.retired for worker in self._workers):
            return f"{gone} of {self.size} workers {'is' if gone == 1 else 'are'} gone"
        working = [worker for worker in self._workers if worker.task]
        if working and all(worker.loading or not worker.connected for worker in working):
            return "loading model"
        return ""

    async def close(self) -> None:
        """End all workers; whoever waits for one is told."""
        tasks = [worker.task for worker in self._workers if worker.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._closed = True
        self._fail_what_nobody_can_make()

    # One worker

    async def _keep_running(self, worker: _Worker) -> None:
        while not worker.retired:
            try:
                death = await worker.replica.run(
                    lambda message: self._on_message(worker, message), lambda: self._on_start(worker)
                )
            except Exception as error:  # no process can be started, or what it says cannot be understood
                self._tell(redact(traceback.format_exc()))
                death = RemoteError(type(error).__name__, one_line(error), "")
            self._on_death(worker, death)

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a log that cannot be written must not stop what can
            self.say(text)

    def _on_start(self, worker: _Worker) -> None:
        worker.connected = True
        self._go_on()

    def _on_message(self, worker: _Worker, message: LoadReport | LoadFailure | ImagesReport | Remark) -> None:
        if isinstance(message, ImagesReport):
            self._on_made(worker, message)
        elif isinstance(message, Remark):
            self._tell(message.text)
        elif isinstance(message, LoadReport):
            worker.key, worker.loading = message.key, ""
            self._tell(f"model loaded in {message.seconds:.1f} s")
            model = self._models[message.key]
            model.batch_size = message.batch_size
            if message.packages not in model.packages:
                model.packages.append(message.packages)
                self.on_packages(message.packages)
            model.settled.set()
        else:
            worker.loading = ""
            worker.cannot.add(message.key)
            self._models[message.key].unloadable = message.text
            self._tell(f"model does not load in a worker: {message.text}")
        self._go_on()

    def _on_made(self, worker: _Worker, message: ImagesReport) -> None:
        chunk = worker.chunks.pop(0)
        worker.deaths = 0
        for item, returned in zip(chunk.items, message.answers, strict=True):
            if item.answer.done():
                continue  # cancelled
            if isinstance(returned, Exception):
                item.answer.set_exception(returned)
            else:
                item.answer.set_result(returned)

    def _on_death(self, worker: _Worker, death: RemoteError) -> None:
        worker.deaths += 1
        worker.deaths_in_all += 1
        most = _MOST_DEATHS_LOADING if worker.loading else _MOST_DEATHS
        worker.retired = worker.deaths >= most or worker.deaths_in_all >= _MOST_DEATHS_IN_ALL
        worker.connected, worker.key, worker.loading = False, "", ""
        self._last_death = one_line(death, 300)
        chunks, worker.chunks = worker.chunks, []
        self._queue.extendleft(reversed(self._given_back(chunks, death)))
        if worker.retired:
            self._tell(f"a worker died {worker.deaths_in_all} times and is given up: {self._last_death}")
        else:
            self._tell(f"a worker died, and is started again; its items are made again: {self._last_death}")
        self._go_on()

    def _given_back(self, chunks: list[Chunk], death: RemoteError) -> list[Chunk]:
        """What is left to do of ``chunks``, of which the worker was making the first when it died."""
        left: list[Chunk] = []
        for n, chunk in enumerate(chunks):
            chunk.forget_the_cancelled()
            if n:
                left.append(chunk)
            elif chunk.deaths + 1 >= _ITEM_DEATHS:
                chunk.fail(death)
                # it was that item, and not that too many were made at once
                self._together = max(self._together, chunk.together_before)
            else:
                before = self._together
                self._make_fewer_together(chunk)
                # singly: the one that kills a worker must not take the others along
                for item in chunk.items:
                    single = self.new_chunk(chunk.key, chunk.log)
                    single.items, single.deaths, single.together_before = [item], chunk.deaths + 1, before
                    left.append(single)
        return left

    def _make_fewer_together(self, chunk: Chunk) -> None:
        """The kernel kills a process that takes too much memory without a word."""
        batch = min(len(chunk.items), self._together)
        if batch > 1:
            self._together = batch // 2
            self._tell(f"a worker died on a batch of {batch}: going on with {self._together}")

    # The queue

    def _fail_what_nobody_can_make(self) -> None:
        for key, model in self._models.items():
            able = [w for w in self._workers if not w.retired and key not in w.cannot]
            if not self._closed and any(worker.task for worker in able):
                continue
            if able and not self._closed:
                self.start(self.size)  # those that were not needed so far: their GPUs may do
                continue
            why = model.unloadable or f"every worker died, the last one so: {self._last_death}"
            if self._closed:
                why = "stopped while the model was loading"
            if not model.settled.is_set():
                model.failure = f"model does not load: {why}"
                model.settled.set()
            for chunk in [chunk for chunk in self._queue if chunk.key == key]:
                self._queue.remove(chunk)
                chunk.fail(ModelUnusable(why))

    def _go_on(self) -> None:
        for depth in range(1, _DEPTH + 1):
            for worker in self._workers:
                # the last chunks of the queue are for whoever is free first
                if depth == 1 or len(self._queue) >= self.size:
                    self._feed(worker, depth)
        for worker in self._workers:
            if worker.connected and not worker.loading and not worker.chunks and self._models:
                self._have_loaded(worker, next(reversed(self._models)))
        self._fail_what_nobody_can_make()

    def _feed(self, worker: _Worker, depth: int) -> None:
        while worker.connected and not worker.loading and len(worker.chunks) < depth:
            chunk = next((chunk for chunk in self._queue if chunk.key not in worker.cannot), None)
            if chunk is None:
                return
            if chunk.key != worker.key:
                if not worker.chunks:
                    self._have_loaded(worker, chunk.key)
                return
            if worker.chunks and (chunk.deaths or worker.chunks[0].deaths):
                return  # made alone, so that the next death has one culprit: an answer may die with its worker too
            self._queue.remove(chunk)
            chunk.forget_the_cancelled()
            if chunk.items:
                for item in chunk.items:
                    item.state.sent = True
                worker.chunks.append(chunk)
                inputs = [item.given for item in chunk.items]
                seeds = [item.seed for item in chunk.items]
                worker.replica.send(MakeOrder(inputs, seeds, self._together, chunk.log))

    def _have_loaded(self, worker: _Worker, key: str) -> None:
        if key not in worker.cannot and key != worker.key:
            model = self._models[key]
            worker.loading, worker.key = key, ""
            worker.replica.send(LoadOrder(key, model.setting, model.log))
