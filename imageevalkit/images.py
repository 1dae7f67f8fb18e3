"""What a file says about itself as an image: does it decode, how big is it, is it one flat colour."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import stat
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple, TypeVar

from PIL import ExifTags, Image, ImageFile, ImageOps, PngImagePlugin, UnidentifiedImageError

from imageevalkit.hashes import sha256_file as sha256_file

_zlib: Any
try:
    from isal import isal_zlib as _zlib  # in 40 % of the time that zlib takes
except ImportError:  # the driver's environment has it, those of models and benchmarks need not
    _zlib = zlib

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
IMAGE_FORMATS = "PNG, JPEG, WebP, BMP, GIF and TIFF"
"""The formats of these suffixes, as a user reads them."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Pillow's names of the formats that the files of a cell may have, whatever their suffix says."""
REPLY_FORMATS = FORMATS[:3]
"""Those that a server may answer with."""
# An official evaluator would read a lossy format, so the format follows the path a dataset declares.
_FORMAT_OF_SUFFIX = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".bmp": "BMP"}
# Where Pillow finds a rotation in the header of an image.
_MAY_TURN = frozenset({"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"})
# What Pillow shows a plugin of a file, for it to say whether that is of its format.
_MAGIC = 16

# Pillow warns above it: a quarter of a GiB as RGB. No model makes that, and a few hundred kB can stand for all of it.
MOST_PIXELS = 1024**3 // 4 // 3
_LARGE = 4096**2
THUMBNAIL_SIDE = 192  # longest side in pixels: sharp at 96 px on a high-density screen, about 4 KB as WebP
_THUMBNAIL_QUALITY = 62
# WebP encoder effort 0-6: 1 takes a third of the time of the default 4 for about 10 % more bytes.
_EFFORT = 1
_ROOM = (
    1.3  # how much larger than wanted a picture is, at least, before the last, careful step of its reduction
)
_LARGE_ONE = threading.RLock()
# a name in the way of a folder, a loop of links, a socket
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_READ_AT_ONCE = 1 << 20
# Pillow returns the memory of each picture to the system, whose fresh pages then cost a third of the time of decoding:
# at most 8 blocks of 16 MB stay.
Image.core.set_blocks_max(8)
# Pillow refuses a PNG whose colour profile, or one of whose texts, inflates to more than 1 MiB. Workflows of ComfyUI
# and profiles of printers are longer. Pillow's bound for all texts of an image stays.
PngImagePlugin.MAX_TEXT_CHUNK = 16 << 20

T = TypeVar("T")
R = TypeVar("R")


class CorruptImage(Exception):
    """The bytes are not a whole image."""


class TooLarge(CorruptImage):
    """The image has more pixels, or longer texts, than are read."""


@contextlib.contextmanager
def in_turn(image: Image.Image) -> Iterator[None]:
    """For the time that the pixels of ``image`` are in memory: of those beyond 4096² one at a time is."""
    width, height = image.size
    with _LARGE_ONE if width * height > _LARGE else contextlib.nullcontext():
        yield


def bytes_of_file(path: Path) -> bytes | None:
    """The bytes of the regular file ``path``; None: there is none. Raises OSError: it cannot be read.

    ``is_file`` and ``read_bytes`` make ten calls of the system, this makes four: of many small images they are the time
    that it takes.
    """
    try:
        # of a pipe nobody may write to
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            return None
        parts = [os.read(file, about.st_size + 1)]
        while parts[-1] and sum(map(len, parts)) != about.st_size:
            parts.append(os.read(file, _READ_AT_ONCE))
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(file)


def count_missing(paths: Iterable[Path]) -> int:
    """How many of ``paths`` are no files; their folders tell it of nearly all in one go."""
    names_in = functools.cache(_files_in)
    listed = ((path, *os.path.split(path)) for path in paths)
    # a file system may spell a name in its own way
    return sum(name not in names_in(folder) and not path.is_file() for path, folder, name in listed)


def _files_in(folder: str) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except OSError:
        return set()


def opened(source: bytes | Path, formats: Sequence[str] = FORMATS) -> Image.Image:
    """The image in ``source``, read no further than its header for now. Nothing else in this tree opens one.

    Pillow knows fifty formats, and for one of them, EPS, it runs Ghostscript on whatever program the file holds. What
    :func:`prove` has not passed may make it raise any of a dozen types when it is read on. Raises CorruptImage: it is
    no image of one of ``formats``, or has too many pixels (TooLarge); OSError: the file ``source`` cannot be read.
    """
    return _opened(io.BytesIO(source) if isinstance(source, bytes) else source, source, formats)


def _opened(file: Any, source: bytes | Path, formats: Sequence[str]) -> ImageFile.ImageFile:
    with _corrupt_unless_system_error():
        try:
            image = Image.open(file, formats=[*formats])
        except UnidentifiedImageError as error:  # its own words hold a memory address
            raise CorruptImage(_what_else(source, formats)) from error
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise TooLarge(f"{width}x{height} pixels are more than the {MOST_PIXELS:,} that are decoded")
        return image


