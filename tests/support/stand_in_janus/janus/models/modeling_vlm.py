from __future__ import annotations

from typing import Any

import torch

from janus.language import WIDTH, CausalLM, embedding

from .vq_model import VQModel


class MultiModalityCausalLM:
    def __init__(self) -> None:
        self.language_model = CausalLM()
        self.gen_vision_model = VQModel("its configuration")
        self.moved: list[Any] = []

    @classmethod
    def from_pretrained(cls, folder: str) -> MultiModalityCausalLM:
        return cls()

    def to(self, where: Any) -> MultiModalityCausalLM:
        self.moved.append(where)
        return self

    def eval(self) -> MultiModalityCausalLM:
        return self

    def gen_head(self, hidden: Any) -> Any:
        """Logits of 16 image tokens: whole numbers of 0 to 18."""
        signs = torch.tensor([[(token >> bit) & 1 for token in range(16)] for bit in range(WIDTH)])
        return hidden @ signs.to(hidden.dtype)

    def prepare_gen_img_embeds(self, image_ids: Any) -> Any:
        return embedding(image_ids)
