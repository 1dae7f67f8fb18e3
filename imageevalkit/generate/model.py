"""The interface between the engine and a model: methods, return values and errors."""

from __future__ import annotations

import asyncio
import inspect
import platform
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from PIL import Image

from imageevalkit.api.limiter import Traffic
from imageevalkit.api.money import Bill
from imageevalkit.common.guest_code import guest_code
from imageevalkit.common.hashes import environment_hash
from imageevalkit.common.images import EncodedImage

# Distributions whose version can change a pixel. Only distributions that the run imports are recorded.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "torch": "torch",
    "diffusers": "diffusers",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "httpx2": "httpx2",
    "numpy": "numpy",
    # without flash-attn, torch's own attention is used
    "flash_attn": "flash-attn",
    "peft": "peft",
}


def installed_packages() -> dict[str, str]:
    """Returns versions by distribution, with ``python``, the ``environment``'s hash, and torch's ``gpus``."""
    versions = {"python": platform.python_version(), "environment": environment_hash()}
    for module, distribution in _DISTRIBUTIONS.items():
        if module in sys.modules:
            try:
                versions[distribution] = version(distribution)
            except PackageNotFoundError:
                continue
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        versions["gpus"] = ", ".join(names)
    return versions


@dataclass(frozen=True)
class Generated:
    """An image, and facts about its generation.

    ``image`` is a Pillow image, or the encoded bytes from a server (one of ``images.FORMATS``). Such bytes
    are saved unchanged if the benchmark asks for their format; ``proven`` is the result of ``images.facts``
    for them. ``seed_honoured``: whether the seed influenced the image; None: use the model's own statement.
    ``requested_size`` is (width, height) in pixels or None for the model's default. ``attempts`` counts
    requests, retries included. ``bill`` is their cost; None for a model without a price per image.
    ``seconds`` is the time of the requests, if the whole call also waited for other items.
    """

    image: Image.Image | bytes
    seed_honoured: bool | None = None
    requested_size: tuple[int, int] | None = None
    attempts: int = 1
    bill: Bill | None = None
    proven: EncodedImage | None = None
    seconds: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def as_generated(returned: Any) -> Generated:
    """Returns the model's return value as a :class:`Generated`. Raises TypeError if it is no image."""
    if isinstance(returned, Generated):
        return returned
    if isinstance(returned, Image.Image):
        return Generated(returned)
    raise TypeError(f"generate() returned {type(returned).__name__}, expected a PIL.Image")


class GenerationError(Exception):
    """Base of the errors that a model can raise for an item. ``attempts`` counts the requests for the item.

    Any other exception of ``generate`` fails the item, and is recorded with its own class name.
    """

    bill: Bill | None = None
    """The cost of the requests, which are billed despite the error."""

    def __init__(self, text: str, attempts: int = 1) -> None:
        super().__init__(text)
        self.attempts = attempts


class Refused(GenerationError):
    """The provider's content policy refused the item; the text is the provider's. Never retried or blank."""


class ItemFailed(GenerationError):
    """The item failed after all retries; other items may succeed.

    ``transient``: the retries failed because of a temporary problem (an outage), not because of the item.
    """

    def __init__(self, text: str, attempts: int = 1, transient: bool = False) -> None:
        super().__init__(text, attempts)
        self.transient = transient


class OnHold(GenerationError):
    """No item can succeed in this run (endpoint down, budget used up); a later run can continue."""


class ModelUnusable(GenerationError):
    """No item can succeed (wrong key, unknown model, bad parameter). The cell stops at once."""


class RemoteError(Exception):
    """An error of a model's code in another process: its class ``name``, ``text`` and ``trace``."""

    def __init__(self, name: str, text: str, trace: str) -> None:
        super().__init__(name, text, trace)
        self.name, self.text, self.trace = name, text, trace

    def __str__(self) -> str:
        return self.text


def name_of(error: Exception) -> str:
    """Returns the class name of ``error``, also if it was raised in another process."""
    return error.name if isinstance(error, RemoteError) else type(error).__name__


class CellLog(Protocol):
    """Where a model reports while it generates the items of one cell."""

    log_path: Path
    log: Callable[[str], None]

    def remember(self, packages: Mapping[str, str]) -> str:
        """Record the versions of ``packages`` with which the following images are generated."""
        ...


