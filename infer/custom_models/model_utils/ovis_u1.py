"""Ovis-U1-3B: the model's own code comes with its weights, the way to call it is in the authors' repository."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_utils.adapters import best_device, loading, weights_folder
from custom_models.model_utils.flash_attention import flash_attention
from custom_models.model_utils.inputs import one_image, split_inputs
from imageevalkit.generation.model import Generated


class OvisU1:
    """Loading of both tasks.

    Args:
        model_path: folder or hub repository with weights and code, which is run.
        revision: commit of a hub repository.
        device: a torch device.

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(self, model_path: str, *, revision: str | None = None, device: str = "cuda") -> None:
        self.model_name = Path(model_path).name
        authors_code.use("ovis-u1")
        with loading(model_path, "ovis-u1"):
            import torch

            device = best_device(device)
            # a folder: the model reads tokenizer and image processor by its path, so at the same commit
            folder = str(weights_folder(model_path, revision))
            with flash_attention() as installed:
                from transformers import AutoModelForCausalLM

                without = {} if installed else {"llm_attn_implementation": "sdpa"}
                model = AutoModelForCausalLM.from_pretrained(
                    folder, torch_dtype=torch.bfloat16, trust_remote_code=True, **without
                )
            self._model: Any = model.eval().to(device).to(torch.bfloat16)


class OvisU1T2I(OvisU1):
    """Text to image; see :class:`OvisU1`.

    Args:
        width, height: pixels.
        num_inference_steps: steps.
        txt_cfg: guidance towards the prompt. The authors' prefix stands before it.

    Source: AIDC-AI/Ovis-U1@dccf5eb3, test_txt_to_img.py.
    """

    def __init__(
        self,
        model_path: str,
        *,
        width: int,
        height: int,
        num_inference_steps: int,
        txt_cfg: float,
        **settings: Any,
    ) -> None:
        super().__init__(model_path, **settings)
        self._size = (width, height)
        self._steps, self._txt_cfg = num_inference_steps, txt_cfg
        with loading(model_path, "ovis-u1"):
            self._pipe = import_module("test_txt_to_img").pipe_t2i

    def generate(self, prompt: str, seed: int = 42) -> Generated:
        """One image."""
        width, height = self._size
        images = self._pipe(self._model, prompt, height, width, self._steps, self._txt_cfg, seed=seed)
        return Generated(images[0], requested_size=self._size)


class OvisU1Edit(OvisU1):
    """Edit of one image, at its size rounded to multiples of 32 and at most 1 megapixel; see :class:`OvisU1`.

    Args:
        num_inference_steps: steps.
        txt_cfg, img_cfg: guidance towards the instruction and the input image.

    Source: AIDC-AI/Ovis-U1@dccf5eb3, test_img_edit.py.
    """

    def __init__(
        self, model_path: str, *, num_inference_steps: int, txt_cfg: float, img_cfg: float, **settings: Any
    ) -> None:
        super().__init__(model_path, **settings)
        self._settings = (num_inference_steps, txt_cfg, img_cfg)
        with loading(model_path, "ovis-u1"):
            self._pipe = import_module("test_img_edit").pipe_img_edit

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Image.Image:
        """One edited image. Raises ItemFailed unless there is exactly one input image."""
        images, instruction = split_inputs(input_list)
        image = one_image(images, "Ovis-U1")
        edited: list[Image.Image] = self._pipe(self._model, image, instruction, *self._settings, seed=seed)
        return edited[0]
