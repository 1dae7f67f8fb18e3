"""Generating cells: one after another on this machine's model, or all at once through an API."""

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
from imageevalkit.generation.sequential import make_one_by_one
from imageevalkit.jobs import FAILED, Outcome
from imageevalkit.secrets import one_line, redact

Load = Callable[[CellRun], Any]
"""Gives the loaded model of a cell. Raises CellFailure when it does not load."""


class Planned(NamedTuple):
    """A cell to come: ``open`` surveys it, ``log`` takes what is said about it."""

    cell: Cell
    open: Callable[[], CellRun]
    log: Callable[[str], None]

    def outcome_of(self, step: Callable[[], Outcome]) -> Outcome:
        """What ``step`` returns; a fault in one benchmark's or model's code must not take the other cells along."""
        try:
            return step()
        except CellFailure as error:
            return Outcome(FAILED, one_line(error))
        except Exception as error:
            self.log(redact(traceback.format_exc()))
            return Outcome(FAILED, f"{type(error).__name__}: {one_line(error, 300)}")


def generate_cell(planned: Planned, load: Load) -> Outcome:
    """Make every missing image of one cell; ``load`` is called only when there is something to make."""

    def make() -> Outcome:
        run = planned.open()
        if run.outcome:
            return run.outcome
        if run.todo:
            run.making.report("loading model", force=True)
            model = load(run)
            run.begin(model)
            asker = Asker(model, lambda: model, run.making.workers)
            if asker.is_async:
                asyncio.run(_drain_one(run, asker))
            else:
                make_one_by_one(model, run.task, run.todo, run.making)
        return run.end()

    return planned.outcome_of(make)


async def _drain_one(run: CellRun, asker: Asker) -> None:
    async def only() -> AsyncIterator[tuple[CellRun, Asker]]:
        yield run, asker

    try:
        await drain(only(), lambda ended: None)
    finally:
        await asker.close()


async def generate_together(
    models: Sequence[Sequence[Planned]],
    load: Load,
    workers: int,
    settle: Callable[[Cell, Outcome], None],
) -> None:
    """Make the missing images of many cells at once; ``models`` holds the cells of one model each, in order.

    ``workers`` requests are in flight, for each model or, where models share a ``Traffic``, in all. ``settle``
    is called with the outcome of each cell as soon as it has one.
    """
    await asyncio.gather(*(_generate_model(cells, load, workers, settle) for cells in models))


async def _generate_model(
    cells: Sequence[Planned], load: Load, workers: int, settle: Callable[[Cell, Outcome], None]
) -> None:
    askers: dict[str, Asker] = {}
    planned = {cell.cell: cell for cell in cells}

    def end(run: CellRun) -> None:
        settle(run.cell, planned[run.cell].outcome_of(run.end))

    async def opened() -> AsyncIterator[tuple[CellRun, Asker]]:
        for cell in cells:
            outcome, run = await asyncio.to_thread(_open, cell)
            if run is None or outcome:
                settle(cell.cell, outcome or Outcome(FAILED))
                continue
            try:
                if run.task not in askers:
                    run.making.report("loading model", force=True)
                    model = await asyncio.to_thread(load, run)
                    askers[run.task] = Asker(model, functools.partial(load, run), workers)
                run.begin(askers[run.task].model)
            except CellFailure as error:
                settle(cell.cell, Outcome(FAILED, one_line(error)))
                continue
            yield run, askers[run.task]

    try:
        await drain(opened(), end)
    finally:
        for asker in askers.values():
            await asker.close()


def _open(planned: Planned) -> tuple[Outcome | None, CellRun | None]:
    """The surveyed cell, with its outcome where it has one without any making."""
    runs: list[CellRun] = []

    def survey() -> Outcome:
        run = planned.open()
        runs.append(run)
        return run.outcome or run.end()

    outcome = planned.outcome_of(survey)
    run = runs[0] if runs else None
    return (None, run) if run and run.todo and not run.outcome else (outcome, run)
