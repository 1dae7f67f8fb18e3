"""Fake models and datasets for the generate engine: tiny, instant, counting their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from PIL import Image

from imageevalkit.generate.cell_run import CellRun, GenerateOptions
from imageevalkit.generate.concurrent import CellPlan, Load, generate_together
from imageevalkit.jobs.plan import Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, items_of


class FakeDataset:
    """``n`` text-to-image items, saved as PNG."""

    dataset_name = "fake"
    dataset_task = "t2i"

    def __init__(self, n: int, suffix: str = ".png") -> None:
        self.data = [
            {
                "prompt": f"prompt {i}",
                "seed": i,
                "image_save_path": f"<MODEL_NAME>/fake/images/{i:05d}{suffix}",
            }
            for i in range(n)
        ]


def picture(prompt: str, seed: int) -> Image.Image:
    """A small image that its prompt and seed decide."""
    image = Image.new("RGB", (8, 8), (seed % 256, len(prompt) % 256, 7))
    image.putpixel((0, 0), (255, 0, 0))
    return image


class FakeModel:
    """A plain model; ``fault(prompt)`` may raise instead."""

    model_name = "fake"

    def __init__(self, fault: Callable[[str], None] = lambda prompt: None) -> None:
        self.calls: list[str] = []
        self._fault = fault

    def generate(self, prompt: str, seed: int = 42) -> Any:
        self.calls.append(prompt)
        self._fault(prompt)
        return picture(prompt, seed)


class FakeAsyncModel(FakeModel):
    """The same with ``generate_async``; remembers the most items in flight."""

    in_flight = 0
    most_in_flight = 0

    async def generate_async(self, prompt: str, seed: int = 42) -> Any:
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await asyncio.sleep(0.005)
            return self.generate(prompt, seed)
        finally:
            self.in_flight -= 1


SETTING: dict[str, Any] = {"module": ".fake", "class": "Fake", "model_path": "", "model_kwargs": {}}


def generate(
    model: Any,
    dataset: Any,
    options: GenerateOptions | None = None,
    cell: Cell | None = None,
    **kwargs: Any,
) -> Outcome:
    """Run the engine for one cell in the current output folder; ``kwargs`` are the model's kwargs."""
    workers = options.workers if options else 1
    return settle(planned(dataset, options, cell, **kwargs), lambda run: model, workers)


def settle(cell: CellPlan, load: Load, workers: int = 1) -> Outcome:
    """How ``cell`` ends."""
    outcomes: list[Outcome] = []
    asyncio.run(generate_together([[cell]], load, workers, lambda _, outcome: outcomes.append(outcome)))
    return outcomes[0]


def planned(
    dataset: Any, options: GenerateOptions | None = None, cell: Cell | None = None, **kwargs: Any
) -> CellPlan:
    """A cell to come, its log on stdout."""
    cell = cell or Cell("m", "fake")
    setting = {**SETTING, "model_kwargs": kwargs}

    def open_cell() -> CellRun:
        return CellRun(
            cell,
            items(dataset, cell),
            dataset.dataset_task,
            setting,
            options or GenerateOptions(),
            ProgressWriter(),
            print,
        )

    return CellPlan(cell, open_cell, print)


def items(dataset: Any, cell: Cell | None = None) -> list[Item]:
    """The dataset's items for the usual cell."""
    return items_of(dataset, cell or Cell("m", "fake"))
