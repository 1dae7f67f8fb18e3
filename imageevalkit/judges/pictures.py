"""From a picture's file to the pixels a protocol means, and to the bytes it wants sent."""

from __future__ import annotations

import io
import math

from PIL import Image, ImageOps

from imageevalkit.benchmark.question import TRANSFORMERS, Encoding, Picture
from imageevalkit.images import CorruptImage, decode, in_turn, opened
from imageevalkit.machine import when_one_is_free

# qwen-vl-utils 0.0.14: an image has 4 to 16384 visual tokens, and no side is longer than 200 times the other.
_LEAST, _MOST, _LONGEST = 4, 16384, 200


def rgb(picture: Picture, data: bytes) -> Image.Image:
    """The pixels that the picture's rule makes of ``data``, as RGB with nothing else to it.

    Neither a colour that meant transparency nor a rotation is left in its ``info``: transformers would act on it again.

    Raises:
        CorruptImage: it is no whole image, or nobody can tell its pixels.
    """
    rule = picture.pixels or TRANSFORMERS
    image = decode(data)
    try:
        if rule.turned:
            image = ImageOps.exif_transpose(image)
        if image.mode in rule.on_white:
            paper = Image.new("RGB", image.size, "white")
            paper.paste(image, mask=image.getchannel("A"))
            return paper
        image = image.convert("RGB")
    except Exception as error:  # damaged Exif data, a mode that has no RGB
        raise CorruptImage(f"{type(error).__name__}: {error}") from error
    image.info.clear()
    return image


def fitted_size(size: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Width and height of an image of ``size`` when both are multiples of ``multiple`` pixels.

    The nearest ones; where the area would be more than 16384 (less than 4) squares of ``multiple``, both sides are
    scaled alike to that area and rounded down (up). Half a multiple goes to the even one, as Python rounds.

    Raises:
        ValueError: one side is more than 200 times the other.
    """
    if max(size) > _LONGEST * min(size):
        raise ValueError(f"one side of {size[0]}×{size[1]} px is more than {_LONGEST} times the other")
    width, height = (max(1, round(side / multiple)) * multiple for side in size)
    area, least, most = size[0] * size[1], _LEAST * multiple**2, _MOST * multiple**2
    if width * height > most:
        shrink = math.sqrt(area / most)
        width, height = (math.floor(side / shrink / multiple) * multiple for side in size)
    elif width * height < least:
        grow = math.sqrt(least / area)
        width, height = (math.ceil(side * grow / multiple) * multiple for side in size)
    return width, height


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


def open_picture(picture: Picture) -> Image.Image:
    """The picture as RGB, with the losses of its ``encoding`` if it has one.

    Raises:
        CorruptImage: the file is no whole image.
        OSError: it cannot be read.
    """
    image = rgb(picture, picture.read())
    if picture.encoding is None:
        return image
    return decode(encoded(image, picture.encoding)).convert("RGB")


def judge_picture(picture: Picture) -> Image.Image:
    """What the protocol's program gives to the processor of a judge: :func:`open_picture`, resized where it does that.

    Raises ValueError: its sides differ too much for that; and what :func:`open_picture` raises.
    """
    image = open_picture(picture)
    multiple = picture.pixels.multiple if picture.pixels else None
    if not multiple:
        return image
    # as qwen-vl-utils does it
    return image.resize(fitted_size(image.size, multiple), Image.Resampling.BICUBIC)


def sent_picture(picture: Picture) -> tuple[bytes, str]:
    """The file's own bytes, or its picture encoded anew, and what they are declared to be; takes CPU time.

    A server decodes by rules of its own: where it could see other pixels than the protocol means, it gets those as PNG.

    Raises:
        OSError: the file cannot be read.
        CorruptImage: it has to be understood, and is no image.
    """
    data = when_one_is_free(picture.read)
    encoding = picture.encoding
    if encoding is None and picture.pixels and not picture.plain:
        encoding = Encoding("PNG")
    with opened(data) as header:
        if encoding is not None:
            with in_turn(header):
                data = encoded(rgb(picture, data), encoding)
        format = encoding.format if encoding else header.format or ""
        return data, picture.media_type or Image.MIME.get(format, f"image/{format.lower()}")
