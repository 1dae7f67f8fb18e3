"""Opens, checks, encodes and reduces image files: do they decode, how large are they, are they one colour."""

from __future__ import annotations

import contextlib
import errno
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

from imageevalkit.common.hashes import sha256_file as sha256_file

_zlib: Any
try:
    from isal import isal_zlib as _zlib  # takes 40 % of the time of zlib
except ImportError:  # optional in the environments of models and benchmarks
    _zlib = zlib

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
IMAGE_FORMATS = "PNG, JPEG, WebP, BMP, GIF and TIFF"
"""The formats of these suffixes, as shown to users."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Pillow's names of the formats that files of a cell may have, with any suffix."""
REPLY_FORMATS = FORMATS[:3]
"""The formats that a server may reply with."""
# The format follows the suffix in the dataset's path: an official evaluator would even read a lossy format.
_FORMAT_OF_SUFFIX = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".bmp": "BMP"}
# The keys of Pillow's image info that may hold a rotation.
_MAY_TURN = frozenset({"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"})
# Bytes that Pillow passes to each plugin to recognise its format.
_MAGIC = 16

# Pillow warns above this size, a quarter of a GiB as RGB. No model generates larger images, and a file of a
# few hundred kB can claim to be larger.
MOST_PIXELS = 1024**3 // 4 // 3
_LARGE = 4096**2
THUMBNAIL_SIDE = 192  # longest side in pixels: sharp at 96 px on a high-density screen, about 4 KB as WebP
_LOSSLESS_SIDE = 128  # pixels: copies up to this side are lossless, because viewers enlarge them
_THUMBNAIL_QUALITY = 62
# WebP encoder effort 0-6: 1 takes a third of the time of the default 4 for about 10 % more bytes.
_EFFORT = 1
_ROOM = 1.3  # the least factor left for the last, careful step of a reduction
_LARGE_ONE = threading.RLock()
# a file in place of a folder, a loop of links, a socket
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
# Keep at most 8 blocks of 16 MB. By default Pillow returns the memory of each image to the system, and fresh
# pages then cost a third of the time of decoding.
Image.core.set_blocks_max(8)
# By default Pillow refuses a PNG whose colour profile, or one of whose texts, inflates to more than 1 MiB.
# ComfyUI workflows and printer profiles are longer. Pillow's limit for all texts of an image stays.
PngImagePlugin.MAX_TEXT_CHUNK = 16 << 20

T = TypeVar("T")
R = TypeVar("R")


class CorruptImage(Exception):
    """The bytes are not a complete, valid image."""


class TooLarge(CorruptImage):
    """The image has more pixels, or longer texts, than the limits allow."""


@contextlib.contextmanager
def in_turn(image: Image.Image) -> Iterator[None]:
    """Holds a lock while the pixels of ``image`` are in memory: only one image above 4096² at a time."""
    width, height = image.size
    with _LARGE_ONE if width * height > _LARGE else contextlib.nullcontext():
        yield


def bytes_of_file(path: Path) -> bytes | None:
    """Returns the bytes of the regular file ``path``; None if there is none. Raises OSError."""
    try:
        return path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else None
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise


def opened(source: bytes | Path, formats: Sequence[str] = FORMATS) -> Image.Image:
    """Returns the image in ``source``, of which only the header is read. All code opens images with it.

    Pillow has fifty formats, and runs the program in an EPS file with Ghostscript: so only ``formats`` are
    allowed. Reading the pixels later may raise any of a dozen exception types unless :func:`facts` has
    accepted the image. Raises CorruptImage if it is no image of ``formats`` or has too many pixels
    (TooLarge), OSError if the file ``source`` cannot be read.
    """
    return _opened(io.BytesIO(source) if isinstance(source, bytes) else source, source, formats)


def _opened(file: Any, source: bytes | Path, formats: Sequence[str]) -> ImageFile.ImageFile:
    with _corrupt_unless_system_error():
        try:
            image = Image.open(file, formats=[*formats])
        except UnidentifiedImageError as error:  # Pillow's text holds a memory address
            raise CorruptImage(_what_else(source, formats)) from error
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise TooLarge(f"{width}x{height} pixels are more than the {MOST_PIXELS:,} that are decoded")
        return image


