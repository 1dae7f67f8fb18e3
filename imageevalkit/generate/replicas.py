"""Runs a model in worker processes of its environment: schedules chunks, handles deaths and hangs.

A local model has a worker for each replica, a model behind an API has one. The parent runs in the driver's
environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import signal
import socket
import statistics
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imageevalkit.api.in_flight import UnderWay, under_way
from imageevalkit.api.limiter import Traffic
from imageevalkit.common.errors import CellFailure, say
from imageevalkit.common.machine import available_cores
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.common.text import counted
from imageevalkit.generate.cell_run import CellRun
from imageevalkit.generate.model import CellLog, Generated, ImageModel, ModelUnusable, RemoteError
from imageevalkit.generate.worker import (
    Breakdown,
    ImagesReport,
    LoadFailure,
    LoadOrder,
    LoadReport,
    MakeOrder,
    Remark,
    outgoing,
    pack,
    portable,
    read,
)
from imageevalkit.store.cell import REPO


def environs_of(
    per_replica: int, most: int | None, environ: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    """Returns the environment of each worker, at most ``most``: each sees its own ``per_replica`` GPUs.

    Without GPUs there is one worker, or ``most`` workers that share the CPU cores.
    """
    if per_replica:
        names = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        groups = [names[n : n + per_replica] for n in range(0, len(names) - per_replica + 1, per_replica)]
        return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups[:most]]
    count = most or 1
    if count == 1 or "OMP_NUM_THREADS" in environ:
        return [{}] * count
    # numerical libraries use all cores each, and workers that compete for cores are slower than one alone
    return [{"OMP_NUM_THREADS": str(max(1, available_cores() // count))}] * count


class QueuedItem(NamedTuple):
    """One queued item: the model's input as it is sent, and the future of its image."""

    given: Any
    seed: int
    size: tuple[int, int] | None
    answer: asyncio.Future[Generated]
    state: UnderWay


@dataclass(eq=False)
class Chunk:
    """Items of one cell and one size that the model ``key`` generates in one call.

    The model prints to the file ``log``. ``deaths`` counts workers that died on the chunk.
    ``together_before`` is the batch limit before the chunk's first death. The chunk has been in progress
    ``since`` then (event loop time; None: a worker has not begun it).
    """

    key: str
    log: str
    items: list[QueuedItem] = field(default_factory=list)
    deaths: int = 0
    together_before: int = 0
    since: float | None = None
    number: int = field(default_factory=itertools.count().__next__)

    def forget_the_cancelled(self) -> None:
        """Drop the items whose tasks were cancelled."""
        self.items = [item for item in self.items if not item.answer.done()]

    def fail(self, error: Exception) -> None:
        """Set ``error`` as the answer of every item."""
        for item in self.items:
            if not item.answer.done():
                item.answer.set_exception(error)


WORKER = str(REPO / "infer" / "worker.py")
"""The program of a worker process."""
_MOST_DEATHS = 5
"""A worker that dies this often without an image in between is not restarted."""
_MOST_DEATHS_LOADING = 2
_MOST_DEATHS_IN_ALL = 20
_ITEM_DEATHS = 2
"""If this many workers die on an item, the item fails."""
_ANY = 1 << 30

_LOOK_EVERY = 0.5  # seconds
# The user is warned of a stalled worker after this many times the median time of an image, and at least this
# many seconds. The first image has a longer limit, because libraries may compile for it.
_STALL_FACTOR, _STALL_AFTER, _STALL_AFTER_AT_FIRST = 10, 60.0, 600.0
_RECENT = 100  # images in the median
# The first call of a process may compile for minutes (torch.compile does so for each batch size). Its limit
# is this many times ITEM_TIMEOUT, and at least this many seconds. After the first calls of a model, the limit
# is this many times the slowest one. Otherwise an item that hangs would cost ten minutes in each new process.
_FIRST_CALL_FACTOR, _FIRST_CALL_SECONDS, _KNOWN_FIRST_CALL_FACTOR = 10, 600.0, 3


# Seconds for a worker to exit. A guard waits longer: otherwise it would kill this process, the parent, at the
# moment when the parent kills the worker.
_PATIENCE = 2.0
# Seconds for processes that the model has started: SIGTERM first, since they may have shared memory to
# remove, then SIGKILL. The sum with the above is still less than a guard's patience.
_PATIENCE_WITH_REST = 1.0
_TICK = 0.05


