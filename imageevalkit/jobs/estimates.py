"""Forecasts of a stage for the launcher: requests on stdin, an estimate for each of their cells on stdout.

The launcher writes ``{"settings": by benchmark, "requests": [{"cells": […], "order": …, …}]}`` as JSON.
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

from imageevalkit.common.errors import CellFailure, ExitStatus, said_of, show
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.redaction import one_line
from imageevalkit.jobs.plan import BenchmarkSettings, cell_of
from imageevalkit.registry import load_dataset
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import MODEL_NAME_MARK, Item, as_shown, drawn, entries_of, placed
from imageevalkit.store.shards import Shard
from imageevalkit.store.states import Survey, survey


class Datasets:
    """The datasets of benchmarks. Each is read and checked once, however many models there are."""

    def __init__(self, settings: BenchmarkSettings | None = None) -> None:
        self.settings = settings or {}
        self._loaded = functools.cache(lambda name: load_dataset(name, self.settings.get(name, {})))
        self._entries = functools.cache(lambda benchmark: entries_of(self[benchmark], benchmark))
        self._untouched = functools.cache(lambda cell, *chosen: survey(cell, self.items(cell, *chosen)))

    def __getitem__(self, benchmark: str) -> Any:
        return self._loaded(benchmark)

    def items(self, cell: Cell, limit: int | None, asked: int | None = None) -> list[Item]:
        """Returns the first ``limit`` items of ``cell``, or a random sample of ``asked`` of them."""
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
        """Returns the state of the images of ``cell`` with ``settings``, as a ``shard`` sees them.

        The survey is shared by all cells without a folder.
        """
        if cell.folder.exists():
            items = as_shown(cell, self.items(cell, limit, asked))
            return survey(cell, items, settings, quick=quick, shard=shard)
        return self._untouched(Cell(MODEL_NAME_MARK, cell.benchmark), limit, asked)


SECONDS_OF_AN_IMAGE, SECONDS_OF_A_REPLY = 20.0, 3.0
"""Seconds assumed for an image of an API without earlier images, and for a reply of a judge's endpoint."""


class Estimate(NamedTuple):
    """The work of a stage for a cell: a line for the user, and numbers for the totals of a plan.

    ``images`` are to be generated, ``requests`` go to APIs. ``usd`` is the price of the requests, without the
    ``unpriced`` ones. ``seconds`` is the time of the work in sequence; ``untimed`` names the part with an
    unknown time (empty: none). ``at_once`` requests are in flight, at most ``per_minute``. ``wait``: the time of the
    requests in words, in place of the ``seconds``.
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
    wait: str = ""


Forecast = Callable[[Cell], Estimate]
Count = Callable[[Cell], int]


@contextlib.contextmanager
def stdout_kept() -> Iterator[None]:
    """Redirect the output of foreign code, its programs and C libraries included, to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def tell_forecasts(forecast_of: Callable[[Mapping[str, Any], Datasets], Forecast | Count]) -> ExitStatus:
    """Print, for each request, a list of ``[estimate, succeeded]``, one for each cell.

    An estimate is the list of the fields of :class:`Estimate`.
    """
    gc.disable()  # takes a quarter of the time, and 100,000 questions hold no garbage
    asked = json.load(sys.stdin)
    datasets = Datasets(asked["settings"])
    # cached: cells with the same request share one benchmark object
    forecast_for = functools.cache(lambda request: forecast_of(json.loads(request), datasets))

    def told(forecast: Forecast | Count, key: str) -> tuple[Estimate | int, bool]:
        try:
            with guest_code():
                return forecast(cell_of(key)), True
        except Exception as error:  # an error in one dataset class or benchmark must not hide the other cells
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
    """Returns the main function of a stage: ``job``, or with ``--forecast`` :func:`tell_forecasts`."""
    return functools.partial(tell_forecasts, forecast_of) if sys.argv[1:] == ["--forecast"] else job
