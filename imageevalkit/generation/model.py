"""What the engine may ask of a model, and what a model may return or raise."""

from __future__ import annotations

import asyncio
import inspect
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from PIL import Image

from imageevalkit.hashes import environment_hash
from imageevalkit.images import EncodedImage
from imageevalkit.requests.limiter import Traffic
from imageevalkit.requests.money import Bill

# Distributions whose version can change a pixel; only those a run has imported count.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "torch": "torch",
    "diffusers": "diffusers",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "httpx2": "httpx2",
    "numpy": "numpy",
    # where it is absent, torch's own attention stands in for it
    "flash_attn": "flash-attn",
    "peft": "peft",
}


def installed_packages() -> dict[str, str]:
    """Versions by distribution name, with ``python``, the ``environment``'s hash and, where torch sees them, the names
    of the ``gpus``."""
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
    """An image with what is known about its making.

    ``image`` is a picture, or the encoded bytes as a server sent them (of ``images.FORMATS``; kept as they are where
    their format is the one the benchmark asks for); ``proven``: what ``images.facts`` tells of such bytes.
    ``seed_honoured``: whether the seed had a part in it; None: what its model says of itself. ``requested_size`` is
    (width, height) in pixels or None for the model's default. ``attempts`` counts requests, retries included; ``bill``
    is what they cost, None for a model that costs nothing by the image. ``seconds`` is the time that the requests took,
    where the whole call also waited for others.
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
    """What a model ``returned``, with what it says of it. Raises TypeError: it is no image."""
    if isinstance(returned, Generated):
        return returned
    if isinstance(returned, Image.Image):
        return Generated(returned)
    raise TypeError(f"generate() returned {type(returned).__name__}, expected a PIL.Image")


class GenerationError(Exception):
    """Base of the failures a model tells apart; ``attempts`` counts the requests made for the item.

    Any other exception that ``generate`` raises is an item failure with its own class name.
    """

    bill: Bill | None = None
    """What the requests cost all the same."""

    def __init__(self, text: str, attempts: int = 1) -> None:
        super().__init__(text)
        self.attempts = attempts


class Refused(GenerationError):
    """The provider's content policy refused the item; its words are the text. Never retried, never blank."""


class ItemFailed(GenerationError):
    """The item failed after bounded retries; other items may succeed.

    ``transient``: the retries ran out on failures that pass (an outage), the item itself is not to blame.
    """

    def __init__(self, text: str, attempts: int = 1, transient: bool = False) -> None:
        super().__init__(text, attempts)
        self.transient = transient


class OnHold(GenerationError):
    """Nothing more can be made in this run, whoever asks (endpoint down for long, money used up): a later run can."""


class ModelUnusable(GenerationError):
    """No item can succeed (wrong key, unknown model, bad parameter): the cell stops at once."""


class RemoteError(Exception):
    """What a model's own code raised in another process: the error's class ``name``, its ``text`` and its ``trace``."""

    def __init__(self, name: str, text: str, trace: str) -> None:
        super().__init__(name, text, trace)
        self.name, self.text, self.trace = name, text, trace

    def __str__(self) -> str:
        return self.text


def name_of(error: Exception) -> str:
    """The class of ``error``, also where it was raised in another process."""
    return error.name if isinstance(error, RemoteError) else type(error).__name__


if TYPE_CHECKING:
    from imageevalkit.generation.cell_run import CellRun


class ImageModel:
    """A loaded model. A subclass gives :meth:`generate` or, where it ``is_async``, :meth:`generate_async`.

    All else has a default; a plain class of the extension guide has no more than the methods that generate.
    """

    is_async = False
    batch_size = 1
    """How many inputs :meth:`generate_batch` takes."""
    seed_honoured: bool | None = None
    """Whether an item's seed has a part in its image; None: nobody knows."""
    queues = False
    """It queues items itself, for its limiter or its workers, so that it wants others ready when some wait."""
    takes_batches = False
    """Its requests may go as batches of the provider's (:mod:`imageevalkit.requests.batches`)."""
    room: int | None = None
    """How many items it wants in all; None: as the engine thinks."""

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
        """The packages that have a part in its images (see :mod:`imageevalkit.generation.model`)."""
        return installed_packages()

    def holdup(self) -> str:
        """What holds it back, in a few words for the progress line; empty when nothing does."""
        return ""

    async def aclose(self) -> None:
        """Close its connections."""


@runtime_checkable
class Generates(Protocol):
    """A class of the extension guide, whose methods are those of :class:`ImageModel`."""

    def generate(self, given: Any, seed: int = 42) -> Any: ...


@runtime_checkable
class GeneratesAsync(Protocol):
    """One that does not block the event loop."""

    async def generate_async(self, given: Any, seed: int = 42) -> Any: ...


@runtime_checkable
class GeneratesBatches(Protocol):
    """One that takes several inputs at once, ``batch_size`` at most."""

    batch_size: int

    def generate_batch(self, inputs: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]: ...


class GuideModel(ImageModel):
    """A class of the extension guide, as the engine asks it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.is_async = isinstance(model, GeneratesAsync) and inspect.iscoroutinefunction(
            model.generate_async
        )
        size = model.batch_size if isinstance(model, GeneratesBatches) else 1
        self.batch_size = size if isinstance(size, int) and size > 0 else 1

    def generate(self, given: Any, seed: int = 42) -> Any:
        return self._model.generate(given, seed=seed)

    async def generate_async(self, given: Any, seed: int = 42) -> Any:
        return await self._model.generate_async(given, seed=seed)

    def generate_batch(self, inputs: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]:
        returned: Sequence[Any] = self._model.generate_batch(inputs, seeds)
        return returned


def image_model(model: Any) -> ImageModel:
    """``model`` as the engine asks it. Raises ModelUnusable: its class has no method that generates."""
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


def blocking(model: ImageModel) -> Callable[..., Any]:
    """``generate`` of a model, in a loop of its own where it is async."""
    if not model.is_async:
        return model.generate
    loop = asyncio.new_event_loop()
    return lambda given, seed: loop.run_until_complete(model.generate_async(given, seed=seed))
