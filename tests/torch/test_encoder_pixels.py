"""Encoders preprocess an image bit for bit as the libraries of their authors do."""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest
from PIL import Image

from eval_models.encoders.encoder import (
    CLIP_MEAN,
    CLIP_STD,
    clip_pixels,
)

# borders of every remainder by four, both ways round, smaller and larger than the encoder's side
_SIZES = [
    *((size, 224) for size in range(224, 228)),
    *((224, size) for size in range(225, 228)),
    *((333, 100), (640, 643), (1, 5)),
]


def noise(size: tuple[int, int]) -> Image.Image:
    return Image.frombytes("RGB", size, random.Random(repr(size)).randbytes(3 * size[0] * size[1]))


def same(ours: Any, theirs: Any) -> bool:
    import numpy as np

    theirs = np.asarray(theirs)
    return ours.dtype == theirs.dtype == np.float32 and ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("size", _SIZES, ids=str)
def test_like_the_processor_of_transformers(size: tuple[int, int]) -> None:
    """The official SE encoder takes a processor without any setting."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    theirs = CLIPImageProcessorPil()(images=noise(size), return_tensors="np").pixel_values[0]
    assert same(clip_pixels(noise(size), 224, "transformers")[0], theirs)


def torchvision_pixels(image: Image.Image, side: int) -> Any:
    """Resize, CenterCrop, ToTensor and Normalize by torchvision's documented rules, in torch."""
    import numpy as np
    import torch

    width, height = image.size
    if width <= height:
        resized = image.resize((side, int(side * height / width)), Image.Resampling.BICUBIC)
    else:
        resized = image.resize((int(side * width / height), side), Image.Resampling.BICUBIC)
    top, left = (round((n - side) / 2.0) for n in (resized.height, resized.width))
    tensor = torch.from_numpy(np.array(resized)[top : top + side, left : left + side]).permute(2, 0, 1)
    tensor = tensor.contiguous().to(torch.float32).div(255)
    mean, std = (torch.tensor(n).view(3, 1, 1) for n in (CLIP_MEAN, CLIP_STD))
    return tensor.sub_(mean).div_(std).numpy()


@pytest.mark.parametrize("size", _SIZES, ids=str)
def test_like_the_transforms_of_torchvision(size: tuple[int, int]) -> None:
    image = noise(size)
    (ours,) = clip_pixels(image, 224, "torchvision")
    assert same(ours, torchvision_pixels(image, 224))
    try:
        transforms: Any = importlib.import_module("torchvision.transforms")
    except Exception:  # it refuses a torch that it was not built for in its own ways
        return
    composed = transforms.Compose(
        [
            transforms.Resize(224, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(CLIP_MEAN, CLIP_STD),
        ]
    )
    assert same(ours, composed(image).numpy())
