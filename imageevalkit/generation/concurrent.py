"""All cells of a generate job at once: items in flight in one event loop, and what each cell's end comes to."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from imageevalkit.api.clients import UnderWay, under_way
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.errors import CellFailure
from imageevalkit.generation.cell_run import CellRun
from imageevalkit.generation.model import Generated, image_model
from imageevalkit.guest_code import CodeExit, guest_code
from imageevalkit.jobs import FAILED, Outcome, outcome_of
from imageevalkit.machine import on_cpu, one_is_free, when_one_is_free
from imageevalkit.secrets import one_line, redact

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
            await self._read_sources(item)
            if self._run.outcomes.stopped:
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

    async def _read_sources(self, item: Item) -> None:
        """What the record of a paid image tells of its source pictures: they may go away meanwhile."""
        if item.input_list is not None and not self._run.outcomes.stopped:
            try:
                await on_cpu(when_one_is_free, lambda: item.prompt_sha256)
            except Exception as error:
                self._run.fail(error)

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
        outcomes = self._run.outcomes
        started = time.perf_counter()
        under_way.set(state)
        try:
            shown = item.prompt if self._run.task == "t2i" else item.input_list
            returned = await self._asker.ask(shown, item.seed)
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
            problem = await asyncio.shield(on_cpu(outcomes.store, item, returned, seconds))
            outcomes.stored(item, returned, problem, seconds)
        # one thread: those that come while it waits for the disk are made durable together, by the next turn
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._committing, outcomes.commit))

    async def _lost(self, item: Item, error: Exception, seconds: float) -> None:
        # its log and its placeholder are files
        await one_is_free()
        self._run.outcomes.lost(item, error, seconds)

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
                    self._run.outcomes.report(self._run.holdup())
            except Exception as error:  # a fault in a model's code must not take the other cells along
                self._run.fail(error)
            if self._run.outcomes.stopped:
                given_up = given_up or time.monotonic()
                is_late = time.monotonic() - given_up > _LAST_ANSWERS
                for task, state in self._tasks.items():
                    if not state.answered and (is_late or not state.sent):
                        self._cancel(task)
        await one_is_free()
        self._end(self._run)


Load = Callable[[CellRun], Any]
"""Gives the loaded model of a cell. Raises CellFailure when it does not load."""


class CellPlan(NamedTuple):
    """A cell to come: ``open`` surveys it, ``log`` takes what is said about it."""

    cell: Cell
    open: Callable[[], CellRun]
    log: Callable[[str], None]


async def generate_together(
    models: Sequence[Sequence[CellPlan]],
    load: Load,
    workers: int,
    settle: Callable[[Cell, Outcome], None],
) -> None:
    """Make the missing images of many cells at once; ``models`` holds the cells of one model each, in order.

    ``workers`` requests are in flight for each model or, where models share a ``Traffic``, for each endpoint.
    ``settle`` is called with the outcome of each cell as soon as it has one.
    """
    await asyncio.gather(*(_Model(cells, load, workers, settle).generate() for cells in models))


class _Model:
    """The cells of one model in a job that other models share: no fault here may reach them."""

    def __init__(
        self,
        cells: Sequence[CellPlan],
        load: Load,
        workers: int,
        settle: Callable[[Cell, Outcome], None],
    ) -> None:
        self._cells, self._load, self._workers, self._settle = cells, load, workers, settle
        self._unsettled = {cell.cell: cell for cell in cells}
        self._askers: dict[str, Asker] = {}
        self._unloadable: dict[str, Outcome] = {}

    async def generate(self) -> None:
        try:
            await drain(self._opened(), self._end)
        except Exception as error:
            for planned in list(self._unsettled.values()):
                planned.log(redact("".join(traceback.format_exception(error))))
                self._done(planned.cell, Outcome(FAILED, f"{type(error).__name__}: {one_line(error, 300)}"))
        finally:
            for asker in self._askers.values():
                await asker.close()

    def _done(self, cell: Cell, outcome: Outcome) -> None:
        del self._unsettled[cell]
        self._settle(cell, outcome)

    def _end(self, run: CellRun) -> None:
        self._done(run.cell, outcome_of(run.end, self._unsettled[run.cell].log))

    async def _opened(self) -> AsyncIterator[tuple[CellRun, Asker]]:
        for planned in self._cells:
            run = await asyncio.to_thread(self._begun, planned)
            if run:
                yield run, self._askers[run.task]

    def _begun(self, planned: CellPlan) -> CellRun | None:
        """The cell, ready to be made; None when it is settled without. Runs in a thread."""
        runs: list[CellRun] = []

        def begin() -> Outcome:
            run = planned.open()
            if run.outcome:
                return run.outcome
            if not run.todo:
                return run.end()
            if run.task in self._unloadable:
                return self._unloadable[run.task]
            if run.task not in self._askers:
                run.outcomes.report("loading model", force=True)
                try:
                    model = self._load(run)
                except CellFailure as error:
                    self._unloadable[run.task] = Outcome(FAILED, one_line(error))
                    raise
                self._askers[run.task] = Asker(model, functools.partial(self._load, run), self._workers)
            run.begin(self._askers[run.task].model)
            runs.append(run)
            return Outcome("")

        outcome = outcome_of(begin, planned.log)
        if runs:
            return runs[0]
        self._done(planned.cell, outcome)
        return None
