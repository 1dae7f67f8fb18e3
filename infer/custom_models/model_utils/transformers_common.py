"""What image generators of transformers share: they sample tokens with torch's global random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from custom_models.model_utils import diffusers_loading as loading
from custom_models.model_utils.adapters import best_device
from imageevalkit.generation.model import ModelUnusable
from imageevalkit.machine import is_of_the_accelerator
from imageevalkit.weights import why_not_loaded


class TransformersImageModel:
    """A checkpoint and its processor.

    Args:
        model_path: a local folder or a Hugging Face repository id.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        device: a torch device; None takes cuda, else mps, else cpu.
        revision: branch, tag or commit of a hub repository.

    Raises:
        ModelUnusable: it does not load; one line.
        Exception: the accelerator's own, such as torch.OutOfMemoryError.
    """

    model_class: str
    """Name of the model's class in transformers."""
    processor_class: str
    """Name of the processor's class in transformers."""

    def __init__(
        self,
        model_path: str,
        *,
        dtype: str = "bfloat16",
        device: str | None = None,
        revision: str | None = None,
    ) -> None:
        loading.check_environment("transformers")
        torch_dtype = loading.torch_dtype(dtype)
        self.model_name = Path(model_path).name
        self.device = best_device(device)
        import transformers

        try:
            self._processor: Any = getattr(transformers, self.processor_class).from_pretrained(
                model_path, revision=revision
            )
            model = getattr(transformers, self.model_class).from_pretrained(
                model_path, revision=revision, dtype=torch_dtype
            )
            self._model: Any = model.eval().to(self.device)
        except Exception as error:
            if is_of_the_accelerator(error):
                raise
            raise ModelUnusable(why_not_loaded(model_path, error)) from error

    @staticmethod
    def _seed(seed: int) -> None:
        """Every image starts from its own seed; images of one batch would share it, so there are no batches."""
        import torch

        torch.manual_seed(seed)
