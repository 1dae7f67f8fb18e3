"""What the engine may ask of a model: the extension guide's class, or one that says more of itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imageevalkit.api.limiter import Traffic
from imageevalkit.generation.packages import installed_packages

if TYPE_CHECKING:
    from imageevalkit.generation.cell_run import CellRun


class ImageModel:
    """A loaded model. A subclass gives :meth:`generate` or, where it ``is_async``, :meth:`generate_async`.

    ``batch_size`` is how many inputs :meth:`generate_batch` takes. ``queues``: it queues items itself, for its
    limiter or its workers, so that it wants others ready when some wait, ``room`` in all (None: as the engine thinks).
    """

    is_async = False
    queues = False
    batch_size = 1
    room: int | None = None

    def generate(self, given: Any, seed: int = 42) -> Any:
        """The image of a prompt (t2i) or an input list (edit), a ``PIL.Image`` or a ``Generated``."""
        raise NotImplementedError

    async def generate_async(self, given: Any, seed: int = 42) -> Any:
        """The same without blocking the event loop."""
        raise NotImplementedError

    def generate_batch(self, inputs: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]:
        """The images of several inputs in their order; an exception in the place of one that failed."""
        return [self.generate(given, seed=seed) for given, seed in zip(inputs, seeds, strict=True)]

    def use_traffic(self, traffic: Traffic) -> bool:
        """Send requests, if it makes any, within the bounds of ``traffic``; whether it does."""
        return False

    def has_made_images(self) -> None:
        """Images of this very model and these settings exist: a bad request is then about its item."""

    def begin_cell(self, run: CellRun) -> None:
        """The items that follow are of ``run``."""

    def expect(self, items: int) -> None:
        """So many items of the cell have not begun: the last ones may differ."""

    def packages(self) -> Mapping[str, str]:
        """The packages that have a part in its images (see :mod:`imageevalkit.generation.packages`)."""
        return installed_packages()

    def holdup(self) -> str:
        """What holds it back, in a few words for the progress line; empty when nothing does."""
        return ""

    async def aclose(self) -> None:
        """Close its connections."""


class GuideModel(ImageModel):
    """A class of the extension guide: ``generate``, and what the guide lets it have besides.

    That is ``async def generate_async``, and ``generate_batch`` with ``batch_size``.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.is_async = inspect.iscoroutinefunction(getattr(model, "generate_async", None))
        size = getattr(model, "batch_size", 1) if callable(getattr(model, "generate_batch", None)) else 1
        self.batch_size = size if isinstance(size, int) and size > 0 else 1

    def generate(self, given: Any, seed: int = 42) -> Any:
        return self._model.generate(given, seed=seed)

    async def generate_async(self, given: Any, seed: int = 42) -> Any:
        return await self._model.generate_async(given, seed=seed)

    def generate_batch(self, inputs: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]:
        returned: Sequence[Any] = self._model.generate_batch(inputs, seeds)
        return returned


def image_model(model: Any) -> ImageModel:
    """``model`` as the engine asks it."""
    return model if isinstance(model, ImageModel) else GuideModel(model)


class Blocking:
    """``generate`` of a model, in a loop of its own where it is async."""

    def __init__(self, model: ImageModel) -> None:
        self._model = model
        self._loop = asyncio.new_event_loop() if model.is_async else None

    def generate(self, given: Any, seed: int) -> Any:
        """See :class:`ImageModel`."""
        if self._loop:
            return self._loop.run_until_complete(self._model.generate_async(given, seed=seed))
        return self._model.generate(given, seed=seed)
