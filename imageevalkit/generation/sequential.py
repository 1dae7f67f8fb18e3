"""Items one after another, for a model with a plain ``generate``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from imageevalkit.generation.making import Making
from imageevalkit.items import Item


def make_one_by_one(model: Any, task: str, items: Sequence[Item], making: Making) -> None:
    """Generate ``items`` in order until all are done or the model is given up."""
    for item in items:
        if making.stopped:
            return
        started = time.perf_counter()
        try:
            returned = model.generate(model_input(task, item), seed=item.seed)
        except Exception as error:
            making.lost(item, error, time.perf_counter() - started)
        else:
            seconds = time.perf_counter() - started
            making.stored(item, returned, making.store(item, returned, seconds), seconds)


def model_input(task: str, item: Item) -> Any:
    """What the contract of seed 002 hands to ``generate``: the prompt (t2i) or the input list (edit)."""
    return item.prompt if task == "t2i" else item.input_list
