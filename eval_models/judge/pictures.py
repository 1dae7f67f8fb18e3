"""The pixels that a local model sees of a picture."""

from __future__ import annotations

import io

from PIL import Image, ImageOps

from imageevalkit.evaluation.question import Encoding, Picture
from imageevalkit.images import decode, on_white


def open_picture(picture: Picture) -> Image.Image:
    """The picture as RGB, turned as its EXIF data say, transparency on white, after its ``encoding`` if it has one.

    Raises:
        CorruptImage: the file is no whole image.
        OSError: it cannot be read.
    """
    image = on_white(ImageOps.exif_transpose(decode(picture.path.read_bytes())))
    return image if picture.encoding is None else _through(image, picture.encoding)


def _through(image: Image.Image, encoding: Encoding) -> Image.Image:
    """``image`` with the losses of ``encoding``."""
    if encoding.longest_side is not None:
        image = image.copy()
        image.thumbnail((encoding.longest_side,) * 2, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    options = {} if encoding.quality is None else {"quality": encoding.quality}
    image.save(buffer, encoding.format, **options)
    return Image.open(buffer).convert("RGB")
