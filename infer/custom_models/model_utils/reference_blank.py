"""``reference-blank``: one white image for everything, the floor of benchmarks that reward doing nothing.

``reference-identity`` is the floor of editing: the image as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from custom_models.model_utils.inputs import images_to_edit, last_image, split_subject


class ReferenceBlank:
    """Text to image: white, ``width`` × ``height`` pixels."""

    model_name = "reference-blank"

    def __init__(self, model_path: str | None = None, width: int = 1024, height: int = 1024) -> None:
        self.size = (width, height)

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """A white image."""
        return Image.new("RGB", self.size, "white")


class ReferenceBlankEdit:
    """Edit: white, in the size of the last input image."""

    model_name = "reference-blank"

    def __init__(self, model_path: str | None = None) -> None:
        pass

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Image.Image:
        """A white image. Raises ItemFailed when there is no input image."""
        image, _ = last_image(input_list)
        return Image.new("RGB", image.size, "white")


class ReferenceBlankSubject(ReferenceBlank):
    """Subject-driven: white, in the size of text to image."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Image.Image:
        """A white image. Raises ItemFailed without an image or a prompt."""
        return super().generate(split_subject(input_list).prompt, seed)


class ReferenceIdentity:
    """Edit: the first input image as it is, the floor of benchmarks that reward leaving all else alone."""

    model_name = "reference-identity"

    def __init__(self, model_path: str | None = None) -> None:
        pass

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Image.Image:
        """The first image as RGB, its pixels as they are stored. Raises ItemFailed when there is none."""
        images, _ = images_to_edit(input_list)
        return images[0]
