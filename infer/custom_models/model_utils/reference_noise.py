"""``reference-noise``: uniform random pixels, the floor of every benchmark that needs content."""

from __future__ import annotations

import random
from collections.abc import Sequence

from PIL import Image

from custom_models.model_utils.inputs import last_image, split_subject


def noise(size: tuple[int, int], text: str, seed: int) -> Image.Image:
    """RGB noise of ``size`` (width, height), the same on every machine for the same ``text`` and ``seed``."""
    width, height = size
    # a str seed is hashed by SHA-512, not by the per-process hash()
    return Image.frombytes("RGB", size, random.Random(f"{seed}:{text}").randbytes(3 * width * height))


class ReferenceNoise:
    """Text to image: noise of ``width`` × ``height`` pixels from prompt and seed."""

    model_name = "reference-noise"

    def __init__(self, model_path: str | None = None, width: int = 1024, height: int = 1024) -> None:
        self.size = (width, height)

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """Noise determined by ``prompt`` and ``seed``."""
        return noise(self.size, prompt, seed)


class ReferenceNoiseEdit:
    """Edit: noise from instruction and seed, in the size of the last input image."""

    model_name = "reference-noise"

    def __init__(self, model_path: str | None = None) -> None:
        pass

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Image.Image:
        """Noise determined by the instruction and ``seed``. Raises ItemFailed without an input image."""
        image, instruction = last_image(input_list)
        return noise(image.size, instruction, seed)


class ReferenceNoiseSubject(ReferenceNoise):
    """Subject-driven: noise from prompt and seed, in the size of text to image."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Image.Image:
        """Noise determined by the prompt and ``seed``. Raises ItemFailed without an image or a prompt."""
        return super().generate(split_subject(input_list).prompt, seed)
