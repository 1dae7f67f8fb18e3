"""Generates the images of all cells of a generate job in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from imageevalkit.api.in_flight import InFlight, under_way
from imageevalkit.api.sender import Delivery, Sender, current_delivery
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.guest_code import CodeExit, guest_code
from imageevalkit.common.machine import on_cpu, one_is_free, when_one_is_free
from imageevalkit.common.redaction import one_line, redact
from imageevalkit.generate.cell_run import CellRun
from imageevalkit.generate.model import Generated, image_model, in_threads, size_for
from imageevalkit.jobs.plan import FAILED, Outcome, outcome_of
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item

# seconds: after a cell is given up, replies to requests already sent (and paid for) are awaited this long
_LAST_ANSWERS = 300.0


class Asker:
    """Calls a model without blocking the event loop, for at most ``room`` items at a time.

    A class with a plain ``generate`` (an API client written after the extension guide) is called in threads.
    The class need not be thread-safe: each thread gets its own instance from ``load``.
    """

    def __init__(self, load: Callable[[], Any], workers: int, sender: Sender | None) -> None:
        self.model = image_model(load())
        room = max(4, 2 * workers) if self.model.queues else workers
        if sender and self.model.takes_sender:
            room = sender.most
        self.room = asyncio.Semaphore(self.model.room or room)
        self._generate = in_threads(lambda: image_model(load()))
        self._threads = None if self.model.is_async else ThreadPoolExecutor(workers)

    async def ask(self, given: Any, seed: int, size: tuple[int, int] | None) -> Any:
        """Returns or raises the result of the model's ``generate``."""
        size_asked = size_for(self.model, size)
        if self.model.is_async:
            generate: Callable[..., Any] = self.model.generate_async
            with guest_code(cancellable=True):
                return await generate(given, seed=seed, **size_asked)
        call = functools.partial(self._generate, given, seed, **size_asked)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def close(self) -> None:
        """Close the model's connections."""
        with contextlib.suppress(Exception), guest_code():  # its cells already have their outcomes
            await self.model.aclose()
        if self._threads:
            self._threads.shutdown(wait=False)


class _CellInFlight:
    def __init__(self, run: CellRun, asker: Asker, end: Callable[[CellRun], None]) -> None:
        self._run, self._asker, self._end = run, asker, end
        self._committing = ThreadPoolExecutor(1, "commit")
        self._in_flight = InFlight(
            self._make, lambda: bool(run.stopped), run.fail, _LAST_ANSWERS, asker.model.queues
        )
        self.ended = asyncio.create_task(self._watch())

    async def begin(self) -> None:
        await self._in_flight.begin(self._run.todo, self._asker.room, self._expect, self._read_sources)

    def _expect(self, items: int) -> None:
        self._asker.model.expect(items)
        if self._run.sender:
            self._run.sender.expected = items

    async def _read_sources(self, item: Item) -> None:
        """Copy the input images for the record of a paid image: their files may disappear meanwhile."""
        if item.input_list is not None and not self._run.stopped:
            try:
                await on_cpu(when_one_is_free, lambda: self._run.keep_inputs(item))
            except Exception as error:
                self._run.fail(error)

    async def abandon(self) -> None:
        self.ended.cancel()
        await self._in_flight.abandon()
        await asyncio.gather(self.ended, return_exceptions=True)
        if self._run.sender:
            await self._run.sender.close()
        self._committing.shutdown(wait=False)

    async def _make(self, item: Item) -> None:
        run, state = self._run, under_way()
        started = time.perf_counter()
        if run.sender:
            current_delivery.set(Delivery(run.sender, item.id))
        try:
            shown = item.prompt if run.task == "t2i" else item.input_list
            returned = await self._asker.ask(shown, item.seed, item.size)
        except (asyncio.CancelledError, Exception) as error:
            if isinstance(error, asyncio.CancelledError):
                if self._in_flight.is_given_up():
                    raise
                error = CodeExit(f"its code raised {type(error).__name__}")
            state.answered = True
            await one_is_free()  # the log and the placeholder are files
            run.lost(item, error, time.perf_counter() - started)
        else:
            state.answered = True
            seconds = time.perf_counter() - started
            if isinstance(returned, Generated) and returned.seconds is not None:
                seconds = returned.seconds
            # Encoding and fsync run outside the loop, so that slow disks do not delay replies. Paid images
            # are stored even if the cell is stopped meanwhile.
            problem = await asyncio.shield(on_cpu(run.store, item, returned, seconds))
            run.stored(item, returned, problem, seconds)
        # one thread: outcomes that arrive while it waits for the disk are made durable together
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._committing, run.commit))
        if run.sender:
            run.sender.settle(item.id)

    async def _watch(self) -> None:
        await self._in_flight.settled(self._report)
        if self._run.sender:
            await self._run.sender.close()
        await one_is_free()
        self._end(self._run)

    def _report(self) -> None:
        try:
            with guest_code():
                self._run.report(self._run.holdup())
        except Exception as error:  # an error in a model's code must not stop the other cells
            self._run.fail(error)


Load = Callable[[CellRun], Any]
"""Returns the loaded model of a cell. Raises CellFailure if the model does not load."""


class CellPlan(NamedTuple):
    """A planned cell: ``open`` surveys it, ``log`` receives its log lines."""

    cell: Cell
    open: Callable[[], CellRun]
    log: Callable[[str], None]


async def generate_together(
    models: Sequence[Sequence[CellPlan]],
    load: Load,
    workers: int,
    settle: Callable[[Cell, Outcome], None],
) -> None:
    """Generate the missing images of many cells at once. ``models`` holds the cells of each model, in order.

    ``workers`` requests are in flight for each model or, if models share a ``Traffic``, for each endpoint.
    ``settle`` is called with the outcome of each cell as soon as the cell ends.
    """
    await asyncio.gather(*(_Model(cells, load, workers, settle).generate() for cells in models))


class _Model:
    """The cells of one model. An error here must not reach the other models of the job."""

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
        cells: list[_CellInFlight] = []
        try:
            async with contextlib.AsyncExitStack() as begun:
                # the next cell begins once all items of the previous one have begun
                for planned in self._cells:
                    if run := await asyncio.to_thread(self._begun, planned):
                        cells.append(_CellInFlight(run, self._askers[run.task], self._end))
                        begun.push_async_callback(cells[-1].abandon)
                        await cells[-1].begin()
                for cell in cells:
                    await cell.ended
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

    def _begun(self, planned: CellPlan) -> CellRun | None:
        """Returns the cell, ready to be generated; None if it already has its outcome. Runs in a thread."""
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
                run.report("loading model", force=True)
                load = functools.partial(self._load, run)
                try:
                    self._askers[run.task] = Asker(load, self._workers, run.sender)
                except CellFailure as error:
                    self._unloadable[run.task] = Outcome(FAILED, one_line(error))
                    raise
            run.begin(self._askers[run.task].model)
            runs.append(run)
            return Outcome("")

        outcome = outcome_of(begin, planned.log)
        if runs:
            return runs[0]
        self._done(planned.cell, outcome)
        return None
