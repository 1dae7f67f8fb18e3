"""Half precision against float32, and seeds: small pipelines of three families, in batches of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from perf.harness import Row, at_most
from tests.gpu.architectures import ARCHITECTURES, RandomT2I
from tests.gpu.part import Part

_PROMPTS = ("a red cup", "two dogs", "a long wooden table", "rain")
_HALF = {"bfloat16": 0.1, "float16": 0.05}
"""Differences of pixels, as shares of what another seed changes."""
_BATCHES = (2, 4)
_BATCH_APART = 0.05
"""The same in float32: other kernels round otherwise, and TF32 is torch's default of convolutions."""
_CALL = {"num_inference_steps": 2, "width": 32, "height": 32}


def examine(part: Part) -> None:
    """Examine each family."""
    with patch.object(torch, "randn", _same_in_all_precisions(torch.randn)):
        for name in ARCHITECTURES:
            part.attempt(f"{name}: precision and seeds", _family, part, name)


def _same_in_all_precisions(randn: Callable[..., Any]) -> Callable[..., Any]:
    """Noise that is drawn in float32: older releases of torch draw other numbers in bfloat16."""

    def draw(*shape: Any, dtype: Any = None, **options: Any) -> Any:
        return randn(*shape, dtype=torch.float32, **options).to(dtype or torch.float32)

    return draw


def _family(part: Part, name: str) -> None:
    def model(dtype: str = "float32", batch_size: int = 1) -> RandomT2I:
        options = {"device": part.device, "dtype": dtype, "batch_size": batch_size}
        return RandomT2I("", architecture=name, tiny=True, **options, **_CALL)

    seeds = list(range(len(_PROMPTS)))
    alone = model()
    plain = _singly(alone, seeds)
    problems = [] if _apart(plain, _singly(alone, seeds)) == 0 else ["the same seeds make other pixels"]
    other = _apart(plain, _singly(alone, [seed + 100 for seed in seeds]))
    if other < 10:
        problems.append(f"other seeds make almost the same pixels: they differ by {other:.2g}")
    part.check(f"{name}: the same seed twice, another seed", problems, f"another differs by {other:.3g}")
    for dtype, limit in _HALF.items():
        distance = _apart(plain, _singly(model(dtype), seeds)) / other
        _distance(part, f"{name}: {dtype} against float32", distance, limit)
    for size in _BATCHES:
        batched, made = model(batch_size=size), list[Any]()
        for start in range(0, len(seeds), size):
            chunk = slice(start, start + size)
            made += batched.generate_batch(_PROMPTS[chunk], seeds[chunk])
        distance = _apart(plain, [np.asarray(each.image, dtype=float) for each in made]) / other
        _distance(part, f"{name}: batches of {size} against single images", distance, _BATCH_APART)


def _singly(model: RandomT2I, seeds: list[int]) -> list[Any]:
    images = [model.generate(prompt, seed).image for prompt, seed in zip(_PROMPTS, seeds, strict=False)]
    return [np.asarray(image, dtype=float) for image in images]


def _apart(some: list[Any], others: list[Any]) -> float:
    """The largest mean difference of two images."""
    return float(max(np.abs(one - other).mean() for one, other in zip(some, others, strict=True)))


def _distance(part: Part, label: str, distance: float, limit: float) -> None:
    part.add(Row(f"{label}: share of what another seed changes", distance, at_most(limit)))
