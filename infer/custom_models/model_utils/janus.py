"""Janus and Janus-Pro in the layout of transformers."""

from __future__ import annotations

from typing import Any

from PIL import Image

from custom_models.model_utils.adapters import levels_to_image
from custom_models.model_utils.transformers_common import TransformersImageModel
from imageevalkit.generation.model import Generated


class JanusT2I(TransformersImageModel):
    """Text to image in the checkpoint's only size (384 × 384 for Janus-Pro).

    Args:
        guidance_scale: weight of classifier-free guidance; above 1.
        temperature: of the sampling; above 0.
    """

    model_class = "JanusForConditionalGeneration"
    processor_class = "JanusProcessor"

    def __init__(
        self, model_path: str, *, guidance_scale: float = 5.0, temperature: float = 1.0, **settings: Any
    ) -> None:
        super().__init__(model_path, **settings)
        # top_k=0: the authors draw from all tokens, transformers' default from the 50 most probable
        self._sampling = {
            "do_sample": True,
            "guidance_scale": guidance_scale,
            "temperature": temperature,
            "top_k": 0,
        }

    def generate(self, prompt: str, seed: int = 42) -> Generated:
        """One image, sampled with ``seed``."""
        message = {"role": "user", "content": [{"type": "text", "text": prompt}]}
        text = self._processor.apply_chat_template([message], add_generation_prompt=True)
        inputs = self._processor(text=text, generation_mode="image", return_tensors="pt").to(self.device)
        self._seed(seed)
        tokens = self._model.generate(**inputs, generation_mode="image", **self._sampling)
        decoded = self._model.decode_image_tokens(tokens)
        return Generated(self._picture(decoded[0].float()))

    def _picture(self, pixels: Any) -> Image.Image:
        """The image of ``pixels`` (height, width, channel), which are normalized as the model's inputs are.

        The processor's own postprocess takes the height for the channels where torchvision is missing.
        """
        import torch

        scale = self._processor.image_processor
        mean, std = (
            torch.tensor(values, device=pixels.device) for values in (scale.image_mean, scale.image_std)
        )
        return levels_to_image(((pixels * std + mean) * 255).permute(2, 0, 1))
