"""Folders of images of which some are blank, and some are no whole images."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

BLANK = ["white.png", "sub/navy.jpg"]
CORRUPT = {"torn_a.png", "torn_b.jpg", "empty.png"}


def page(text: str = "", points: int = 24, lines: int = 1, size: int = 512) -> Image.Image:
    image = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(image)
    for line in range(lines):
        draw.text((20, 20 + line * points * 1.4), text, fill="black", font=ImageFont.load_default(points))
    return image


def write_images(tmp_path: Path) -> Path:
    """Four good images, two blank ones, three that are no whole images, and files that do not count."""
    good = page("Hello there", 40, lines=8)
    (tmp_path / "sub").mkdir()
    for name in ("a.png", "b.jpg", "sub/c.webp", "D.PNG"):
        good.save(tmp_path / name)
    Image.new("RGB", (64, 64), "navy").save(tmp_path / "sub" / "navy.jpg")
    Image.new("RGB", (64, 64), "white").save(tmp_path / "white.png")
    for name in ("a.png", "b.jpg"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / f"torn_{name}").write_bytes(whole[: len(whole) * 3 // 4])
    (tmp_path / "empty.png").touch()
    (tmp_path / ".half.png").write_bytes(b"being written")
    (tmp_path / ".half.png.part").write_bytes(b"being written")
    (tmp_path / ".thumbnails").mkdir()
    good.save(tmp_path / ".thumbnails/a.webp")
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path
