"""The pictures of an item as files to send."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from imageevalkit.images import as_rgb, is_plain
from imageevalkit.machine import when_one_is_free

# What every image endpoint documents as input; MPO, GIF, TIFF and the like are sent as PNG.
_SENT_AS_THEY_ARE = {
    "PNG": ("png", "image/png"),
    "JPEG": ("jpg", "image/jpeg"),
    "WEBP": ("webp", "image/webp"),
}
# lossless at any level; the default one costs four times the time for a tenth of the bytes
_QUICK = 1


class MaskError(ValueError):
    """What an item gives as its mask cannot be one."""


class Upload(NamedTuple):
    """A file as HTTP clients take it: name, bytes and MIME type."""

    name: str
    data: bytes
    mime_type: str

    def data_url(self) -> str:
        """The file as a ``data:`` URL."""
        return f"data:{self.mime_type};base64,{base64.b64encode(self.data).decode()}"


class Inputs(NamedTuple):
    """What an item shows the model. Of ``mask``, a PNG, the fully transparent area is to be edited."""

    prompt: str
    images: tuple[Upload, ...] = ()
    mask: Upload | None = None


def inputs_of(prompt: str, pictures: Sequence[Image.Image]) -> Inputs:
    """Encode ``pictures``; one whose ``info["role"]`` is "mask" is the mask. Takes CPU time. Raises MaskError.

    A picture of an untouched PNG, JPEG or WebP file is sent as the bytes of that file, unless servers could
    see in it another picture than the RGB pixels that local models are shown (alpha, rotation, frames);
    anything else becomes an RGB PNG, alpha dropped as for local models.
    """
    masks = [picture for picture in pictures if picture.info.get("role") == "mask"]
    images = [picture for picture in pictures if picture.info.get("role") != "mask"]
    if len(masks) > 1:
        raise MaskError(f"the item has {len(masks)} masks: endpoints take one")
    uploads = tuple(_image(n, image) for n, image in enumerate(images))
    return Inputs(prompt, uploads, _mask(masks[0], images) if masks else None)


def _image(n: int, image: Image.Image) -> Upload:
    suffix, mime_type = _SENT_AS_THEY_ARE.get(image.format or "", ("", ""))
    data = _file_bytes(image) if mime_type else None
    if data is None or not is_plain(data):
        return Upload(f"image_{n}.png", _png(image, "RGB"), "image/png")
    return Upload(f"image_{n}.{suffix}", data, mime_type)


def _mask(mask: Image.Image, images: Sequence[Image.Image]) -> Upload:
    if not mask.has_transparency_data:
        raise MaskError("the mask has no transparency, which says what is to be edited")
    if images and mask.size != images[0].size:
        sizes = " and ".join(f"{width}x{height}" for width, height in (mask.size, images[0].size))
        raise MaskError(f"the mask and the image differ in size: {sizes}")
    data = _file_bytes(mask) if mask.format == "PNG" else None
    return Upload("mask.png", data or _png(mask, "RGBA"), "image/png")


def _file_bytes(image: Image.Image) -> bytes | None:
    """The bytes of the file behind ``image``, or None where its pixels may have been changed since."""
    # Pillow tells by `tile` for PNG and JPEG only: a WebP has none before it is loaded either
    loaded = getattr(image, "_im", image) is not None
    file = getattr(image, "filename", "")
    if loaded or not file:
        return None
    try:
        return when_one_is_free(Path(file).read_bytes)
    except OSError:
        return None  # it has gone, but Pillow may hold it open


def _png(image: Image.Image, mode: str) -> bytes:
    buffer = io.BytesIO()
    (as_rgb(image) if mode == "RGB" else image.convert(mode)).save(buffer, "PNG", compress_level=_QUICK)
    return buffer.getvalue()
