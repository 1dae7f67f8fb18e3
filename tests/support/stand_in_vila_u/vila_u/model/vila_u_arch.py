from __future__ import annotations

from typing import Any

import torch


class VILAUMetaForCausalLM:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.calls: list[Any] = []

    def generate_image_content(self, prompt: str, cfg: float = 3.0, generation_nums: int = 1) -> Any:
        self.calls.append((prompt, cfg, generation_nums))
        return torch.rand(generation_nums, 3, 256, 256) * 255
