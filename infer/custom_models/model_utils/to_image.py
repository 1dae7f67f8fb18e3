"""From what a decoder gives to a picture."""

from __future__ import annotations

from typing import Any

from PIL import Image


def to_image(pixels: Any) -> Image.Image:
    """A picture of ``pixels`` (3 x height x width, -1 to 1), fractions cut off as the authors' scripts do."""
    return levels_to_image((pixels.float() + 1) / 2 * 255)


def levels_to_image(levels: Any) -> Image.Image:
    """The same of ``levels`` (3 x height x width, 0 to 255; what is beyond counts as the nearest of them)."""
    import torch

    return Image.fromarray(levels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0).cpu().numpy())
