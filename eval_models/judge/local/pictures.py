"""The pixels that a local model sees of a picture."""

from __future__ import annotations

from PIL import Image

from eval_models.judge.pixels import encoded, rgb
from imageevalkit.evaluation.question import Picture
from imageevalkit.images import decode


def open_picture(picture: Picture) -> Image.Image:
    """The picture as RGB, with the losses of its ``encoding`` if it has one.

    Raises:
        CorruptImage: the file is no whole image.
        OSError: it cannot be read.
    """
    image = rgb(picture, picture.path.read_bytes())
    if picture.encoding is None:
        return image
    return decode(encoded(image, picture.encoding)).convert("RGB")
