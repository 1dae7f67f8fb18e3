"""The bytes of a picture as a protocol wants it sent."""

from __future__ import annotations

import io
from typing import NamedTuple

from PIL import Image

from imageevalkit.evaluation.question import Encoding, Picture
from imageevalkit.images import CorruptImage, decode, opened


class SentPicture(NamedTuple):
    """``media_type`` is what the bytes are declared to be."""

    data: bytes
    media_type: str


def sent_picture(picture: Picture) -> SentPicture:
    """The file's own bytes, or its picture encoded anew; takes CPU time.

    Raises:
        OSError: the file cannot be read.
        CorruptImage: it has to be understood, and is no image.
    """
    data = picture.path.read_bytes()
    if picture.encoding:
        return SentPicture(
            _encoded(data, picture.encoding), picture.media_type or _type_of(picture.encoding.format)
        )
    return SentPicture(data, picture.media_type or _type_of(_format_of(data)))


def _format_of(data: bytes) -> str:
    try:
        with opened(data) as image:
            return image.format or ""
    except Exception as error:  # Pillow raises a dozen types
        raise CorruptImage(f"no image of a known format: {type(error).__name__}") from error


def _type_of(format: str) -> str:
    return Image.MIME.get(format, f"image/{format.lower()}")


def _encoded(data: bytes, encoding: Encoding) -> bytes:
    # alpha is dropped, as it is where images are stored
    image = decode(data).convert("RGB")
    if encoding.longest_side:
        scale = encoding.longest_side / max(image.size)
        if scale < 1:
            width, height = (max(1, round(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, encoding.format, **({} if encoding.quality is None else {"quality": encoding.quality}))
    return buffer.getvalue()
