"""Images with known text, for tests of anything that reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont


def text_image(
    texts: Iterable[tuple[str, tuple[int, int]]], points: int = 40, size: tuple[int, int] = (640, 360)
) -> Image.Image:
    """Black on white: each text with its (left, top) in pixels, in Noto Sans SC."""
    import pylopdf_fonts_zh_cn

    font = ImageFont.truetype(str(pylopdf_fonts_zh_cn.sans_path()), points)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for text, place in texts:
        draw.text(place, text, font=font, fill="black")
    return image


def save_text(path: Path, *texts: str, points: int = 40) -> Path:
    """Save one text per line as an image at ``path`` and return the path."""
    text_image([(text, (30, 30 + 90 * n)) for n, text in enumerate(texts)], points).save(path)
    return path