class _ReopenedFile(io.RawIOBase):
    """A file object on ``path`` that opens the file only for each read."""

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
    """Returns :func:`opened` with a file opened only for each read: for datasets of many thousand images."""
    image = _opened(_ReopenedFile(path), path, FORMATS)
    image.filename = str(path)
    return image


def _what_else(source: bytes | Path, formats: Sequence[str]) -> str:
    """Returns what ``source`` is instead of one of ``formats``, according to its first bytes."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        start = file.read(_MAGIC)
    Image.init()
    for name, (_, accepts) in list(Image.OPEN.items()):  # a copy: another thread may change Image.OPEN
        if len(start) == _MAGIC and name not in formats and accepts and accepts(start) is True:
            return f"its format is {name}: only {', '.join(formats)} are opened"
    return "no image of a known format"


@contextlib.contextmanager
def _corrupt_unless_system_error() -> Iterator[None]:
    """Converts the dozen types that Pillow raises to CorruptImage, but no system error (no descriptor)."""
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
    """Returns the decoded image in ``data``. Raises CorruptImage if the data is not complete and valid."""
    image = opened(data, formats)
    with in_turn(image), _corrupt_unless_system_error():
        if image.format == "PNG":
            image.verify()  # load() misses wrong checksums, and cannot follow verify()
            rows = rows_of(data)
            if rows is None:
                raise CorruptImage("the rows of the PNG are truncated or broken")
            # a large image would need too much memory for another copy
            image = opened(data if len(rows) > 3 * _LARGE else with_rows(data, rows), formats)
            del rows
        image.load()
    return image


def reduced(source: bytes | Image.Image, side: int, quality: int, formats: Sequence[str] = FORMATS) -> bytes:
    """Returns a WebP of the whole image, transparency kept, with no side longer than ``side`` pixels.

    ``quality`` is Pillow's scale 1-95; a copy of at most 128 pixels a side is lossless. Raises CorruptImage.
    """
    image = _decode_small(source, side, formats) if isinstance(source, bytes) else source
    return _webp(_small(image, side), quality)


def thumbnail_of(data: bytes, formats: Sequence[str] = FORMATS) -> bytes:
    """Returns the :attr:`EncodedImage.thumbnail` of a file, as viewers show the image. Raises CorruptImage.

    The image is rotated by its Exif data, and 16-bit values are scaled, which Pillow would clip.
    """
    image = _decode_small(data, THUMBNAIL_SIDE, formats)
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value / 257 + 0.5).convert("L")
        image.info.pop("transparency", None)  # also has 16 bits
    small = _small(image, THUMBNAIL_SIDE)
    with contextlib.suppress(Exception):  # Pillow raises a dozen types for damaged Exif data
        small = ImageOps.exif_transpose(small)
    return _webp(small, _THUMBNAIL_QUALITY)


def _looks_other(picture: Image.Image) -> bool:
    """Returns whether :func:`thumbnail_of` the file may differ from a thumbnail of its RGB pixels."""
    return picture.mode.startswith("I") or bool(_MAY_TURN & picture.info.keys())


def _decode_small(data: bytes, side: int, formats: Sequence[str]) -> Image.Image:
    """Decodes completely; a JPEG at the nearest reduced size that its format allows (8 times faster)."""
    image = opened(data, formats)
    if image.format != "JPEG":
        return decode(data, formats)
    with _corrupt_unless_system_error():
        image.draft("RGB", (side, side))  # never smaller than this
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
    image.save(buffer, "WEBP", quality=quality, method=_EFFORT, lossless=max(image.size) <= _LOSSLESS_SIDE)
    return buffer.getvalue()


def is_flat(image: Image.Image) -> bool:
    """Returns whether ``image`` has a single colour, or is fully transparent."""
    # getextrema needs no copy, but for palettes it returns indices, which say nothing about colours
    probe = image.convert("RGBA") if image.mode == "P" else image
    extrema = probe.getextrema()
    pairs = extrema if isinstance(extrema[0], tuple) else (extrema,)
    is_unseen = probe.mode in ("RGBA", "LA") and pairs[-1][1] == 0
    return is_unseen or all(high == low for low, high in pairs)


def is_plain(source: bytes | Path) -> bool:
    """Returns whether all programs see the same RGB pixels in an image file. Reads little but its header.

    Such an image is RGB or grey, opaque, has one frame and no rotation (damaged Exif data counts as none).
    Raises as :func:`opened` does.
    """
    with opened(source) as image:
        if image.mode not in ("RGB", "L") or "transparency" in image.info:
            return False
        # getexif() would decode a PNG without a rotation in its header, to search for one behind the pixels
        upright = image.format == "PNG" and not _MAY_TURN & image.info.keys() and ends_with_pixels(source)
        try:
            return getattr(image, "n_frames", 1) == 1 and (
                upright or image.getexif().get(ExifTags.Base.Orientation, 1) == 1
            )
        except Exception:  # Pillow raises a dozen types for damaged Exif data
            return True


def on_white(image: Image.Image) -> Image.Image:
    """Returns ``image`` as RGB, transparent parts on white."""
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.new("RGBA", rgba.size, "white")
        image.alpha_composite(rgba)
    return image.convert("RGB")


def as_rgb(image: Image.Image) -> Image.Image:
    """Returns ``image`` as RGB without transparency.

    Pillow keeps the transparent colour of an RGB image: PNGs would be saved with it, and transformers 5 would
    replace it by white.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    rgb = image.convert("RGB")
    rgb.info.pop("transparency", None)
    return rgb