class _Worker:
    """A worker process with its own GPUs (``environ``). After a death, a new process takes its place.

    The process leads a process group, whose other processes are ended with it: they would keep GPU memory
    from the next worker.

    ``key`` is the loaded model, ``loading`` the model being loaded; ``cannot`` are models that do not load
    here. ``chunks`` are the chunks sent, in order; the first ``at_once`` are in progress. ``stalls``: the
    user was warned that the first takes too long. ``deaths`` counts deaths in a row without an image.
    ``timeouts`` counts kills because of slow items, which are not deaths. ``warm`` are the chunk sizes that
    this process has already generated with its model.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], at_once: int) -> None:
        self._command, self._environ, self._at_once = command, environ, at_once
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.ended_because = ""
        self.task: asyncio.Task[None] | None = None
        self.connected = self.retired = self.stalls = False
        self.key = self.loading = ""
        self.cannot = set[str]()
        self.chunks = list[Chunk]()
        self.warm = set[int]()
        self.deaths = self.deaths_in_all = self.timeouts = 0

    async def run(self, on_message: Callable[[Any], None], on_start: Callable[[], None]) -> Exception:
        """Start the process and pass on its messages. Returns why the process ended, once it has ended.

        Raises OSError if no process can be started.
        """
        self.ended_because = ""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(theirs.fileno()),
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **self._environ},
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            reader, self._writer = await asyncio.open_connection(sock=ours)
            on_start()
            while True:
                try:
                    message = await read(reader)
                except (EOFError, OSError):
                    status = await self._end()
                    return RemoteError("WorkerDied", self.ended_because or _last_words(status), "")
                if isinstance(message, Breakdown):
                    self._kill()  # its threads or the GPU driver may prevent a normal exit
                    return message.error
                on_message(message)
        finally:
            if self._writer is not None:
                self._writer.close()
            await self._end()

    @property
    def under_way(self) -> list[Chunk]:
        """The chunks in progress, the oldest first."""
        return self.chunks[: self._at_once]

    def note_begun(self) -> None:
        """Record that chunks are in progress from now on."""
        for chunk in self.under_way:
            if chunk.since is None:
                chunk.since = asyncio.get_running_loop().time()

    def send(self, message: NamedTuple) -> None:
        """Send ``message`` to the process. If the process is gone, :meth:`run` reports that."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    def kill(self, why: str) -> None:
        """Kill the process at once: :meth:`run` returns with the reason ``why``."""
        self.ended_because = why
        self._kill()
        if self._writer is not None:
            self._writer.close()  # a child process of the model may hold the socket open

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _end(self) -> int:
        """Wait for the process, or kill it, and end its process group. Returns the exit status."""
        if self._process is None:
            return 0
        try:
            status = await asyncio.wait_for(self._process.wait(), _PATIENCE)
        except asyncio.TimeoutError:
            self._kill()
            status = await self._process.wait()
        await _end_group(self._process.pid)
        self._process = None
        return status


async def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left, or not ours
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, number)
            for _ in range(round(_PATIENCE_WITH_REST / _TICK)):
                await asyncio.sleep(_TICK)
                os.killpg(group, 0)


def _last_words(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}: the log has its last words"
    name = signal.Signals(-status).name
    # if memory runs out, the kernel kills the process without a message
    hint = " (out of main memory?)" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


