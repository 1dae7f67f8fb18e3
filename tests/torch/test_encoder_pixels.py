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
    *((size, 224) for size in range(224, 233)),
    *((224, size) for size in range(225, 233)),
    *((37, 41), (333, 100), (100, 335), (1024, 769), (640, 643), (1, 5), (225, 225), (512, 512)),
]


def noise(size: tuple[int, int]) -> Image.Image:
    return Image.frombytes("RGB", size, random.Random(repr(size)).randbytes(3 * size[0] * size[1]))


def same(ours: Any, theirs: Any) -> bool:
    import numpy as np

    theirs = np.asarray(theirs)
    return ours.dtype == theirs.dtype == np.float32 and ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("size", _SIZES, ids=str)
@pytest.mark.parametrize("side", [224, 336])
def test_like_the_processor_of_transformers(size: tuple[int, int], side: int) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    image = noise(size)
    theirs = processor(images=image, return_tensors="np").pixel_values[0]
    (ours,) = clip_pixels(image, side, "transformers")
    assert ours.shape == (3, side, side)
    assert same(ours, theirs)


def test_its_defaults_are_those_of_clip() -> None:
    """The official SE encoder takes a processor without any setting."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil()
    assert (tuple(processor.image_mean), tuple(processor.image_std)) == (CLIP_MEAN, CLIP_STD)
    (ours,) = clip_pixels(noise((300, 411)), 224, "transformers")
    assert same(ours, processor(images=noise((300, 411)), return_tensors="np").pixel_values[0])


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


def test_the_libraries_crop_an_odd_border_differently() -> None:
    """225: half a pixel is rounded to none by both; 227: one and a half to two, or down to one."""
    image = Image.new("RGB", (227, 224))
    image.putpixel((1, 0), (255, 0, 0))
    transformers, torchvision = clip_pixels(image, 224, "transformers", "torchvision")
    assert transformers[0, 0, 0] > 0 > torchvision[0, 0, 0]
