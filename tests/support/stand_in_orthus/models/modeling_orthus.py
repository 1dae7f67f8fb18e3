from __future__ import annotations

from typing import Any

import torch


class OrthusForConditionalGeneration:
    dtype = torch.bfloat16

    def __init__(self, folder: str, **kwargs: Any) -> None:
        self.loaded = {"folder": folder, **kwargs}
        self.calls: list[dict[str, Any]] = []

    @classmethod
    def from_pretrained(cls, folder: str, **kwargs: Any) -> OrthusForConditionalGeneration:
        return cls(folder, **kwargs)

    def generate(
        self,
        generate_wo_quant: bool = True,
        inputs: Any = None,
        generation_config: Any = None,
        logits_processor: Any = None,
        multimodal_generation_mode: Any = None,
        **kwargs: Any,
    ) -> Any:
        print("a line for each feature")
        self.calls.append({"multimodal_generation_mode": multimodal_generation_mode, **kwargs})
        return torch.rand(1024, 256)

    def decode_image_latents(self, image_latents: Any) -> Any:
        grid = image_latents[:, 0].reshape(1, 1, 32, 32) * 2 - 1
        return torch.nn.functional.interpolate(grid, scale_factor=16).expand(1, 3, -1, -1)
