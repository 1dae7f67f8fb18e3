"""What a model class may return or raise beyond the extension guide (``generate`` gives a ``PIL.Image``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from imageevalkit.api.money import Bill


@dataclass(frozen=True)
class Generated:
    """An image with what is known about its making.

    ``image`` is a picture, or the encoded bytes as a server sent them (of ``images.FORMATS``; kept as they are where
    their format is the one the benchmark asks for); ``proven`` says that such bytes have passed ``images.prove``.
    ``seed_honoured`` is False where the endpoint takes no seed. ``requested_size`` is (width, height) in pixels
    or None for the model's default. ``attempts`` counts requests, retries included; ``bill`` is what they cost,
    None for a model that costs nothing by the image. ``seconds`` is the time that the requests took, where the
    whole call also waited for others.
    """

    image: Image.Image | bytes
    seed_honoured: bool = True
    requested_size: tuple[int, int] | None = None
    attempts: int = 1
    bill: Bill | None = None
    proven: bool = False
    seconds: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


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


class Raised(Exception):
    """What a model's own code raised in another process: the error's class ``name``, its ``text`` and its ``trace``."""

    def __init__(self, name: str, text: str, trace: str) -> None:
        super().__init__(name, text, trace)
        self.name, self.text, self.trace = name, text, trace

    def __str__(self) -> str:
        return self.text


def name_of(error: Exception) -> str:
    """The class of ``error``, also where it was raised in another process."""
    return error.name if isinstance(error, Raised) else type(error).__name__