class ImageModel:
    """A loaded model. A subclass implements :meth:`generate` or, with ``is_async``, :meth:`generate_async`.

    All other methods have defaults. A class written after the extension guide has only generating methods.
    """

    is_async = False
    batch_size = 1
    """The number of inputs that :meth:`generate_batch` accepts."""
    seed_honoured: bool | None = None
    """Whether the seed influences the image; None if unknown."""
    queues = False
    """Whether the model queues items itself (for its limiter or workers): more items than workers begin."""
    takes_size = False
    """Whether the generating methods take ``size=(width, height)``, the pixels that some benchmarks ask for.

    All images of a batch have one size."""
    takes_sender = False
    """Whether a :class:`~imageevalkit.api.sender.Sender` can send the requests."""
    room: int | None = None
    """The number of items in flight that the model asks for; None: the engine decides."""

    def generate(self, given: Any, seed: int = 42) -> Any:
        """Returns the image for a prompt (t2i) or input list (edit): a ``PIL.Image`` or a ``Generated``."""
        raise NotImplementedError

    async def generate_async(self, given: Any, seed: int = 42) -> Any:
        """Returns the image as :meth:`generate` does, without blocking the event loop."""
        raise NotImplementedError

    def generate_batch(self, inputs: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]:
        """Returns the images for several inputs in order, with an exception in place of a failed image."""
        return [self.generate(given, seed=seed) for given, seed in zip(inputs, seeds, strict=True)]

    def use_traffic(self, traffic: Traffic) -> bool:
        """Send all requests within the limits of ``traffic``. Returns whether the model supports that."""
        return False

    def has_made_images(self) -> None:
        """Record that images with these settings exist: then the item is the cause of a bad request."""

    def begin_cell(self, run: CellLog) -> None:
        """Record that the following items belong to ``run``."""

    def expect(self, items: int) -> None:
        """Record how many ``items`` of the cell have not begun: the last ones may need special handling."""

    def packages(self) -> Mapping[str, str]:
        """Returns the versions of packages that influence the images (see :func:`installed_packages`)."""
        return installed_packages()

    def holdup(self) -> str:
        """Returns why the model is waiting, in a few words for the progress line; empty if it is not."""
        return ""

    async def aclose(self) -> None:
        """Close all connections."""


@runtime_checkable
class Generates(Protocol):
    """A class written after the extension guide, with the same methods as :class:`ImageModel`."""

    def generate(self, given: Any, seed: int = 42) -> Any: ...


@runtime_checkable
class GeneratesAsync(Protocol):
    """A class that generates without blocking the event loop."""

    async def generate_async(self, given: Any, seed: int = 42) -> Any: ...


@runtime_checkable
class GeneratesBatches(Protocol):
    """A class that generates up to ``batch_size`` inputs in one call."""

    batch_size: int

    def generate_batch(self, inputs: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]: ...


@runtime_checkable
class TakesSize(Protocol):
    """A class whose generating methods take ``size=(width, height)`` if ``takes_size`` is true."""

    takes_size: bool


class GuideModel(ImageModel):
    """Adapts a class written after the extension guide to :class:`ImageModel`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.is_async = isinstance(model, GeneratesAsync) and inspect.iscoroutinefunction(
            model.generate_async
        )
        size = model.batch_size if isinstance(model, GeneratesBatches) else 1
        self.batch_size = size if isinstance(size, int) and size > 0 else 1
        self.takes_size = isinstance(model, TakesSize) and model.takes_size is True

    def generate(self, given: Any, seed: int = 42, **size: Any) -> Any:
        return self._model.generate(given, seed=seed, **size)

    async def generate_async(self, given: Any, seed: int = 42, **size: Any) -> Any:
        return await self._model.generate_async(given, seed=seed, **size)

    def generate_batch(self, inputs: Sequence[Any], seeds: Sequence[int], **size: Any) -> Sequence[Any]:
        returned: Sequence[Any] = self._model.generate_batch(inputs, seeds, **size)
        return returned


def image_model(model: Any) -> ImageModel:
    """Returns ``model`` as an :class:`ImageModel`. Raises ModelUnusable if no method generates."""
    asked = model if isinstance(model, ImageModel) else GuideModel(model)
    method = "generate_async" if asked.is_async else "generate"
    if asked is not model:
        lacks = not asked.is_async and not isinstance(model, Generates)
    elif asked.is_async:
        lacks = type(asked).generate_async is ImageModel.generate_async
    else:
        lacks = type(asked).generate is ImageModel.generate
    if lacks:
        takes = f"{method}(prompt, seed=42), or {method}(input_list, seed=42) for edits"
        raise ModelUnusable(f"class {type(model).__name__} has no method {takes}")
    return asked


def size_for(model: ImageModel, size: tuple[int, int] | None) -> dict[str, tuple[int, int]]:
    """Returns ``size`` as a keyword argument for ``model``, if there is one and the model takes it."""
    return {"size": size} if size and model.takes_size else {}


def blocking(model: ImageModel) -> Callable[..., Any]:
    """Returns a blocking ``generate`` of the model. An async model runs in an event loop of its own.

    The returned function may be called by several threads at once if the model is async.
    """
    if not model.is_async:
        return model.generate
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    generate: Callable[..., Any] = model.generate_async

    async def ask(given: Any, seed: int, **size: Any) -> Any:
        with guest_code():  # an exit would end the loop, and later calls would wait for ever
            return await generate(given, seed=seed, **size)

    return lambda given, seed, **size: asyncio.run_coroutine_threadsafe(
        ask(given, seed, **size), loop
    ).result()


def in_threads(load: Callable[[], ImageModel]) -> Callable[..., Any]:
    """Returns a blocking ``generate`` for threads. Each loads its own model: a class need not be thread-safe."""
    own = threading.local()

    def generate(given: Any, seed: int, **size: Any) -> Any:
        if not vars(own):
            own.model = load()
        with guest_code():
            return own.model.generate(given, seed=seed, **size)

    return generate