class Replicas:
    """The workers of one model, one for each of ``environs``. Used within one event loop.

    ``traffic`` are the limits of a model behind an API: a worker makes ``traffic.workers`` calls at once.
    A worker that takes more than ``item_timeout`` seconds per image of a call is killed; its first call has a
    longer limit. Such a kill counts as a death on the items, not as a death of the worker.
    """

    def __init__(
        self,
        environs: Sequence[Mapping[str, str]],
        command: Sequence[str] = (sys.executable, WORKER),
        item_timeout: float | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.size, self.traffic = len(environs), traffic
        self.at_once = traffic.workers if traffic else 1
        # for a local model the present chunk and the next, so that the worker never waits for its parent
        self._depth = self.at_once if traffic else 2
        self._item_timeout = item_timeout
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._slowest_first_call: dict[str, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self.say: Callable[[str], None] = say
        self._workers = [_Worker(command, environ, self.at_once) for environ in environs]
        self._models: dict[str, ReplicatedModel] = {}
        self._queue: deque[Chunk] = deque()
        self._last_death = ""
        self._together = _ANY
        self._closed = False

    async def load(self, model: ReplicatedModel, chunks: int) -> None:
        """Load ``model`` in as many workers as ``chunks`` need. Returns once one worker has loaded it.

        Workers with chunks of another model finish them first. Raises CellFailure if no worker can load the
        model.
        """
        self._models[model.key] = model
        self.start(chunks)
        self._go_on()
        await model.settled.wait()
        if model.failure:
            raise CellFailure(model.failure)

    def start(self, chunks: int) -> None:
        """Start workers for ``chunks`` chunks."""
        for worker in self._workers[:chunks]:
            if worker.task is None:
                worker.task = asyncio.create_task(self._keep_running(worker))
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    def submit(self, chunk: Chunk) -> None:
        """Queue ``chunk``. Each of its items gets an answer."""
        self._queue.append(chunk)
        self._go_on()

    def holdup(self) -> str:
        """Returns the problems of workers for the progress line; empty if there are none."""
        working = [worker for worker in self._workers if worker.task]
        told = []
        if stalled := [worker for worker in working if worker.stalls]:
            now = asyncio.get_running_loop().time()
            longest = max(now - (worker.chunks[0].since or now) for worker in stalled)
            told.append(f"{len(stalled)} of {self.size} workers: no image for {longest:.0f} s{self._usual()}")
        if gone := sum(worker.retired for worker in self._workers):
            told.append(f"{gone} of {self.size} workers {'is' if gone == 1 else 'are'} gone")
        elif working and all(worker.loading or not worker.connected for worker in working):
            told.append("loading model")
        if deaths := sum(worker.deaths_in_all + worker.timeouts for worker in self._workers):
            told.append(f"{counted(deaths, 'worker death')}, the last: {self._last_death}")
        return "; ".join(told)

    def _usual(self) -> str:
        return f" ({statistics.median(self._seconds):.3g} s is usual)" if self._seconds else ""

    async def close(self) -> None:
        """End all workers. Items and models still waiting fail."""
        tasks = [worker.task for worker in self._workers if worker.task]
        if self._watching:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._closed = True
        self._fail_what_nobody_can_make()

    async def _watch(self) -> None:
        """Warn of stalled workers, and kill workers that exceed their time limit."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            for worker in self._workers:
                if worker.chunks and (since := worker.chunks[0].since) is not None:
                    self._look_at(worker, loop.time() - since)

    def _look_at(self, worker: _Worker, seconds: float) -> None:
        items = len(worker.chunks[0].items)
        if self._item_timeout is not None:
            usual = self._item_timeout * items
            limit = max(usual, self._limit_of_first_call(worker.chunks[0], usual, worker.warm))
            if seconds > limit:
                why = (
                    f"within {limit:g} s, the limit of a first call (ITEM_TIMEOUT is {self._item_timeout:g})"
                )
                if limit == usual:
                    for_all = f" for each of {items}" * (items > 1)
                    why = f"within {self._item_timeout:g} s{for_all} (ITEM_TIMEOUT)"
                worker.kill(f"no image {why}")
                return
        bound = _STALL_AFTER_AT_FIRST
        if self._seconds:
            bound = max(_STALL_AFTER, _STALL_FACTOR * items * statistics.median(self._seconds))
        if seconds > bound and not worker.stalls:
            worker.stalls = True
            bounds = "" if self._item_timeout else "; ITEM_TIMEOUT in config.sh ends calls that take too long"
            self._tell(f"a worker has generated no image for {seconds:.0f} s{self._usual()}{bounds}")

    def _limit_of_first_call(self, chunk: Chunk, usual: float, warm: set[int]) -> float:
        """Returns the seconds for a call that may compile (else at most ``usual``); 0: nothing to compile."""
        if len(chunk.items) in warm:
            return 0.0
        if known := self._slowest_first_call.get(chunk.key):
            return _KNOWN_FIRST_CALL_FACTOR * known
        return max(_FIRST_CALL_FACTOR * usual, _FIRST_CALL_SECONDS)

    # One worker

    async def _keep_running(self, worker: _Worker) -> None:
        while not worker.retired:
            try:
                death = await worker.run(
                    lambda message: self._on_message(worker, message), lambda: self._on_start(worker)
                )
            except Exception as error:  # no process can be started, or its message is invalid
                self._tell(redact(traceback.format_exc()))
                death = portable(error)
            self._on_death(worker, death)

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a log that cannot be written must not stop the images
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
            self._models[message.key].has_loaded(message)
        else:
            worker.loading = ""
            worker.cannot.add(message.key)
            self._models[message.key].unloadable = message.text
            self._tell(f"model does not load in a worker: {message.text}")
        self._go_on()

    def _on_made(self, worker: _Worker, message: ImagesReport) -> None:
        chunk = next(chunk for chunk in worker.chunks if chunk.number == message.number)
        worker.chunks.remove(chunk)
        now = asyncio.get_running_loop().time()
        size, seconds = len(chunk.items), now - (chunk.since or now)
        self._seconds.extend([seconds / size] * size)
        if size not in worker.warm and any(isinstance(answer, Generated) for answer in message.answers):
            worker.warm.add(size)
            self._slowest_first_call[chunk.key] = max(seconds, self._slowest_first_call.get(chunk.key, 0.0))
        worker.note_begun()
        worker.stalls, worker.deaths = False, 0
        for item, returned in zip(chunk.items, message.answers, strict=True):
            if item.answer.done():
                continue  # cancelled
            if isinstance(returned, Exception):
                item.answer.set_exception(returned)
            else:
                item.answer.set_result(returned)

    def _on_death(self, worker: _Worker, death: Exception) -> None:
        if worker.ended_because:
            # the item is the cause of a timeout: more such items must not remove the worker
            worker.timeouts += 1
        else:
            worker.deaths += 1
            worker.deaths_in_all += 1
        most = _MOST_DEATHS_LOADING if worker.loading else _MOST_DEATHS
        worker.retired = worker.deaths >= most or worker.deaths_in_all >= _MOST_DEATHS_IN_ALL
        worker.connected, worker.key, worker.loading, worker.stalls = False, "", "", False
        worker.warm.clear()
        self._last_death = one_line(death, 300)
        begun, waiting = worker.under_way, worker.chunks[self.at_once :]
        worker.chunks = []
        again = [one for chunk in begun for one in self._given_back(chunk, death)]
        self._queue.extendleft(reversed([*again, *waiting]))
        if worker.retired:
            self._tell(f"a worker died {worker.deaths_in_all} times and is given up: {self._last_death}")
        else:
            self._tell(
                f"a worker died, and is started again; its items are generated again: {self._last_death}"
            )
        self._go_on()

    def _given_back(self, chunk: Chunk, death: Exception) -> list[Chunk]:
        """Returns the chunks to queue again after the worker died while generating ``chunk``."""
        chunk.forget_the_cancelled()
        if chunk.deaths + 1 >= _ITEM_DEATHS:
            chunk.fail(death)
            # the item itself was the cause, not the batch size: restore the limit
            self._together = max(self._together, chunk.together_before)
            return []
        before, batch = self._together, min(len(chunk.items), self._together)
        if batch > 1:  # the kernel may have killed it for its use of memory
            self._together = batch // 2
            self._tell(f"a worker died on a batch of {batch}: continuing with {self._together}")
        # one item per chunk, so that an item that kills a worker does not fail the others
        return [Chunk(chunk.key, chunk.log, [item], chunk.deaths + 1, before) for item in chunk.items]

    # The queue

    def _fail_what_nobody_can_make(self) -> None:
        for key, model in self._models.items():
            able = [w for w in self._workers if not w.retired and key not in w.cannot]
            if not self._closed and any(worker.task for worker in able):
                continue
            if able and not self._closed:
                self.start(self.size)  # workers not needed so far: the model may load on their GPUs
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
        for depth in range(1, self._depth + 1):
            for worker in self._workers:
                # the last chunks of the queue go to the worker that is free first
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
                return  # generated alone: if the worker dies, exactly one item must be the cause
            self._queue.remove(chunk)
            chunk.forget_the_cancelled()
            if chunk.items:
                for item in chunk.items:
                    item.state.sent = True
                worker.chunks.append(chunk)
                worker.note_begun()
                inputs = [item.given for item in chunk.items]
                seeds = [item.seed for item in chunk.items]
                size = chunk.items[0].size
                worker.send(MakeOrder(chunk.number, inputs, seeds, size, self._together, chunk.log))

    def _have_loaded(self, worker: _Worker, key: str) -> None:
        if key not in worker.cannot and key != worker.key:
            model = self._models[key]
            worker.loading, worker.key = key, ""
            worker.warm.clear()
            worker.send(LoadOrder(key, model.setting, model.log, self.traffic))


async def load_replicated(replicas: Replicas, run: CellRun) -> ReplicatedModel:
    """Returns the model of a cell, loaded by ``replicas``. Raises CellFailure if it does not load."""
    replicas.say = run.log
    model = ReplicatedModel(replicas, run.task, run.setting, str(run.log_path))
    # an estimate from the setting: the loaded model may report another batch size, or reject the setting
    size = run.setting.get("model_kwargs", {}).get("batch_size", 1)
    chunks = math.ceil(len(run.todo) / size) if isinstance(size, int) and size > 0 else len(run.todo)
    loading = asyncio.ensure_future(replicas.load(model, chunks))
    while not (await asyncio.wait([loading], timeout=_LOOK_EVERY))[0]:
        run.report(replicas.holdup() or "loading model")
    loading.result()
    return model


class ReplicatedModel(ImageModel):
    """One setting of a model (one for each task), generated by all replicas.

    Items are grouped into chunks in the order in which they begin, which is the benchmark's order. So the
    items of a batch do not depend on the number of workers. ``failure`` says why the model does not load at
    all, ``unloadable`` why it does not load in a worker.
    """

    is_async = queues = takes_size = True

    def __init__(self, replicas: Replicas, key: str, setting: Mapping[str, Any], log: str) -> None:
        self.key, self.setting, self.log = key, setting, log
        self.failure = self.unloadable = ""
        self.settled = asyncio.Event()
        self.is_bounded = False
        self._replicas = replicas
        self._packages = list[Mapping[str, str]]()
        self._run: CellLog | None = None
        self._open: Chunk | None = None

    def has_loaded(self, report: LoadReport) -> None:
        """Record a worker's packages, which differ between workers on a machine with two kinds of GPUs."""
        self.batch_size = report.batch_size
        self.is_bounded = report.is_bounded
        # for each worker: the present chunks, the next, one that waits, one that is being saved
        self.room = (self._replicas.at_once + 3) * self._replicas.size * self.batch_size
        if report.packages not in self._packages:
            self._packages.append(report.packages)
            if self._run:
                self._run.remember(report.packages)
        self.settled.set()

    def use_traffic(self, traffic: Traffic) -> bool:
        """Returns whether the workers' requests respect the limits, which they got to load the model."""
        return self.is_bounded

    def begin_cell(self, run: CellLog) -> None:
        """Record the packages and send logs to ``run``, whose items follow."""
        self._run, self.log, self._replicas.say = run, str(run.log_path), run.log
        for packages in self._packages:
            run.remember(packages)

    def packages(self) -> Mapping[str, str]:
        return self._packages[0]

    def expect(self, items: int) -> None:
        """Start workers for the ``items`` not begun. If there are none, submit the last, incomplete chunk."""
        if items:
            self._replicas.start(math.ceil(items / self.batch_size))
        else:
            # after the items that have just begun have joined the chunk
            asyncio.get_running_loop().call_soon(self._submit)

    async def generate_async(
        self, given: Any, seed: int = 42, size: tuple[int, int] | None = None
    ) -> Generated:
        """Returns the image of ``given``. Raises the model's error, or :class:`RemoteError` in its place."""
        shown = outgoing(given)
        if self._open and self._open.items[0].size != size:
            self._submit()
        if self._open is None:
            self._open = Chunk(self.key, self.log)
        answer: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        self._open.items.append(QueuedItem(shown, seed, size, answer, under_way()))
        if len(self._open.items) >= self.batch_size:
            self._submit()
        return await answer

    def _submit(self) -> None:
        chunk, self._open = self._open, None
        if chunk:
            self._replicas.submit(chunk)

    def holdup(self) -> str:
        """Returns why the model is waiting, for the progress line."""
        return self._replicas.holdup()
