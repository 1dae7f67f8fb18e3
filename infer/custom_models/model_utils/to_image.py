"""From what a decoder gives to a picture."""

from __future__ import annotations

from typing import Any

from PIL import Image


def to_image(pixels: Any) -> Image.Image:
    """A picture of ``pixels`` (3 x height x width, -1 to 1), fractions cut off as the authors' scripts do."""
    import torch

    levels = ((pixels.float() + 1) / 2 * 255).clamp(0, 255).to(torch.uint8)
    return Image.fromarray(levels.permute(1, 2, 0).cpu().numpy())
