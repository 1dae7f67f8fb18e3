"""From an RGB image to the numbers that an encoder takes, bit for bit as the library its authors used does it.

torchvision's transforms for Pillow images and transformers' CLIPImageProcessor (the slow one of 4.50) both resize
with Pillow and round the longer side down; they differ in how they round the border of an odd centre crop.
Both are done here with Pillow and numpy, so that no version of either decides a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    import numpy as np

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
# half of an odd border, at the left and top: to the nearest even number, or down
_ROUNDED: dict[str, Callable[[float], int]] = {"torchvision": round, "transformers": math.floor}


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


def clip_pixels(image: Image.Image, size: int, *libraries: str) -> list[np.ndarray]:
    """What CLIP takes of ``image`` (RGB), prepared as by each of ``libraries``: float32, (3, size, size).

    The shorter side becomes ``size``, bicubic; the centre is cropped, and CLIP's normalisation applied.
    """
    longer = int(size * max(image.size) / min(image.size))
    shape = (size, longer) if image.width <= image.height else (longer, size)
    resized = image.resize(shape, Image.Resampling.BICUBIC)
    found = []
    for library in libraries:
        left, top = (_ROUNDED[library]((side - size) / 2) for side in shape)
        found.append(to_floats(resized.crop((left, top, left + size, top + size))))
    return found
