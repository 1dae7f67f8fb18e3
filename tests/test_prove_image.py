"""Whether an image is whole has one answer, decoded or not, byte for byte of damage."""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from imageevalkit.cell import Cell
from imageevalkit.cell.states import survey_images
from imageevalkit.images import CorruptImage, decode, facts, is_flat_file, prove
from tests.support.generation import FakeDataset, items
from utils.check_empty_image import check_images

MODES = ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"]


def picture(mode: str, side: int = 37) -> Image.Image:
    noise = Image.frombytes("RGB", (side, side), random.Random(0).randbytes(side * side * 3))
    if mode == "P":
        return noise.quantize(13)
    if mode == "I;16":
        return Image.frombytes("I;16", (side, side), random.Random(0).randbytes(side * side * 2))
    return noise.convert(mode)


def encoded(image: Image.Image, format: str, **how: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **how)
    return buffer.getvalue()


def decodes(data: bytes) -> bool:
    try:
        decode(data)
    except CorruptImage:
        return False
    return True


def proves(data: bytes) -> bool:
    try:
        prove(data)
    except CorruptImage:
        return False
    return True


@pytest.mark.parametrize("mode", MODES)
def test_whole_pngs_of_every_mode(mode: str) -> None:
    assert proves(encoded(picture(mode), "PNG"))


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_one_colour_is_told_without_decoding_what_is_surely_not(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(image: Image.Image) -> bytes:
        info = PngInfo()
        info.add_text("noise", random.Random(1).randbytes(200_000).hex())
        return encoded(image, "PNG", compress_level=level, pnginfo=info)

    flat = Image.new("RGB", (300, 200), (12, 250, 3))
    dotted = flat.copy()
    dotted.putpixel((299, 199), (12, 250, 4))
    assert [is_flat_file(text(image)) for image in (flat, dotted)] == [True, False]
    assert is_flat_file(encoded(Image.new("RGBA", (8, 8), (1, 2, 3, 0)), "PNG"))
    assert not is_flat_file(encoded(picture("RGB"), "JPEG"))
    noise = encoded(picture("RGB", 128), "PNG", compress_level=level)
    monkeypatch.setattr("imageevalkit.images.is_flat", lambda image: pytest.fail("decoded"))
    assert not is_flat_file(noise)


@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
def test_other_formats(format: str) -> None:
    data = encoded(picture("RGB"), format)
    assert proves(data)
    assert not proves(data[: len(data) // 2])


@pytest.mark.parametrize("mode", MODES)
def test_every_truncation_is_noticed(mode: str) -> None:
    data = encoded(picture(mode, 9), "PNG")
    assert [n for n in range(len(data)) if proves(data[:n])] == []


def test_every_flipped_byte_is_judged_as_decoding_judges_it() -> None:
    data = bytearray(encoded(picture("RGB", 9), "PNG"))
    end = len(data) - 12
    for n in range(len(data)):
        data[n] ^= 0x55
        assert proves(bytes(data)) == decodes(bytes(data)), n
        # a broken end chunk is the sign of a file cut and padded
        assert n < end or not decodes(bytes(data)), n
        data[n] ^= 0x55


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(rows: bytes, width: int = 4, height: int = 4, interlace: int = 0) -> bytes:
    """An RGB PNG with right checksums around ``rows`` (filter byte and 3 × width bytes each)."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlace)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture(params=["isal", "zlib"])
def inflating(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver's environment, and in one that lacks isal."""
    if request.param == "zlib":
        monkeypatch.setattr("imageevalkit.png._zlib", zlib)


@pytest.mark.usefixtures("inflating")
@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        (b"\0" * 13 * 4, True),
        (b"\4" + b"\7" * 12 + b"\0" * 13 * 3, True),
        (b"\0" * 13 * 3, False),  # a row too few
        (b"\0" * 13 * 2, False),  # half of them
        (b"\0" * 13 * 4 + b"\0", True),  # more than the header promises: every decoder ignores it
        (b"\0" * 39 + b"\5" + b"\0" * 12, False),  # no such filter
        (b"", False),
    ],
)
def test_damage_that_checksums_do_not_show(rows: bytes, whole: bool, tmp_path: Path) -> None:
    data = png(rows)
    assert (proves(data), decodes(data)) == (whole, whole)
    if whole:
        assert facts(data).size == (4, 4)
    else:
        with pytest.raises(CorruptImage):
            facts(data)
    (tmp_path / "a.png").write_bytes(data)
    assert (not check_images(tmp_path).corrupt) == whole
    [item] = items(FakeDataset(1))
    item.path.parent.mkdir(parents=True)
    item.path.write_bytes(data)  # by hand: no record tells of it
    [state] = survey_images(Cell("m", "fake"), [item]).values()
    assert state.status == ("generated" if whole else "corrupt")


@pytest.mark.usefixtures("inflating")
def test_compressed_bytes_that_break_in_the_middle() -> None:
    compressed = zlib.compress(random.Random(0).randbytes(13 * 64))
    for cut in (10, len(compressed) // 2, len(compressed) - 6):
        header = struct.pack(">IIBBBBB", 4, 64, 8, 2, 0, 0, 0)
        body = compressed[:cut] + b"\xff" * (len(compressed) - cut)
        parts = [chunk(b"IHDR", header), chunk(b"IDAT", body), chunk(b"IEND", b"")]
        data = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
        assert proves(data) == decodes(data)


# which of the seven passes of Adam7 a pixel belongs to (PNG specification, §8.1)
ADAM7 = ["16462646", "77777777", "56565656", "77777777", "36463646", "77777777", "56565656", "77777777"]


def interlaced(width: int, height: int) -> list[bytes]:
    """The rows of each pass of an RGB picture."""
    rows = []
    for number in "1234567":
        columns = [[ADAM7[y % 8][x % 8] for x in range(width)].count(number) for y in range(height)]
        rows += [bytes(1 + 3 * count) for count in columns if count]
    return rows


@pytest.mark.parametrize("width", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("height", [1, 3, 4, 9])
def test_an_interlaced_png_has_the_rows_of_all_its_passes(width: int, height: int) -> None:
    rows = interlaced(width, height)
    whole = png(b"".join(rows), width, height, interlace=1)
    assert decodes(whole) and proves(whole)
    for n in range(len(rows)):
        cut = png(b"".join(rows[:n]), width, height, interlace=1)
        assert not decodes(cut) and not proves(cut), n
    bad = png(b"".join([*rows[:-1], b"\5" + rows[-1][1:]]), width, height, interlace=1)
    assert not decodes(bad) and not proves(bad)


def test_a_decompression_bomb_takes_no_memory() -> None:
    data = png(b"\0" * 10_000_000, 4, 4)
    assert proves(data)
    assert not proves(png(b"\0" * 13, 60_000, 60_000))
