"""Whether an image is whole has one answer, decoded or not, byte for byte of damage."""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path

import pytest
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from imageevalkit.common import images
from imageevalkit.common.images import CorruptImage, decode, facts, stored_as, thumbnail_of
from imageevalkit.store.cell import Cell
from imageevalkit.store.states import survey_images
from tests.support.generation import FakeDataset, items
from tests.support.pngs import png
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
        facts(data)
    except CorruptImage:
        return False
    return True


def test_one_colour_is_told_from_nearly_one() -> None:
    flat = Image.new("RGB", (300, 200), (12, 250, 3))
    dotted = flat.copy()
    dotted.putpixel((299, 199), (12, 250, 4))
    pictures = [flat, dotted, Image.new("RGBA", (8, 8), (1, 2, 3, 0)), picture("RGB"), flat.convert("LAB")]
    assert [stored_as(b"", one).flat for one in pictures] == [True, False, True, False, True]


@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_a_thumbnail_shows_the_picture(mode: str) -> None:
    left = Image.new("L", (600, 300), 255)
    left.paste(0, (0, 0, 300, 300))
    made = facts(encoded(left.convert(mode), "PNG"))
    small = Image.open(io.BytesIO(made.thumbnail))
    assert (made.size, small.size, small.format) == ((600, 300), (192, 96), "WEBP")
    left_half, right_half = (
        small.convert("L").crop((0, 0, 90, 96)),
        small.convert("L").crop((102, 0, 192, 96)),
    )
    assert max(left_half.tobytes()) < 20 and min(right_half.tobytes()) > 235


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_thumbnails_are_upright_where_exif_data_turn_the_picture(format: str) -> None:
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6  # the top is at the right
    lying = Image.new("RGB", (300, 200), "red")
    lying.paste("blue", (0, 0, 60, 200))
    data = encoded(lying, format, exif=turned)
    for thumbnail in (facts(data).thumbnail, thumbnail_of(data)):
        small = Image.open(io.BytesIO(thumbnail)).convert("RGB")
        assert small.size == (128, 192)
        (red, _, blue), (low, _, high) = small.getpixel((64, 10)), small.getpixel((64, 100))  # type: ignore[misc]
        assert blue > 200 > 50 > red and low > 200 > 50 > high


@pytest.mark.parametrize("format", ["JPEG", "WEBP"])
def test_other_formats(format: str) -> None:
    data = encoded(picture("RGB"), format)
    assert proves(data)
    assert not proves(data[: len(data) // 2])


@pytest.mark.parametrize("mode", ["RGB", "P"])
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


@pytest.fixture(params=["isal", "zlib"])
def inflating(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver's environment, and in one that lacks isal."""
    if request.param == "zlib":
        monkeypatch.setattr("imageevalkit.common.images._zlib", zlib)


@pytest.mark.usefixtures("inflating")
@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        (b"\4" + b"\7" * 12 + b"\0" * 13 * 3, True),
        (b"\0" * 13 * 3, False),  # a row too few
        (b"\0" * 13 * 4 + b"\0", True),  # more than the header promises: every decoder ignores it
        (b"\0" * 39 + b"\5" + b"\0" * 12, False),  # no such filter
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
    [state] = survey_images(Cell("m", "fake"), [item]).states.values()
    assert state.status == ("generated" if whole else "corrupt")


# which of the seven passes of Adam7 a pixel belongs to (PNG specification, §8.1)
ADAM7 = ["16462646", "77777777", "56565656", "77777777", "36463646", "77777777", "56565656", "77777777"]


def interlaced(width: int, height: int) -> list[bytes]:
    """The rows of each pass of an RGB picture."""
    rows = []
    for number in "1234567":
        columns = [[ADAM7[y % 8][x % 8] for x in range(width)].count(number) for y in range(height)]
        rows += [bytes(1 + 3 * count) for count in columns if count]
    return rows


@pytest.mark.parametrize(("width", "height"), [(1, 1), (5, 3), (13, 9)])
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


@pytest.mark.parametrize("mode", MODES)
def test_a_png_is_decoded_as_pillow_decodes_it(mode: str) -> None:
    info = PngInfo()
    info.add(b"tEXt", b"after\0the pixels", after_idat=True)
    # its image data are in several chunks
    data = encoded(picture(mode, 300), "PNG", pnginfo=info)
    assert data.count(b"IDAT") > (mode in ("RGB", "RGBA", "I;16"))
    with Image.open(io.BytesIO(data)) as theirs:
        theirs.load()
        ours = decode(data)
        assert (ours.mode, ours.size, ours.tobytes()) == (theirs.mode, theirs.size, theirs.tobytes())
        assert ours.convert("RGBA").tobytes() == theirs.convert("RGBA").tobytes()
        assert ours.info == theirs.info


def with_words(size: int, chunk: str) -> bytes:
    """A PNG that holds ``size`` characters in a compressed text chunk, or as many bytes in its colour profile."""
    if chunk == "iCCP":
        return encoded(picture("RGB"), "PNG", icc_profile=bytes(size))
    told = PngInfo()
    told.add_text("workflow", "a" * size, zip=True)
    return encoded(picture("RGB"), "PNG", pnginfo=told)


@pytest.mark.parametrize("chunk", ["zTXt", "iCCP"])
def test_long_texts_and_profiles_damage_no_png(tmp_path: Path, chunk: str) -> None:
    data = with_words(3 << 20, chunk)
    made = facts(data)
    assert made.data == data and made.size == (37, 37)
    assert thumbnail_of(data) == made.thumbnail == facts(encoded(picture("RGB"), "PNG")).thumbnail
    for name in ("a.png", "a.jpg"):
        stored = images.encoded(made, tmp_path / name).data
        assert decode(stored).size == (37, 37)
    assert images.is_plain(data)


@pytest.mark.parametrize("chunk", ["zTXt", "iCCP"])
def test_a_few_bytes_that_inflate_without_end_are_too_large(chunk: str) -> None:
    data = with_words(17 << 20, chunk)
    assert len(data) < 100_000
    with pytest.raises(images.TooLarge, match="texts or colour profile"):
        facts(data)


def test_texts_behind_the_pixels_count_too() -> None:
    plain = encoded(picture("RGB"), "PNG")
    for size, is_whole in ((3 << 20, True), (17 << 20, False)):
        words = b"workflow\0\0" + zlib.compress(b"a" * size)
        check = struct.pack(">I", zlib.crc32(b"zTXt" + words))
        chunk = struct.pack(">I", len(words)) + b"zTXt" + words + check
        assert proves(plain[:-12] + chunk + plain[-12:]) is is_whole
