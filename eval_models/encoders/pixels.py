"""From an RGB image to the numbers that an encoder takes, bit for bit as the library its authors used does it.

torchvision's transforms for Pillow images and transformers' CLIPImageProcessor (the slow one of 4.50) both resize
with Pillow and round the longer side down; they differ in how they round the border of an odd centre crop.
Both are done here with Pillow and numpy, so that no version of either decides a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from PIL import Image

if TYPE_CHECKING:
    import numpy as np

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

Library = Literal["torchvision", "transformers"]


def resize_shortest(image: Image.Image, size: int) -> Image.Image:
    """``image`` with a shorter side of ``size`` pixels and its aspect ratio, bicubic.

    torchvision's ``Resize(size)`` and transformers' ``{"shortest_edge": size}``: the longer side is rounded down.
    """
    longer = int(size * max(image.size) / min(image.size))
    width, height = (size, longer) if image.width <= image.height else (longer, size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def crop_centre(image: Image.Image, size: int, library: Library) -> Image.Image:
    """The ``size`` × ``size`` pixels in the middle of ``image``, which is at least as large.

    Of an odd border torchvision gives the left and top half to the nearest even number, transformers rounds down.
    """

    def border(side: int) -> int:
        return round((side - size) / 2) if library == "torchvision" else (side - size) // 2

    left, top = border(image.width), border(image.height)
    return image.crop((left, top, left + size, top + size))


def to_floats(
    image: Image.Image, mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD
) -> np.ndarray:
    """``image`` (RGB) as float32, (3, height, width): scaled to 0-1, less ``mean``, divided by ``std``.

    The quotient of float32 numbers is the same as transformers' product in float64 that is rounded to float32.
    """
    import numpy as np

    values = np.asarray(image, dtype=np.float32) / np.float32(255)
    values = (values - np.array(mean, dtype=np.float32)) / np.array(std, dtype=np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def clip_pixels(image: Image.Image, size: int, library: Library) -> np.ndarray:
    """What CLIP takes of ``image`` (RGB): shortest side to ``size``, centre crop, CLIP's normalisation.

    float32, (3, size, size). ``library`` is the one that the encoder's authors prepared its images with.
    """
    return to_floats(crop_centre(resize_shortest(image, size), size, library))
