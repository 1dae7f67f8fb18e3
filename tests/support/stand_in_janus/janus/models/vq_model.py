from __future__ import annotations

from typing import Any

import torch


class VQModel:
    def __init__(self, config: Any) -> None:
        self.decoded: list[Any] = []

    def decode_code(self, code_b: Any, shape: Any = None, channel_first: bool = True) -> Any:
        """Grey squares of 16 x 16 pixels: token t of 0 to 15 is the level t / 7.5 - 1."""
        self.decoded.append(code_b)
        grid = code_b.reshape(1, 1, *shape[2:]).float() / 7.5 - 1
        return torch.nn.functional.interpolate(grid, scale_factor=16).expand(1, 3, -1, -1)