def encode(image: Image.Image, path: Path) -> bytes:
    """Returns ``image`` encoded in the format of the suffix of ``path``, with Pillow's defaults.

    Alpha is dropped and not composited, as in the official evaluation kit (``convert("RGB")`` before
    ``save``). Pillow's default JPEG quality (75) is part of score parity. Raises ValueError if the suffix
    names no known format.
    """
    buffer = io.BytesIO()
    as_rgb(image).save(buffer, format_of(path))
    return buffer.getvalue()


class EncodedImage(NamedTuple):
    """A whole image as saved on disk. ``size`` is (width, height); ``flat``: it has a single colour.

    ``thumbnail`` (WebP, empty if impossible) is made from the pixels decoded for the check, without decoding
    again.
    """

    data: bytes
    size: tuple[int, int]
    flat: bool
    thumbnail: bytes


def facts(data: bytes, formats: Sequence[str] = FORMATS) -> EncodedImage:
    """Returns the unchanged image ``data`` with its properties. Raises CorruptImage if it is not whole."""
    with in_turn(opened(data, formats)):
        picture = decode(data, formats)
        made = stored_as(data, picture)
        if made.thumbnail and _looks_other(picture):
            return made._replace(thumbnail=thumbnail_of(data, formats))
        return made


def stored_as(data: bytes, picture: Image.Image) -> EncodedImage:
    """Returns the properties of ``picture``, which is stored as ``data``."""
    try:
        small = _small(picture, THUMBNAIL_SIDE)
    except CorruptImage:  # pixels such as LAB, which Pillow does not convert
        return EncodedImage(data, picture.size, is_flat(picture), b"")
    # only if the small image has a single colour, the large one is checked
    return EncodedImage(
        data, picture.size, is_flat(small) and is_flat(picture), _webp(small, _THUMBNAIL_QUALITY)
    )


def encoded(image: Image.Image | EncodedImage, path: Path) -> EncodedImage:
    """Returns ``image`` as it is stored at ``path``.

    A server's PNG stays unchanged. If a benchmark asks for JPEG, every image is encoded here, even a server's
    JPEG: the quality is part of score parity. Raises CorruptImage, and Pillow's errors for an image that
    cannot be encoded.
    """
    if isinstance(image, EncodedImage):
        header = opened(image.data)
        if header.format == format_of(path) == "PNG" and header.mode == "RGB":
            return image
        with in_turn(header):
            picture = decode(image.data)
            if _looks_other(picture):
                return stored_as(encode(picture, path), picture)  # has no rotation any more
            return image._replace(data=encode(picture, path))
    with in_turn(image):
        return stored_as(encode(image, path), image)


