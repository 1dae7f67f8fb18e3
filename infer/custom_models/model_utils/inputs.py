"""Functions for the input list of edit and subject-driven benchmarks: texts and images mixed in one list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from imageevalkit.common.images import as_rgb
from imageevalkit.generate.model import ItemFailed


def split_inputs(input_list: Sequence[str | Image.Image]) -> tuple[list[Image.Image], str]:
    """Returns the images of ``input_list`` as RGB, in order, and its strings joined with a space.

    Alpha is dropped, not composited, as in the official evaluation kit.
    """
    images = [as_rgb(part.convert("RGB")) for part in input_list if isinstance(part, Image.Image)]
    return images, joined_text(input_list)


def joined_text(input_list: Sequence[str | Image.Image]) -> str:
    """Returns the strings of ``input_list`` joined with a space."""
    return " ".join(part for part in input_list if isinstance(part, str))


def one_image(images: Sequence[Image.Image], who: str) -> Image.Image:
    """Returns the only image. Raises ItemFailed, with ``who`` as subject of the message, for any other
    number."""
    if len(images) != 1:
        raise ItemFailed(f"{who} takes exactly one input image, the item has {len(images)}", attempts=0)
    return images[0]


class Subject(NamedTuple):
    """The input of a subject-driven item. ``name`` is a noun phrase such as "dog"; ``images`` are RGB."""

    name: str
    images: list[Image.Image]
    prompt: str

    def image_of_a_name(self, who: str) -> Image.Image:
        """Returns the only image. Raises ItemFailed, about ``who``, for any other number or without a
        name."""
        if len(self.images) != 1 or not self.name:
            raise ItemFailed(
                f"{who} takes a subject's name and exactly one image of it, the item has {len(self.images)} and "
                f"{f'the name {self.name!r}' if self.name else 'no name'}",
                attempts=0,
            )
        return self.images[0]


def split_subject(input_list: Sequence[str | Image.Image]) -> Subject:
    """Splits an input list: strings before the first image are the subject's name, later strings the prompt.

    Raises ItemFailed without an image, or without a prompt after it.
    """
    shown = without_name(input_list)
    images, prompt = split_inputs(shown)
    return Subject(joined_text(input_list[: len(input_list) - len(shown)]), images, prompt)


def without_name(input_list: Sequence[str | Image.Image]) -> Sequence[str | Image.Image]:
    """Returns the input list from its first image on: images, masks and the prompt.

    Raises ItemFailed without an image, or without a prompt after it.
    """
    first = next((n for n, part in enumerate(input_list) if isinstance(part, Image.Image)), None)
    if first is None:
        raise ItemFailed("the item has no image of its subject", attempts=0)
    shown = input_list[first:]
    if not joined_text(shown):
        raise ItemFailed("the item has no prompt after the image of its subject", attempts=0)
    return shown
