from __future__ import annotations

from typing import Any

import torch


class _Inputs(dict[str, Any]):
    def to(self, device: str, dtype: Any) -> _Inputs:
        return _Inputs(self, device=device, dtype=dtype)


class OrthusProcessor:
    @classmethod
    def from_pretrained(cls, folder: str) -> OrthusProcessor:
        return cls()

    def __call__(
        self,
        text: Any = None,
        images: Any = None,
        padding: Any = False,
        truncation: Any = None,
        max_length: Any = None,
        return_tensors: Any = "TensorType.PYTORCH",
        return_for_text_completion: bool = False,
        vqmodel: Any = None,
    ) -> _Inputs:
        return _Inputs(text=text, padding=padding, return_tensors=return_tensors)

    def postprocess_pixel_values(self, pixel_values: Any) -> Any:
        return torch.clip(pixel_values * 127.5 + 127.5, 0, 255).to(torch.uint8)
