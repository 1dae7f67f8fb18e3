"""Models that misbehave, or only hold their GPU, each in the way that an item's number says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit.generate.model import ImageModel
from perf.toolkit import make_prompts

FAULTY_ITEMS = 12
KILLED, HANGS, TOO_LARGE = 5, 9, 10
"""Numbers of items: the first try kills or hangs its process; no memory is enough for the last."""
_SHARE = 0.3
"""The share of the GPU's memory that an item takes. Three items do not fit."""
_PAUSE = 2.0
"""Seconds before a process ends, in which another thread sends what it has to say."""


class Faulty(ImageModel):
    """Makes grey images of :data:`FAULTY_ITEMS` prompts.

    Args:
        marks: a folder that remembers, over all processes, what has happened.
    """

    model_name = "faulty"
    batch_size = 4

    def __init__(self, model_path: str, *, marks: str) -> None:
        self._marks = Path(marks)
        self._prompts = make_prompts(FAULTY_ITEMS)

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """Returns an image, or does what the item's number says."""
        return self.generate_batch([prompt], [seed])[0]

    def generate_batch(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Image.Image]:
        """Returns an image for each of ``prompts``, or does what the number of one says."""
        numbers = [self._prompts.index(prompt) for prompt in prompts]
        items = 9 if numbers == [TOO_LARGE] else len(numbers)
        held = _allocate(items)
        if KILLED in numbers and self._is_first("killed"):
            time.sleep(_PAUSE)
            os.kill(os.getpid(), signal.SIGKILL)
        if HANGS in numbers and self._is_first("hangs"):
            time.sleep(3600)
        del held
        return [Image.new("RGB", (64, 64), (20 * number, 99, 99)) for number in numbers]

    def _is_first(self, name: str) -> bool:
        try:
            (self._marks / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _allocate(items: int) -> Any:
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    return torch.empty(int(items * _SHARE * total), dtype=torch.uint8, device="cuda")


class Holding(ImageModel):
    """Holds its GPU until a file exists, and writes when it generated each image.

    Args:
        spans: the file that gets a line for each image: start and end. The file ``spans`` + ".begun" appears when the
            first image begins.
        until: no image is ready before this file exists.
    """

    model_name = "holding"

    def __init__(self, model_path: str, *, spans: str, until: str) -> None:
        self._spans, self._until = Path(spans), Path(until)

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """Returns a grey image."""
        started = time.time()
        Path(f"{self._spans}.begun").touch()
        while not self._until.exists():
            time.sleep(0.05)
        with self._spans.open("a", encoding="utf-8") as file:
            file.write(f"{started} {time.time()}\n")
        return Image.new("RGB", (64, 64), (99, 99, 99))
