from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class Showo:
    config = SimpleNamespace(mask_token_id=58497)

    def __init__(self, folder: str, llm_model_path: str) -> None:
        self.llm_model_path = llm_model_path
        self.calls: list[dict[str, Any]] = []

    @classmethod
    def from_pretrained(cls, folder: str, **kwargs: Any) -> Showo:
        return cls(folder, **kwargs)

    def to(self, device: str) -> Showo:
        return self

    def eval(self) -> Showo:
        return self

    def t2i_generate(
        self,
        input_ids: Any = None,
        uncond_input_ids: Any = None,
        attention_mask: Any = None,
        temperature: float = 1.0,
        timesteps: int = 18,
        guidance_scale: float = 0,
        noise_schedule: Any = "cosine_schedule",
        generator: Any = None,
        config: Any = None,
        **kwargs: Any,
    ) -> Any:
        self.calls.append({name: value for name, value in locals().items() if name != "self"})
        # beyond the codebook, as the model's own can be
        return torch.randint(-2000, 10000, (1, kwargs["seq_len"]))
