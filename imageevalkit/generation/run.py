"""Generating the cells of some models, each model's one after another without a gap."""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from imageevalkit.cell import Cell
from imageevalkit.errors import CellFailure
from imageevalkit.generation.cell_run import CellRun
from imageevalkit.generation.concurrent import Asker, drain
from imageevalkit.jobs import FAILED, Outcome, outcome_of
from imageevalkit.secrets import one_line, redact

Load = Callable[[CellRun], Any]
"""Gives the loaded model of a cell. Raises CellFailure when it does not load."""


class Planned(NamedTuple):
    """A cell to come: ``open`` surveys it, ``log`` takes what is said about it."""

    cell: Cell
    open: Callable[[], CellRun]
    log: Callable[[str], None]


async def generate_together(
    models: Sequence[Sequence[Planned]],
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
        cells: Sequence[Planned],
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

    def _begun(self, planned: Planned) -> CellRun | None:
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
                run.making.report("loading model", force=True)
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
