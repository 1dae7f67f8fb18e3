"""What a stage would do, told to the launcher: requests on stdin, a word on each of their cells as JSON on stdout.

The launcher writes ``{"settings": those of the benchmarks, "requests": [{"cells": […], "order": …, …}]}``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from imageevalkit.cell import Cell
from imageevalkit.cell.items import MODEL_NAME_MARK, Item, as_shown, drawn, entries_of, placed
from imageevalkit.cell.shards import Shard
from imageevalkit.cell.states import Survey, survey
from imageevalkit.errors import CellFailure, ExitStatus, said_of, show
from imageevalkit.guest_code import guest_code
from imageevalkit.jobs import BenchmarkSettings, cell_of
from imageevalkit.registry import load_dataset
from imageevalkit.secrets import one_line


class Datasets:
    """The datasets of benchmarks, each read and checked once however many models there are."""

    def __init__(self, settings: BenchmarkSettings | None = None) -> None:
        self.settings = settings or {}
        self._loaded = functools.cache(lambda name: load_dataset(name, self.settings.get(name, {})))
        self._entries = functools.cache(lambda benchmark: entries_of(self[benchmark], benchmark))
        self._untouched = functools.cache(lambda cell, *chosen: survey(cell, self.items(cell, *chosen)))

    def __getitem__(self, benchmark: str) -> Any:
        return self._loaded(benchmark)

    def items(self, cell: Cell, limit: int | None, asked: int | None = None) -> list[Item]:
        """The first ``limit`` items of ``cell``, and of these those that are drawn first."""
        entries = self._entries(cell.benchmark)[:limit]
        return placed(entries if asked is None else drawn(entries, cell.benchmark, asked), cell)

    def survey(
        self,
        cell: Cell,
        limit: int | None,
        settings: Mapping[str, Any],
        shard: Shard | None = None,
        asked: int | None = None,
        quick: bool = False,
    ) -> Survey:
        """What is there of the images of ``cell`` against ``settings``, as a ``shard`` looks at it.

        Of all cells without a folder it is the same.
        """
        if cell.folder.exists():
            items = as_shown(cell, self.items(cell, limit, asked))
            return survey(cell, items, settings, quick=quick, shard=shard)
        return self._untouched(Cell(MODEL_NAME_MARK, cell.benchmark), limit, asked)


SECONDS_OF_AN_IMAGE, SECONDS_OF_A_REPLY = 20.0, 3.0
"""Seconds that a plan assumes for an API without images of the cell yet, and for a judge behind an endpoint."""


class Estimate(NamedTuple):
    """The work of a stage for a cell: a line for the user, and the numbers that the totals of a plan add up.

    ``images`` are to be made, ``requests`` go to APIs. ``usd`` is the price of those requests; ``unpriced`` counts the
    ones whose price is not known. ``seconds`` is how long the work takes one after another; ``untimed`` says whose time
    is not known (empty: it is in ``seconds``). ``at_once`` of the requests are in flight, at most ``per_minute``.
    """

    text: str
    images: int = 0
    requests: int = 0
    usd: float = 0.0
    unpriced: int = 0
    seconds: float = 0.0
    untimed: str = ""
    at_once: int = 1
    per_minute: float | None = None
    batch: bool = False


Forecast = Callable[[Cell], Estimate]
Count = Callable[[Cell], int]


@contextlib.contextmanager
def stdout_kept() -> Iterator[None]:
    """What code of others prints meanwhile, by its programs and C libraries too, goes to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def tell_forecasts(forecast_of: Callable[[Mapping[str, Any], Datasets], Forecast | Count]) -> ExitStatus:
    """Print, for each request, a list of ``[estimate, counted]``, one for each cell; a cell that fails is not counted.

    An estimate is the list of the fields of :class:`Estimate`.
    """
    gc.disable()  # of 100,000 questions none is garbage, and looking for some takes a quarter of the time
    asked = json.load(sys.stdin)
    datasets = Datasets(asked["settings"])
    # a benchmark is made once for all cells of which the same is asked
    forecast_for = functools.cache(lambda request: forecast_of(json.loads(request), datasets))

    def told(forecast: Forecast | Count, key: str) -> tuple[Estimate | int, bool]:
        try:
            with guest_code():
                return forecast(cell_of(key)), True
        except Exception as error:  # a fault in one dataset class or benchmark must not hide the other cells
            said = one_line(error, 300) if isinstance(error, CellFailure) else said_of(error)
            return Estimate(f"unknown: {said}"), False

    answers = []
    with stdout_kept():
        for request in asked["requests"]:
            cells = request.pop("cells")
            forecast = forecast_for(json.dumps(request))
            answers.append([told(forecast, key) for key in cells])
    show(json.dumps(answers))
    return ExitStatus.COMPLETE


def job_or_forecast(
    job: Callable[[], ExitStatus], forecast_of: Callable[[Mapping[str, Any], Datasets], Forecast]
) -> Callable[[], ExitStatus]:
    """What the program of a stage does: its ``job`` or, with ``--forecast`` alone, :func:`tell_forecasts`."""
    return functools.partial(tell_forecasts, forecast_of) if sys.argv[1:] == ["--forecast"] else job
