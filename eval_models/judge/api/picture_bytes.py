"""The bytes of a picture as a protocol wants it sent."""

from __future__ import annotations

from typing import NamedTuple

from PIL import Image

from eval_models.judge.pixels import encoded, rgb
from imageevalkit.evaluation.question import Picture
from imageevalkit.images import CorruptImage, in_turn, opened


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
        with _opened(data) as header, in_turn(header):
            sent = encoded(rgb(picture, data), picture.encoding)
        return SentPicture(sent, picture.media_type or _type_of(picture.encoding.format))
    return SentPicture(data, picture.media_type or _type_of(_opened(data).format or ""))


def _opened(data: bytes) -> Image.Image:
    try:
        return opened(data)
    except CorruptImage:
        raise
    except Exception as error:  # Pillow raises a dozen types
        raise CorruptImage(f"no image of a known format: {type(error).__name__}") from error


def _type_of(format: str) -> str:
    return Image.MIME.get(format, f"image/{format.lower()}")
