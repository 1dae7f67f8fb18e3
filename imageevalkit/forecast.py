"""What a stage would do, told to ``--dry_run``: requests on stdin, a line for each of their cells as JSON on stdout."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from imageevalkit.cell import Cell
from imageevalkit.cell.items import MODEL_NAME_MARK, Item, entries_of, placed
from imageevalkit.cell.states import Survey, survey
from imageevalkit.errors import CellFailure, ExitStatus, show
from imageevalkit.guest_code import guest_code
from imageevalkit.jobs import cell_of
from imageevalkit.registry import load_dataset
from imageevalkit.secrets import one_line


class Datasets:
    """The datasets of benchmarks, each read and checked once however many models there are."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}
        self._entries: dict[str, list[Item]] = {}
        self._surveys: dict[tuple[str, int | None], Survey] = {}
        self._untouched: dict[tuple[str, int | None], list[Item]] = {}

    def __getitem__(self, benchmark: str) -> Any:
        if benchmark not in self._loaded:
            self._loaded[benchmark] = load_dataset(benchmark)
        return self._loaded[benchmark]

    def items(self, cell: Cell, limit: int | None) -> list[Item]:
        """The first ``limit`` items of ``cell``; of all cells without a folder the same, for they are only counted.

        Raises:
            CellFailure: an entry breaks the contract.
        """
        if cell.folder.exists():
            return self.own_items(cell, limit)
        key = (cell.benchmark, limit)
        if key not in self._untouched:
            self._untouched[key] = self.own_items(Cell(MODEL_NAME_MARK, cell.benchmark), limit)
        return self._untouched[key]

    def survey(self, cell: Cell, limit: int | None, settings: Mapping[str, Any]) -> Survey:
        """What is there of the images of ``cell`` by a model with ``settings``; of all cells without a folder the same.

        Raises:
            CellFailure: an entry breaks the contract, or a file of the cell cannot be read.
        """
        key, items = (cell.benchmark, limit), self.items(cell, limit)
        if cell.folder.exists():
            return survey(cell, items, settings)
        if key not in self._surveys:
            self._surveys[key] = survey(cell, items)
        return self._surveys[key]

    def own_items(self, cell: Cell, limit: int | None) -> list[Item]:
        """The same, of each cell its own. Raises CellFailure like :meth:`items`."""
        if cell.benchmark not in self._entries:
            self._entries[cell.benchmark] = entries_of(self[cell.benchmark], cell.benchmark)
        return placed(self._entries[cell.benchmark][:limit], cell)


Forecast = Callable[[Cell], str]


@contextlib.contextmanager
def stdout_kept() -> Iterator[None]:
    """For the time that code of others runs: what it prints, by its programs and C libraries too, goes to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def tell_forecasts(forecast_of: Callable[[Mapping[str, Any], Datasets], Forecast]) -> ExitStatus:
    """For each request a list of ``[line, counted]``, one for each of its cells: what ``forecast_of(request)`` says.

    A cell whose forecast fails is a line too, not counted.
    """
    datasets = Datasets()
    forecasts: dict[str, Forecast] = {}
    told = []
    with stdout_kept():
        for request in json.load(sys.stdin):
            cells = request.pop("cells")
            same = json.dumps(request)  # a benchmark is made once for all cells of which the same is asked
            if same not in forecasts:
                forecasts[same] = forecast_of(request, datasets)
            told.append([_told(forecasts[same], cell_of(key)) for key in cells])
    show(json.dumps(told))
    return ExitStatus.COMPLETE


def _told(forecast: Forecast, cell: Cell) -> tuple[str, bool]:
    try:
        with guest_code():
            said = forecast(cell)
        return f"{cell.key}: {said}", True
    except Exception as error:  # a fault in one dataset class or benchmark must not hide the other cells
        kind = "" if isinstance(error, CellFailure) else f"{type(error).__name__}: "
        return f"{cell.key}: unknown: {kind}{one_line(error, 300)}", False
