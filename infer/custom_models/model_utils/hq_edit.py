"""HQ-Edit: InstructPix2Pix weights fine-tuned at 512 × 512, where inputs have to be square too."""

from __future__ import annotations

from typing import Any

from PIL import Image

from custom_models.model_utils.diffusers_edit import DiffusersEdit

_SIDE = 512


class HQEdit(DiffusersEdit):
    """Edit of exactly one image; the result is 512 × 512 whatever the input's shape."""

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        (image,) = images
        # the pipeline takes the output's size from the image, and swallows width and height unused
        return {"prompt": prompt, "image": image.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)}