class _ReopenedFile(io.RawIOBase):
    """The file ``path``, which is open only while some of it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._at = path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}
        start = starts[whence] if whence in starts else self._path.stat().st_size
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._at)
            count = file.readinto(buffer)
        self._at += count
        return count


def opened_anew(path: Path) -> Image.Image:
    """:func:`opened`, for a dataset of many thousand images: the file of each is open only while it is read."""
    image = _opened(_ReopenedFile(path), path, FORMATS)
    image.filename = str(path)
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
        if "MAX_TEXT_" in str(error):
            raise TooLarge("its texts or colour profile inflate to too many bytes") from error
        raise CorruptImage(f"{type(error).__name__}: {error}") from error


def decode(data: bytes, formats: Sequence[str] = FORMATS) -> Image.Image:
    """The picture of the whole image in ``data``. Raises CorruptImage."""
    image = opened(data, formats)
    with in_turn(image), _corrupt_unless_system_error():
        if image.format == "PNG":
            image.verify()  # load() sees neither wrong checksums nor missing rows; nothing can be loaded after it
            rows = rows_of(data)
            if rows is None:
                raise CorruptImage("the rows of the PNG are truncated or broken")
            # of a large one there is no room for another copy
            image = opened(data if len(rows) > 3 * _LARGE else with_rows(data, rows), formats)
            del rows
        image.load()
    return image


def reduced(source: bytes | Image.Image, side: int, quality: int, formats: Sequence[str] = FORMATS) -> bytes:
    """A small WebP of a whole image, with its transparency: no side is longer than ``side`` pixels.

    ``quality`` is Pillow's own 1-95 scale. Raises CorruptImage.
    """
    image = _decode_small(source, side, formats) if isinstance(source, bytes) else source
    return _webp(_small(image, side), quality)


def thumbnail_of(data: bytes, formats: Sequence[str] = FORMATS) -> bytes:
    """The :attr:`EncodedImage.thumbnail` of an image of which nothing else is asked, as viewers show the image: turned
    by its Exif data, 16 bits scaled (Pillow would clip them). Raises CorruptImage."""
    image = _decode_small(data, THUMBNAIL_SIDE, formats)
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value / 257 + 0.5).convert("L")
        image.info.pop("transparency", None)  # is of 16 bits too
    small = _small(image, THUMBNAIL_SIDE)
    with contextlib.suppress(Exception):  # as in is_plain
        small = ImageOps.exif_transpose(small)
    return _webp(small, _THUMBNAIL_QUALITY)


def _looks_other(picture: Image.Image) -> bool:
    """Whether the :func:`thumbnail_of` its file may be another than that of its RGB pixels."""
    return picture.mode.startswith("I") or bool(_MAY_TURN & picture.info.keys())


def _decode_small(data: bytes, side: int, formats: Sequence[str]) -> Image.Image:
    """Decode completely; a JPEG at the nearest reduced size that its format allows (8 times faster)."""
    image = opened(data, formats)
    if image.format != "JPEG":
        return decode(data, formats)
    with _corrupt_unless_system_error():
        image.draft("RGB", (side, side))  # not below this size
        image.load()
    return image


def _small(image: Image.Image, side: int) -> Image.Image:
    wanted = "RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB"
    with _corrupt_unless_system_error():
        image = image if image.mode == wanted else image.convert(wanted)
        small = image.reduce(max(1, int(max(image.size) / (side * _ROOM))))
        small.thumbnail((side, side))
    return small


def _webp(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=_EFFORT)
    return buffer.getvalue()


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
    """A whole image as it goes to disk: ``size`` is (width, height), ``flat``: it is one single colour.

    ``thumbnail`` (WebP, empty where none can be made) is of the pixels that proved it whole: nothing is decoded again.
    """

    data: bytes
    size: tuple[int, int]
    flat: bool
    thumbnail: bytes


def facts(data: bytes, formats: Sequence[str] = FORMATS) -> EncodedImage:
    """The whole image in ``data``, kept as it is. Raises CorruptImage."""
    with in_turn(opened(data, formats)):
        picture = decode(data, formats)
        made = stored_as(data, picture)
        if made.thumbnail and _looks_other(picture):
            return made._replace(thumbnail=thumbnail_of(data, formats))
        return made


def stored_as(data: bytes, picture: Image.Image) -> EncodedImage:
    """``picture``, which is stored as ``data``."""
    try:
        small = _small(picture, THUMBNAIL_SIDE)
    except CorruptImage:  # pixels such as those of LAB, which Pillow does not convert
        return EncodedImage(data, picture.size, is_flat(picture), b"")
    # one colour is one colour at any size: of nearly all others the small one tells
    return EncodedImage(
        data, picture.size, is_flat(small) and is_flat(picture), _webp(small, _THUMBNAIL_QUALITY)
    )


def encoded(image: Image.Image | EncodedImage, path: Path) -> EncodedImage:
    """What to store of ``image`` at ``path``.

    A server's PNG stays as it came. Where a benchmark asks for JPEG everything is encoded here, a server's JPEG too:
    its quality is part of score parity. Raises CorruptImage, and Pillow's own errors for what it cannot encode.
    """
    if isinstance(image, EncodedImage):
        header = opened(image.data)
        if header.format == format_of(path) == "PNG" and header.mode == "RGB":
            return image
        with in_turn(header):
            picture = decode(image.data)
            if _looks_other(picture):
                return stored_as(encode(picture, path), picture)  # which does not any more
            return image._replace(data=encode(picture, path))
    with in_turn(image):
        return stored_as(encode(image, path), image)


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


# ---- PNG
#
# Proving one whole takes a third of the time that decoding takes: its rows are inflated, but not reconstructed. And
# decoding takes half as long when it starts from these rows. A PNG can only be damaged in its chunks (each has a
# checksum), in its compressed stream, in the number of its rows, or in a row's filter type: nothing that reconstruction
# does can fail (PNG specification, 3rd edition, §7, §9, §10).

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type, §11.2.1
_LAST_FILTER = 4  # §9.2
# First column and row, and the steps to the next ones, of each pass of an interlaced PNG, §8.1.
_PASSES = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_END = b"\0\0\0\0IEND\xaeB`\x82"
_ZLIB_HEADER = b"\x78\x01"  # RFC 1950
_MOST_STORED = 0xFFFF  # bytes in a block that is not compressed, RFC 1951 §3.2.4
_HEADER_END = 33  # signature, and IHDR with length, name and checksum


def rows_of(data: bytes) -> bytes | None:
    """The inflated rows of a PNG; None unless they are all there and well-formed, and its end is.

    Stricter than Pillow, which takes a PNG with rows missing and one that ends in the middle of its last chunk.
    ``data``: a PNG whose header and checksums are right.
    """
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    places = _PASSES if interlaced else [(0, 0, 1, 1)]
    sizes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in places]
    passes = [
        (1 + (columns * depth * _CHANNELS[colour] + 7) // 8, rows)
        for columns, rows in sizes
        if columns > 0 and rows > 0
    ]
    expected = sum(stride * rows for stride, rows in passes)
    try:
        # bounded by what the header promises: a few bytes may inflate to gigabytes
        compressed = b"".join(data[at + 8 : at + 8 + length] for at, length in _image_data(data))
        pixels: bytes = _zlib.decompressobj().decompress(compressed, expected)
    except _zlib.error:
        return None
    if len(pixels) != expected or _END not in data:
        return None
    start = 0
    for stride, rows in passes:
        end = start + stride * rows
        if max(pixels[start:end:stride]) > _LAST_FILTER:
            return None
        start = end
    return pixels


def with_rows(data: bytes, rows: bytes) -> bytes:
    """The PNG ``data`` with its ``rows`` (:func:`rows_of`) not compressed: decoding it inflates nothing again."""
    places = _image_data(data)
    (start, _), (last, length) = places[0], places[-1]
    stored: list[Any] = [b"IDAT", _ZLIB_HEADER]
    check = struct.pack(">I", _zlib.adler32(rows))
    for at in range(0, len(rows), _MOST_STORED):
        block = memoryview(rows)[at : at + _MOST_STORED]
        is_last, size = at + len(block) == len(rows), len(block)
        stored += [struct.pack("<BHH", is_last, size, size ^ 0xFFFF), block]
    size = sum(map(len, stored)) - 4 + len(check)
    # checksums of chunks are not looked at where it is decoded
    head = (data[:start], struct.pack(">I", size))
    return b"".join((*head, *stored, check, bytes(4), data[last + 12 + length :]))


def ends_with_pixels(source: bytes | Path) -> bool:
    """Whether nothing but the end follows the image data of a PNG: no text, and no Exif data."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        names = [name for _, name, _ in _chunks(file)]
    return names[-2:] == [b"IDAT", b"IEND"]


def _image_data(data: bytes) -> list[tuple[int, int]]:
    """Where the chunks of image data begin, which are consecutive, and their lengths."""
    places = list[tuple[int, int]]()
    for at, name, length in _chunks(io.BytesIO(data)):
        if name == b"IDAT":
            places.append((at, length))
        elif places:
            break
    return places


def _chunks(file: BinaryIO) -> Iterator[tuple[int, bytes, int]]:
    """Where each chunk behind the header begins, its name and its length; nothing else is read."""
    at = file.seek(_HEADER_END)
    while len(head := file.read(8)) == 8:
        length, name = struct.unpack(">I4s", head)
        yield at, name, length
        at = file.seek(length + 4, io.SEEK_CUR)
