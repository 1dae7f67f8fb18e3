"""The pixels that a local model sees of a picture."""

from __future__ import annotations

from PIL import Image

from eval_models.judge.pixels import encoded, fitted, rgb
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


def judge_picture(picture: Picture) -> Image.Image:
    """What the protocol's program gives to the processor of a judge: :func:`open_picture`, resized where it does that.

    Raises:
        ValueError: its sides differ too much for that; and what :func:`open_picture` raises.
    """
    image = open_picture(picture)
    multiple = picture.pixels.multiple if picture.pixels else None
    return fitted(image, multiple) if multiple else image
