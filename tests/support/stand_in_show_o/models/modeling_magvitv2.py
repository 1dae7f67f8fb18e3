from __future__ import annotations

from typing import Any


class MAGVITv2:
    @classmethod
    def from_pretrained(cls, folder: str) -> MAGVITv2:
        return cls()

    def to(self, device: str) -> MAGVITv2:
        return self

    def eval(self) -> MAGVITv2:
        return self

    def decode_code(self, codebook_indices: Any, shape: Any = None) -> Any:
        """A grid of 16 x 16 tokens as 256 x 256 pixels; token t of 0 to 8191 is the level t / 4095.5 - 1."""
        assert codebook_indices.min() >= 0 and codebook_indices.max() < 8192
        side = int(codebook_indices.shape[1] ** 0.5)
        grid = codebook_indices.reshape(1, 1, side, side).float() / 4095.5 - 1
        return grid.repeat_interleave(16, 2).repeat_interleave(16, 3).expand(1, 3, -1, -1)
