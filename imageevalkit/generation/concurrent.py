"""Many items of many cells in flight in one event loop, for a model with ``generate_async`` or one behind an API."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from imageevalkit.api.retry import UnderWay, under_way
from imageevalkit.cell.items import Item
from imageevalkit.cpu import on_cpu
from imageevalkit.generation.cell_run import CellRun
from imageevalkit.generation.contract import Generated
from imageevalkit.generation.model import image_model
from imageevalkit.guest_code import CodeExit, guest_code
from imageevalkit.open_files import one_is_free

# Once a cell is given up, requests already sent may still be answered (and are paid for): wait this long at most.
_LAST_ANSWERS = 300.0
_TICK = 0.5  # seconds between two looks at a cell, for its progress line


class Asker:
    """A model that is asked for images without blocking the event loop, ``room`` of them at a time.

    A class with a plain ``generate`` (an API client written to the extension guide) is asked in threads. It need not
    be safe for that: each thread gets an instance of its own from ``load``.
    """

    def __init__(self, model: Any, load: Callable[[], Any], workers: int) -> None:
        self.model = image_model(model)
        room = max(4, 2 * workers) if self.model.queues else workers
        self.room = asyncio.Semaphore(self.model.room or room)
        self._load = load
        self._own = threading.local()
        self._threads = None if self.model.is_async else ThreadPoolExecutor(workers)

    async def ask(self, given: Any, seed: int) -> Any:
        """What ``generate`` of the model returns or raises."""
        if self.model.is_async:
            with guest_code(cancellable=True):
                return await self.model.generate_async(given, seed=seed)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._generate, given, seed)

    def _generate(self, given: Any, seed: int) -> Any:
        if not vars(self._own):
            self._own.model = image_model(self._load())
        with guest_code():
            return self._own.model.generate(given, seed=seed)

    async def close(self) -> None:
        """Close the model's connections."""
        with contextlib.suppress(Exception), guest_code():  # its cells are settled, whatever comes now
            await self.model.aclose()
        if self._threads:
            self._threads.shutdown(wait=False)


async def drain(cells: AsyncIterator[tuple[CellRun, Asker]], end: Callable[[CellRun], None]) -> None:
    """Make the items of ``cells``, in their order.

    The next cell begins as soon as no item of the one before is left to begin. ``end`` is called once for
    each, when its last item is settled.
    """
    under_way: list[_CellInFlight] = []
    try:
        async for run, asker in cells:
            cell = _CellInFlight(run, asker, end)
            under_way.append(cell)
            await cell.begin_items()
        for cell in under_way:
            await cell.ended
    finally:
        for cell in under_way:
            await cell.abandon()


def model_input(task: str, item: Item) -> Any:
    """What the extension guide hands to ``generate``: the prompt (t2i) or the input list."""
    return item.prompt if task == "t2i" else item.input_list


class _CellInFlight:
    def __init__(self, run: CellRun, asker: Asker, end: Callable[[CellRun], None]) -> None:
        self._run, self._asker, self._end = run, asker, end
        self._tasks: dict[asyncio.Task[None], UnderWay] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        self._all_begun = False
        self._committing = ThreadPoolExecutor(1, "commit")
        self._settled = asyncio.Event()
        self.ended = asyncio.create_task(self._watch())

    async def begin_items(self) -> None:
        """Begin one item after another as there is room, until all are begun or the cell is given up."""
        for begun, item in enumerate(self._run.todo):
            self._asker.model.expect(len(self._run.todo) - begun)
            await self._asker.room.acquire()
            if self._run.making.stopped:
                self._asker.room.release()
                break
            # a model that does not say whether a request is out may have one out at any time
            state = UnderWay(sent=not self._asker.model.queues)
            task = asyncio.create_task(self._make(item, state))
            self._tasks[task] = state
            task.add_done_callback(self._on_done)
        self._all_begun = True
        self._asker.model.expect(0)
        self._look()

    async def abandon(self) -> None:
        """Cancel whatever is still under way, but let what has been answered be stored."""
        tasks = [*self._tasks, self.ended]
        for task in tasks:
            if task not in self._tasks or not self._tasks[task].answered:
                self._cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._committing.shutdown(wait=False)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        self._cancelled.add(task)
        task.cancel()

    async def _make(self, item: Item, state: UnderWay) -> None:
        making = self._run.making
        started = time.perf_counter()
        under_way.set(state)
        try:
            returned = await self._asker.ask(model_input(self._run.task, item), item.seed)
        except asyncio.CancelledError as error:
            if asyncio.current_task() in self._cancelled:
                raise
            state.answered = True
            own = CodeExit(f"its code raised {type(error).__name__}")
            await self._lost(item, own, time.perf_counter() - started)
        except Exception as error:
            state.answered = True
            await self._lost(item, error, time.perf_counter() - started)
        else:
            state.answered = True
            seconds = time.perf_counter() - started
            if isinstance(returned, Generated) and returned.seconds is not None:
                seconds = returned.seconds
            # encoding and fsync leave the loop, so that slow disks do not delay answers; what is paid for is
            # stored, even if the cell is given up meanwhile
            problem = await asyncio.shield(on_cpu(making.store, item, returned, seconds))
            making.stored(item, returned, problem, seconds)
        # one thread: those that come while it waits for the disk are made durable together, by the next turn
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._committing, making.commit))

    async def _lost(self, item: Item, error: Exception, seconds: float) -> None:
        # its log and its placeholder are files
        await one_is_free()
        self._run.making.lost(item, error, seconds)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._asker.room.release()
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()):
            self._run.fail(error)  # a full disk
        self._look()

    def _look(self) -> None:
        if self._all_begun and not self._tasks:
            self._settled.set()

    async def _watch(self) -> None:
        given_up = None
        while not self._settled.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._settled.wait(), _TICK)
            try:
                with guest_code():
                    self._run.making.report(self._run.holdup())
            except Exception as error:  # a fault in a model's code must not take the other cells along
                self._run.fail(error)
            if self._run.making.stopped:
                given_up = given_up or time.monotonic()
                is_late = time.monotonic() - given_up > _LAST_ANSWERS
                for task, state in self._tasks.items():
                    if not state.answered and (is_late or not state.sent):
                        self._cancel(task)
        await one_is_free()
        self._end(self._run)
