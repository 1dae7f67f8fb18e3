"""The bytes of a picture as a protocol wants it sent."""

from __future__ import annotations

from typing import NamedTuple

from PIL import Image

from eval_models.judge.pixels import encoded, rgb
from imageevalkit.evaluation.question import Encoding, Picture
from imageevalkit.images import in_turn, opened
from imageevalkit.open_files import when_one_is_free


class SentPicture(NamedTuple):
    """``media_type`` is what the bytes are declared to be."""

    data: bytes
    media_type: str


def sent_picture(picture: Picture) -> SentPicture:
    """The file's own bytes, or its picture encoded anew; takes CPU time.

    A server decodes by rules of its own: where it could see other pixels than the protocol means, it gets those as PNG.

    Raises:
        OSError: the file cannot be read.
        CorruptImage: it has to be understood, and is no image.
    """
    data = when_one_is_free(picture.path.read_bytes)
    encoding = picture.encoding
    if encoding is None and picture.pixels and not picture.plain:
        encoding = Encoding("PNG")
    with opened(data) as header:
        if encoding is None:
            return SentPicture(data, picture.media_type or _type_of(header.format or ""))
        with in_turn(header):
            sent = encoded(rgb(picture, data), encoding)
        return SentPicture(sent, picture.media_type or _type_of(encoding.format))


def _type_of(format: str) -> str:
    return Image.MIME.get(format, f"image/{format.lower()}")
