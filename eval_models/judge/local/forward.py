"""Forward passes of a model, counted."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eval_models.judge.local.prompts import Inputs

if TYPE_CHECKING:
    import torch


@dataclass
class Counts:
    """What was done so far. ``forwards`` leaves out the tokens after the first.

    ``vision`` counts the images that went through the vision tower, several of one pass each by itself.
    """

    questions: int = 0
    forwards: int = 0
    vision: int = 0


class Forward:
    """Calls ``model`` and asks for the logits that are needed only: those of a whole prompt are gigabytes."""

    def __init__(self, model: Any, counts: Counts) -> None:
        self._model = model
        self._counts = counts
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def device(self) -> Any:
        """Where inputs belong."""
        return self._model.device

    def moved(self, inputs: Inputs) -> Inputs:
        """``inputs`` on the model's device, pixels in its precision."""
        return {
            name: value.to(self.device, self._model.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }

    def __call__(
        self, inputs: Inputs, at: torch.Tensor, *, images: int, **options: Any
    ) -> tuple[torch.Tensor, Any]:
        """The logits at token positions ``at`` (one-dimensional), (batch, positions, vocabulary), and the cache.

        ``images`` are those that ``inputs`` hold.
        """
        self.count(images)
        if self._keeps:
            out = self._model(**inputs, **options, logits_to_keep=at.to(self.device))
            return out.logits, out.get("past_key_values")
        out = self._model(**inputs, **options)
        return out.logits[:, at], out.get("past_key_values")

    def count(self, images: int) -> None:
        """One more pass, with ``images``."""
        self._counts.forwards += 1
        self._counts.vision += images
