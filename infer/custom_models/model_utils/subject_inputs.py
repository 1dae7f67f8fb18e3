"""What a subject-driven benchmark shows a model: the subject's name, its images, and the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from imageevalkit.generation.contract import ItemFailed


class Subject(NamedTuple):
    """``name`` is a noun phrase such as "dog", ``images`` are RGB."""

    name: str
    images: list[Image.Image]
    prompt: str


def split_subject(input_list: Sequence[str | Image.Image]) -> Subject:
    """Strings before the first image are the subject's name, those after it the prompt, each joined with one blank.

    Raises:
        ItemFailed: there is no image, or no prompt after it.
    """
    first = next((n for n, part in enumerate(input_list) if isinstance(part, Image.Image)), None)
    if first is None:
        raise ItemFailed("the item has no image of its subject", attempts=0)
    prompt = " ".join(part for part in input_list[first:] if isinstance(part, str))
    if not prompt:
        raise ItemFailed("the item has no prompt after the image of its subject", attempts=0)
    return Subject(
        " ".join(part for part in input_list[:first] if isinstance(part, str)),
        [part.convert("RGB") for part in input_list if isinstance(part, Image.Image)],
        prompt,
    )
