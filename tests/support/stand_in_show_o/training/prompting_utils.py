from __future__ import annotations

from typing import Any

import torch


class UniversalPrompting:
    def __init__(
        self,
        text_tokenizer: Any,
        special_tokens: Any = (
            "<|soi|>",
            "<|eoi|>",
            "<|sov|>",
            "<|eov|>",
            "<|t2i|>",
            "<|mmu|>",
            "<|t2v|>",
            "<|v2v|>",
            "<|lvg|>",
        ),
        max_text_len: int = 8000,
        max_seq_len: int = 377,
        ignore_id: int = -100,
        cond_dropout_prob: float = 0.1,
    ) -> None:
        self.text_tokenizer, self.max_text_len = text_tokenizer, max_text_len
        self.sptids_dict = {name: torch.tensor([50296 + n]) for n, name in enumerate(special_tokens)}
        self.sptids_dict["<|pad|>"] = torch.tensor([50295])

    def __call__(self, input: Any, task: str, padding: bool = True, config: Any = None) -> Any:
        assert task == "t2i_gen"
        texts, image_ids = input
        words = torch.tensor([list(text.encode().ljust(self.max_text_len, b"\0")) for text in texts])
        return torch.cat([words, image_ids], dim=1), "attention masks"


def create_attention_mask_predict_next(
    sequence: Any,
    pad_id: int = 128256,
    soi_id: int = 128257,
    eoi_id: int = 128258,
    rm_pad_in_image: bool = False,
    return_inverse_mask: bool = True,
) -> Any:
    return {"sequence": sequence, "ids": (pad_id, soi_id, eoi_id), "rm_pad_in_image": rm_pad_in_image}
