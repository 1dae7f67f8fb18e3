"""A model that its replicas make the images of, as the engine asks it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from imageevalkit.api.in_flight import under_way
from imageevalkit.generation.cell_run import CellRun
from imageevalkit.generation.model import Generated, ImageModel
from imageevalkit.generation.replicas.messages import outgoing
from imageevalkit.generation.replicas.pool import Chunk, Model, QueuedItem, Replicas


async def load_replicated(replicas: Replicas, run: CellRun) -> ReplicatedModel:
    """The model of a cell, loaded by ``replicas``.

    Raises:
        CellFailure: it does not load.
    """
    replicas.say = run.outcomes.log
    chunks = math.ceil(len(run.todo) / _batch_size(run.setting))
    return ReplicatedModel(replicas, await replicas.load(run.task, run.setting, str(run.log_path), chunks))


def _batch_size(setting: Mapping[str, Any]) -> int:
    """What the setting says; the model itself may know better, or that it is wrong, once it is loaded."""
    size = setting.get("model_kwargs", {}).get("batch_size", 1)
    return size if isinstance(size, int) and size > 0 else 1


class ReplicatedModel(ImageModel):
    """One setting of a model (there is one for each task), made by all its replicas.

    Items are grouped into chunks in the order in which they begin, and the engine begins them in the benchmark's order:
    which items are made together does not depend on the number of workers.
    """

    is_async = queues = True

    def __init__(self, replicas: Replicas, model: Model) -> None:
        self._replicas, self._model = replicas, model
        self._batch = model.batch_size
        # for every worker: what it makes, its next chunk, one that waits, one that is being stored
        self.room = 4 * replicas.size * self._batch
        self._log = ""
        self._open: Chunk | None = None

    def begin_cell(self, run: CellRun) -> None:
        """The items that follow are of ``run``."""
        self._log = str(run.log_path)
        self._replicas.say = run.outcomes.log
        self._replicas.on_packages = run.remember
        for packages in self._model.packages:
            run.remember(packages)

    def packages(self) -> Mapping[str, str]:
        return self._model.packages[0]

    def expect(self, items: int) -> None:
        """So many items of the cell have not begun; with none, what there is must do for a chunk."""
        if items:
            self._replicas.start(math.ceil(items / self._batch))
        else:
            # after the first steps of the items that have just begun
            asyncio.get_running_loop().call_soon(self._submit)

    async def generate_async(self, given: Any, seed: int = 42) -> Generated:
        """The image of ``given``. Raises what the model raised, or :class:`RemoteError` in its place."""
        shown = outgoing(given)
        if self._open is None:
            self._open = self._replicas.new_chunk(self._model.key, self._log)
        answer: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        self._open.items.append(QueuedItem(shown, seed, answer, under_way()))
        if len(self._open.items) == self._batch:
            self._submit()
        return await answer

    def _submit(self) -> None:
        chunk, self._open = self._open, None
        if chunk:
            self._replicas.submit(chunk)

    def holdup(self) -> str:
        """What holds the model back, for the progress line."""
        return self._replicas.holdup()
