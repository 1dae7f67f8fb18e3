"""What a subject-driven benchmark shows a model: the subject's name, its images, and the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from custom_models.model_utils.edit_inputs import joined_text, split_inputs
from imageevalkit.generation.model import ItemFailed


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
    shown = without_name(input_list)
    images, prompt = split_inputs(shown)
    return Subject(joined_text(input_list[: len(input_list) - len(shown)]), images, prompt)


def without_name(input_list: Sequence[str | Image.Image]) -> Sequence[str | Image.Image]:
    """The images, masks included, and the prompt. Raises ItemFailed as :func:`split_subject`."""
    first = next((n for n, part in enumerate(input_list) if isinstance(part, Image.Image)), None)
    if first is None:
        raise ItemFailed("the item has no image of its subject", attempts=0)
    shown = input_list[first:]
    if not joined_text(shown):
        raise ItemFailed("the item has no prompt after the image of its subject", attempts=0)
    return shown
