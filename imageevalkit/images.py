"""What a file says about itself as an image: does it decode, how big is it, is it one flat colour."""

from __future__ import annotations

import contextlib
import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import NamedTuple, TypeVar

from PIL import ExifTags, Image, UnidentifiedImageError

from imageevalkit.hashes import sha256_file as sha256_file
from imageevalkit.png import ends_with_pixels, is_surely_not_flat, rows_are_whole

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
IMAGE_FORMATS = "PNG, JPEG, WebP, BMP, GIF and TIFF"
"""The formats of these suffixes, as a user reads them."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Pillow's names of the formats that the files of a cell may have, whatever their suffix says."""
REPLY_FORMATS = FORMATS[:3]
"""Those that a server may answer with."""
# An official evaluator would read a lossy format, so the format follows the path a dataset declares.
_FORMAT_OF_SUFFIX = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".bmp": "BMP"}
# Where Pillow finds a rotation in the header of a PNG.
_MAY_TURN = frozenset({"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"})
# What Pillow shows a plugin of a file, for it to say whether that is of its format.
_MAGIC = 16

# Pillow warns above it: a quarter of a GiB as RGB. No model makes that, and a few hundred kB can stand for all of it.
MOST_PIXELS = 1024**3 // 4 // 3
_LARGE = 4096**2
# WebP encoder effort 0-6: 2 halves the time of the default 4 for about 5 % more bytes.
_EFFORT = 2
_LARGE_ONE = threading.RLock()

T = TypeVar("T")
R = TypeVar("R")


class CorruptImage(Exception):
    """The bytes are not a whole image."""


class TooLarge(CorruptImage):
    """The image has more pixels than are decoded."""


@contextlib.contextmanager
def in_turn(image: Image.Image) -> Iterator[None]:
    """For the time that the pixels of ``image`` are in memory: of those beyond 4096² one at a time is."""
    width, height = image.size
    with _LARGE_ONE if width * height > _LARGE else contextlib.nullcontext():
        yield


def opened(source: bytes | Path, formats: Sequence[str] = FORMATS) -> Image.Image:
    """The image in ``source``, read no further than its header for now. Nothing else in this tree opens one.

    Pillow knows fifty formats, and for one of them, EPS, it runs Ghostscript on whatever program the file holds. What
    :func:`prove` has not passed may make it raise any of a dozen types when it is read on. Raises CorruptImage: it is
    no image of one of ``formats``, or has too many pixels (TooLarge); OSError: the file ``source`` cannot be read.
    """
    with _corrupt_unless_system_error():
        try:
            image = Image.open(
                io.BytesIO(source) if isinstance(source, bytes) else source, formats=[*formats]
            )
        except UnidentifiedImageError as error:  # its own words hold a memory address
            raise CorruptImage(_what_else(source, formats)) from error
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise TooLarge(f"{width}x{height} pixels are more than the {MOST_PIXELS:,} that are decoded")
        return image


def _what_else(source: bytes | Path, formats: Sequence[str]) -> str:
    """What is in ``source``, which is none of ``formats``; its first bytes tell, and no more of it is read."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        start = file.read(_MAGIC)
    Image.init()
    for name, (_, accepts) in list(Image.OPEN.items()):  # a list: another thread may be at the same
        if len(start) == _MAGIC and name not in formats and accepts and accepts(start) is True:
            return f"its format is {name}: only {', '.join(formats)} are opened"
    return "no image of a known format"


@contextlib.contextmanager
def _corrupt_unless_system_error() -> Iterator[None]:
    """CorruptImage for the dozen types that Pillow raises, but for an error of the system, such as no descriptor."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CorruptImage) or (isinstance(error, OSError) and error.errno is not None):
            raise
        if isinstance(error, Image.DecompressionBombError):
            raise TooLarge(f"its pixels are more than the {MOST_PIXELS:,} that are decoded") from error
        raise CorruptImage(f"{type(error).__name__}: {error}") from error


def prove(data: bytes, formats: Sequence[str] = REPLY_FORMATS) -> Image.Image:
    """The whole image in ``data``, of a PNG without making a picture of it yet. Raises CorruptImage."""
    image = opened(data, formats)
    with in_turn(image), _corrupt_unless_system_error():
        if image.format != "PNG":
            image.load()
            return image
        image.verify()  # load() sees neither wrong checksums nor missing rows
        if not rows_are_whole(data):
            raise CorruptImage("the rows of the PNG are truncated or broken")
        return opened(data, formats)


def decode(data: bytes, formats: Sequence[str] = FORMATS) -> Image.Image:
    """The picture of the whole image in ``data``. Raises CorruptImage, as :func:`prove`."""
    image = prove(data, formats)
    with in_turn(image), _corrupt_unless_system_error():
        image.load()
    return image


def reduced(source: bytes | Image.Image, side: int, quality: int, formats: Sequence[str] = FORMATS) -> bytes:
    """A small WebP of a whole image, with its transparency: no side is longer than ``side`` pixels.

    ``quality`` is Pillow's own 1-95 scale. Raises CorruptImage.
    """
    with _corrupt_unless_system_error():
        image = _decode_small(source, side, formats) if isinstance(source, bytes) else source
        image = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
        image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
        buffer = io.BytesIO()
        image.save(buffer, "WEBP", quality=quality, method=_EFFORT)
    return buffer.getvalue()


