"""``utils/check_empty_image.py``: what is blank, what only looks so, what is no whole image."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from tests.support.blank_images import BLANK, CORRUPT, page, write_images
from utils.check_empty_image import check_images, is_blank


def jpeg(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG")
    return Image.open(buffer)


def specks(count: int, colour: str = "white") -> Image.Image:
    image = Image.new("RGB", (512, 512), colour)
    rng = random.Random(count)
    for _ in range(count):
        image.putpixel((rng.randrange(512), rng.randrange(512)), tuple(rng.randbytes(3)))
    return image


@pytest.mark.parametrize("colour", ["white", "black", (13, 77, 201)])
def test_flat_colour_is_blank(colour: str) -> None:
    image = Image.new("RGB", (300, 200), colour)
    assert is_blank(image)
    assert is_blank(jpeg(image))


@pytest.mark.parametrize("mode", ["1", "P", "RGBA", "CMYK", "I;16", "F"])
def test_flat_in_every_mode(mode: str) -> None:
    assert is_blank(Image.new(mode, (64, 64)))


def test_transparency() -> None:
    hidden = page("HELLO", 48).convert("RGBA")
    hidden.putalpha(0)
    assert is_blank(hidden), "nothing of it can be seen"
    shape = Image.new("RGBA", (512, 512), (0, 0, 0, 0))
    shape.paste((0, 0, 0, 255), (100, 100, 300, 300))
    assert not is_blank(shape), "its shape lies in the alpha channel alone"


@pytest.mark.parametrize("count", [1, 5000])
def test_specks_on_a_flat_colour_are_blank(count: int) -> None:
    assert is_blank(specks(count))
    assert is_blank(specks(count, "black"))


def test_specks_beyond_the_threshold_are_not() -> None:
    assert not is_blank(specks(10_000))
    assert is_blank(specks(10_000), threshold=0.95)


@pytest.mark.parametrize("points", [10, 48])
def test_one_small_word_on_white_is_not_blank(points: int) -> None:
    image = page("OPEN", points, size=1024)
    assert image.convert("L").histogram()[255] > 0.98 * 1024 * 1024, "a share alone would call it blank"
    assert not is_blank(image)
    assert not is_blank(jpeg(image))


def test_drawings_and_pages_are_not_blank() -> None:
    assert not is_blank(page("The quick brown fox jumps over it", 24, lines=14))
    line = page()
    ImageDraw.Draw(line).line((50, 60, 450, 200), fill="black")
    assert not is_blank(line)
    dot = page()
    ImageDraw.Draw(dot).ellipse((250, 250, 266, 266), fill="red")
    assert not is_blank(dot)
    assert not is_blank(Image.linear_gradient("L"))
    assert not is_blank(Image.effect_noise((256, 256), 80))


def test_report_of_a_folder(tmp_path: Path) -> None:
    report = check_images(write_images(tmp_path), threads=3)
    assert report.total == 9
    assert report.blank == BLANK
    assert set(report.corrupt) == CORRUPT and all(report.corrupt.values())
    assert not report.unreadable and not report.passed
