"""Ovis-U1-3B. The repository of the weights has the model's code; the authors' repository has the functions
to call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from PIL import Image

from custom_models.authors import AuthorsModel
from custom_models.model_utils.flash_attention import flash_attention
from custom_models.model_utils.inputs import one_image, split_inputs
from imageevalkit.generate.model import Generated


@dataclass(kw_only=True, eq=False)
class OvisU1(AuthorsModel):
    """The base of both tasks. It runs the code that comes with the weights.

    Args:
        num_inference_steps: denoising steps.
        txt_cfg: guidance towards the text.
    """

    code = "ovis-u1"
    program: ClassVar[tuple[str, str]]
    """The authors' module and its function that generates an image."""

    num_inference_steps: int
    txt_cfg: float

    def load(self) -> None:
        import torch

        # a folder, so the model reads tokenizer and image processor from the same commit
        folder = self.weights()
        with flash_attention() as installed:
            from transformers import AutoModelForCausalLM

            without = {} if installed else {"llm_attn_implementation": "sdpa"}
            model = AutoModelForCausalLM.from_pretrained(
                folder, torch_dtype=torch.bfloat16, trust_remote_code=True, **without
            )
        self._model: Any = model.eval().to(self.device).to(torch.bfloat16)
        module, function = self.program
        self._pipe: Any = getattr(import_module(module), function)


@dataclass(kw_only=True, eq=False)
class OvisU1T2I(OvisU1):
    """Text to image of ``width`` x ``height`` pixels. The authors' function prepends a prefix to the prompt.

    Source: AIDC-AI/Ovis-U1@dccf5eb3, test_txt_to_img.py.
    """

    program = ("test_txt_to_img", "pipe_t2i")

    width: int
    height: int

    def make(self, given: str, seed: int) -> Generated:
        """Returns one image."""
        size, steps = (self.height, self.width), self.num_inference_steps
        images = self._pipe(self._model, given, *size, steps, self.txt_cfg, seed=seed)
        return Generated(images[0], requested_size=(self.width, self.height))


@dataclass(kw_only=True, eq=False)
class OvisU1Edit(OvisU1):
    """Edit of one image. The output has its size, rounded to multiples of 32, and at most 1 megapixel.

    ``img_cfg`` is guidance towards the input image. Source: AIDC-AI/Ovis-U1@dccf5eb3, test_img_edit.py.
    """

    program = ("test_img_edit", "pipe_img_edit")

    img_cfg: float

    def make(self, given: Sequence[str | Image.Image], seed: int) -> Image.Image:
        """Returns one edited image. Raises ItemFailed unless the item has exactly one input image."""
        images, instruction = split_inputs(given)
        image = one_image(images, "Ovis-U1")
        settings = (self.num_inference_steps, self.txt_cfg, self.img_cfg)
        edited: list[Image.Image] = self._pipe(self._model, image, instruction, *settings, seed=seed)
        return edited[0]