def _decode_small(source: bytes, side: int, formats: Sequence[str]) -> Image.Image:
    """Decode completely; a JPEG at the nearest reduced size that its format allows (8 times faster)."""
    image = opened(source, formats)
    if image.format != "JPEG":
        return decode(source, formats)
    image.draft("RGB", (side, side))  # not below this size
    image.load()
    return image


def is_flat_file(data: bytes) -> bool:
    """:func:`is_flat` of the image in ``data``, which :func:`prove` has passed; decodes it only in case of doubt."""
    image = opened(data)
    with in_turn(image):
        is_noise = image.format == "PNG" and image.mode == "RGB" and is_surely_not_flat(data)
        return not is_noise and is_flat(image)


def is_flat(image: Image.Image) -> bool:
    """Whether ``image`` is one single colour, or nothing of it can be seen."""
    # getextrema is a C pass without a copy, except for palettes, whose indices say nothing about colour
    probe = image.convert("RGBA") if image.mode == "P" else image
    extrema = probe.getextrema()
    pairs = extrema if isinstance(extrema[0], tuple) else (extrema,)
    is_unseen = probe.mode in ("RGBA", "LA") and pairs[-1][1] == 0
    return is_unseen or all(high == low for low, high in pairs)


def is_plain(source: bytes | Path) -> bool:
    """Whether every program sees the same RGB pixels in an image file, of which little more than the header is read.

    That is: RGB or grey, opaque, one frame, not to be turned (by damaged Exif it is not). Raises as :func:`opened`.
    """
    with opened(source) as image:
        if image.mode not in ("RGB", "L") or "transparency" in image.info:
            return False
        # asked for a rotation that its header does not have, Pillow decodes a PNG for what may follow the pixels
        upright = image.format == "PNG" and not _MAY_TURN & image.info.keys() and ends_with_pixels(source)
        try:
            return getattr(image, "n_frames", 1) == 1 and (
                upright or image.getexif().get(ExifTags.Base.Orientation, 1) == 1
            )
        except Exception:  # as in decode: Pillow raises a dozen types
            return True


def on_white(image: Image.Image) -> Image.Image:
    """``image`` as RGB, its transparent parts on white."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.new("RGBA", rgba.size, "white")
        image.alpha_composite(rgba)
    return image.convert("RGB")


def as_rgb(image: Image.Image) -> Image.Image:
    """``image`` as RGB, transparency dropped.

    Pillow keeps the colour that meant transparency: PNGs would be saved with it, and transformers 5 lays it on white.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    rgb = image.convert("RGB")
    rgb.info.pop("transparency", None)
    return rgb


def encode(image: Image.Image, path: Path) -> bytes:
    """Encode ``image`` in the format that the suffix of ``path`` names, with Pillow's defaults.

    Alpha is dropped and not composited, as the official evaluation kit does (``convert("RGB")`` before ``save``).
    Pillow's default JPEG quality (75) is part of score parity. Raises ValueError: the suffix names no known format.
    """
    buffer = io.BytesIO()
    as_rgb(image).save(buffer, format_of(path))
    return buffer.getvalue()


class EncodedImage(NamedTuple):
    """``data`` as it goes to disk; ``size`` is (width, height), ``flat``: one single colour."""

    data: bytes
    size: tuple[int, int]
    flat: bool


def facts(data: bytes) -> EncodedImage:
    """What the whole image in ``data`` is, kept as it is. Raises CorruptImage."""
    with in_turn(opened(data)):
        image = prove(data, FORMATS)
        return EncodedImage(data, image.size, is_flat_file(data) if image.format == "PNG" else is_flat(image))


def encoded(image: Image.Image | bytes, path: Path, proven: bool = False) -> EncodedImage:
    """What to store of ``image`` at ``path``; ``proven``: its bytes have passed :func:`prove`.

    A server's PNG stays as it came. Where a benchmark asks for JPEG everything is encoded here, a server's JPEG too:
    its quality is part of score parity. Raises CorruptImage, and Pillow's own errors for what it cannot encode.
    """
    if not isinstance(image, bytes):
        picture = image
    else:
        picture = opened(image) if proven else decode(image)
        if picture.format == format_of(path) == "PNG" and picture.mode == "RGB":
            return EncodedImage(image, picture.size, is_flat_file(image))
    with in_turn(picture):
        return EncodedImage(encode(picture, path), picture.size, is_flat(picture))


def format_of(path: PurePath) -> str:
    """Pillow's name of the format that the suffix of ``path`` names. Raises ValueError for an unknown suffix."""
    if format := _FORMAT_OF_SUFFIX.get(path.suffix.lower()):
        return format
    raise ValueError(
        f"'{path}': no image is saved with the suffix '{path.suffix}', only with {', '.join(_FORMAT_OF_SUFFIX)}"
    )


def map_threads(function: Callable[[T], R], values: Iterable[T], threads: int, ahead: int = 0) -> Iterator[R]:
    """``map`` on a thread pool, in order.

    At most ``ahead`` results wait to be taken, for they may be large; 0: twice ``threads``.
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for value in values:
                waiting.append(pool.submit(function, value))
                if len(waiting) > (ahead or 2 * threads):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
