"""Many items in flight in one event loop, for a model with ``generate_async``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

from imageevalkit.generation.making import Making
from imageevalkit.generation.sequential import model_input
from imageevalkit.items import Item

# Once a cell is given up, requests already sent may still be answered (and are paid for): wait this long.
_LAST_ANSWERS = 30.0


def make_concurrently(model: Any, task: str, items: Sequence[Item], making: Making, workers: int) -> None:
    """Generate ``items`` with ``workers`` of them in flight until all are done or the model is given up."""
    asyncio.run(_drain(model, task, items, making, workers))


async def _drain(model: Any, task: str, items: Sequence[Item], making: Making, workers: int) -> None:
    queue = iter(items)
    tasks = [
        asyncio.create_task(_worker(model, task, queue, making)) for _ in range(min(workers, len(items)))
    ]
    try:
        pending = set(tasks)
        while pending and not making.stopped:
            finished, pending = await asyncio.wait(pending, timeout=1, return_when=asyncio.FIRST_EXCEPTION)
            making.report()
            for task_ in finished:
                task_.result()  # a full disk ends the cell here
        if pending:
            await asyncio.wait(pending, timeout=_LAST_ANSWERS)
    finally:
        for task_ in tasks:
            task_.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if hasattr(model, "aclose"):
            await model.aclose()


async def _worker(model: Any, task: str, queue: Iterator[Item], making: Making) -> None:
    for item in queue:
        if making.stopped:
            return
        started = time.perf_counter()
        try:
            returned = await model.generate_async(model_input(task, item), seed=item.seed)
        except Exception as error:
            making.lost(item, error, time.perf_counter() - started)
        else:
            # encoding and fsync leave the loop, so that slow disks do not delay answers
            seconds = time.perf_counter() - started
            making.stored(item, await asyncio.to_thread(making.store, item, returned, seconds), seconds)
