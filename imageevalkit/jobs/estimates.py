"""The datasets of benchmarks, and estimates of the requests, money and time that a cell needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from imageevalkit.jobs.plan import BenchmarkSettings, GenerateOrder
from imageevalkit.registry import load_dataset
from imageevalkit.store import fingerprint as fp
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
        self, cell: Cell, order: GenerateOrder, shard: Shard | None, quick: bool = False
    ) -> tuple[Mapping[str, Any], Survey]:
        """Returns the model's setting for ``cell`` by ``order``, and the state of the images as a ``shard`` sees them.

        The survey is shared by all cells without a folder.
        """
        task, asked = self[cell.benchmark].dataset_task, order.asked.get(cell.benchmark)
        setting = order.settings[cell.model][task]
        if not cell.folder.exists():
            return setting, self._untouched(Cell(MODEL_NAME_MARK, cell.benchmark), order.limit, asked)
        items = as_shown(cell, self.items(cell, order.limit, asked))
        return setting, survey(cell, items, fp.settings_of(task, setting), quick=quick, shard=shard)


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
"""Estimates the work of a job on a cell."""
