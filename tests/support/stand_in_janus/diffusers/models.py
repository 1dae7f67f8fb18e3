from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class AutoencoderKL:
    config = SimpleNamespace(scaling_factor=0.5)

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.decoded: list[Any] = []

    @classmethod
    def from_pretrained(cls, folder: str) -> AutoencoderKL:
        return cls(folder)

    def to(self, where: Any) -> AutoencoderKL:
        return self

    def eval(self) -> AutoencoderKL:
        return self

    def decode(self, z: Any) -> Any:
        self.decoded.append(z)
        return SimpleNamespace(sample=torch.nn.functional.interpolate(z[:, :3].float(), scale_factor=8))
