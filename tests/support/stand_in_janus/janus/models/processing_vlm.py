from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class VLChatProcessor:
    sft_format = "a-format"
    image_start_tag = "<start>"
    image_gen_tag = "<gen>"

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.tokenizer = SimpleNamespace(encode=lambda text: [1, *text.encode()])

    @classmethod
    def from_pretrained(cls, folder: str) -> VLChatProcessor:
        return cls(folder)

    def apply_sft_template_for_multi_turn_prompts(
        self, conversations: Any, sft_format: str = "deepseek", system_prompt: str = ""
    ) -> str:
        assert sft_format == self.sft_format
        turns = [f"{turn['role']}:{turn['content']}" for turn in conversations]
        return system_prompt + "|".join(turns)

    @property
    def pad_id(self) -> int:
        return 2