def format_of(path: PurePath) -> str:
    """Returns Pillow's format name for the suffix of ``path``. Raises ValueError if the suffix is unknown."""
    if format := _FORMAT_OF_SUFFIX.get(path.suffix.lower()):
        return format
    raise ValueError(
        f"'{path}': no image is saved with the suffix '{path.suffix}', only with {', '.join(_FORMAT_OF_SUFFIX)}"
    )


def map_threads(function: Callable[[T], R], values: Iterable[T], threads: int, ahead: int = 0) -> Iterator[R]:
    """Yields the results of ``map`` on a thread pool, in order.

    At most ``ahead`` results wait for the caller, because they may be large; 0: twice ``threads``.
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
# Checking a PNG takes a third of the time of decoding it: its rows are inflated, but not reconstructed.
# Decoding takes half as long if it starts from these rows. Damage is possible only in the chunks (each has a
# checksum), the compressed stream, the number of rows, or a row's filter type. Reconstruction itself cannot
# fail (PNG specification, 3rd edition, §7, §9, §10).

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type, §11.2.1
_LAST_FILTER = 4  # §9.2
# For each pass of an interlaced PNG: first column, first row, column step, row step, §8.1.
_PASSES = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_END = b"\0\0\0\0IEND\xaeB`\x82"
_ZLIB_HEADER = b"\x78\x01"  # RFC 1950
_MOST_STORED = 0xFFFF  # bytes in an uncompressed block, RFC 1951 §3.2.4
_HEADER_END = 33  # signature, and IHDR with length, name and checksum


def rows_of(data: bytes) -> bytes | None:
    """Returns the inflated rows of a PNG; None unless the rows and the end are complete and valid.

    This is stricter than Pillow, which accepts missing rows and a truncated last chunk. The header and
    checksums of ``data`` must be valid.
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
        # limited to the size in the header: a few bytes may inflate to gigabytes
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
    """Returns the PNG ``data`` with uncompressed ``rows`` (:func:`rows_of`): decoding inflates nothing."""
    places = _image_data(data)
    (start, _), (last, length) = places[0], places[-1]
    stored: list[Any] = [b"IDAT", _ZLIB_HEADER]
    check = struct.pack(">I", _zlib.adler32(rows))
    for at in range(0, len(rows), _MOST_STORED):
        block = memoryview(rows)[at : at + _MOST_STORED]
        is_last, size = at + len(block) == len(rows), len(block)
        stored += [struct.pack("<BHH", is_last, size, size ^ 0xFFFF), block]
    size = sum(map(len, stored)) - 4 + len(check)
    # the decoder does not check the checksums of chunks
    head = (data[:start], struct.pack(">I", size))
    return b"".join((*head, *stored, check, bytes(4), data[last + 12 + length :]))


def ends_with_pixels(source: bytes | Path) -> bool:
    """Returns whether no chunk (text, Exif) lies between a PNG's image data and its end."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        names = [name for _, name, _ in _chunks(file)]
    return names[-2:] == [b"IDAT", b"IEND"]


def _image_data(data: bytes) -> list[tuple[int, int]]:
    """Returns the positions and lengths of the (consecutive) image data chunks."""
    places = list[tuple[int, int]]()
    for at, name, length in _chunks(io.BytesIO(data)):
        if name == b"IDAT":
            places.append((at, length))
        elif places:
            break
    return places


def _chunks(file: BinaryIO) -> Iterator[tuple[int, bytes, int]]:
    """Yields position, name and length of each chunk after the header. Reads nothing else."""
    at = file.seek(_HEADER_END)
    while len(head := file.read(8)) == 8:
        length, name = struct.unpack(">I4s", head)
        yield at, name, length
        at = file.seek(length + 4, io.SEEK_CUR)
