"""From a file's bytes to the pixels a protocol means, and to the bytes it wants sent."""

from __future__ import annotations

import io

from PIL import Image, ImageOps

from imageevalkit.evaluation.question import Encoding, Picture
from imageevalkit.images import decode, on_white


def rgb(picture: Picture, data: bytes) -> Image.Image:
    """The image in ``data`` as RGB, turned as its EXIF data say, its transparency treated as ``picture`` says.

    Raises:
        CorruptImage: it is no whole image.
    """
    image = ImageOps.exif_transpose(decode(data))
    return on_white(image) if picture.on_white else image.convert("RGB")


def encoded(image: Image.Image, encoding: Encoding) -> bytes:
    """The bytes of ``image`` in ``encoding``, shrunk with Lanczos where it is larger."""
    if encoding.longest_side is not None and max(image.size) > encoding.longest_side:
        scale = encoding.longest_side / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    options = {} if encoding.quality is None else {"quality": encoding.quality}
    image.save(buffer, encoding.format, **options)
    return buffer.getvalue()
