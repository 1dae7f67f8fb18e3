"""Half precision beside float32, and seeds: small pipelines of two families, in batches of several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from perf.harness import Row, at_most
from tests.gpu.architectures import RandomT2I
from tests.gpu.part import Part

_PROMPTS = ("a red cup", "two dogs", "a long wooden table", "rain")
# not qwen-image, whose small decoder enlarges all differences
_FAMILIES = ("flux.1-dev", "sd3.5-medium")
_HALF = {"bfloat16": 0.4, "float16": 0.1}
"""Differences of pixels, as shares of what another seed changes: these networks enlarge what half precision rounds."""
_BATCHES = (2, 4)
_BATCH_APART = 0.05
"""The same in float32: other kernels round otherwise, and TF32 is torch's default of convolutions."""
_CALL = {"num_inference_steps": 4, "width": 32, "height": 32}


def examine(part: Part) -> None:
    """Examine each family; on the CPU one of them, for its time."""
    for name in _FAMILIES[: 1 if part.tiny else None]:
        part.attempt(f"{name}: precision and seeds", _family, part, name)


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
        label = f"{name}: {dtype} beside float32"
        if part.tiny and dtype == "float16":
            part.skip(label, "not on the CPU")
        else:
            _distance(part, label, _apart(plain, _singly(model(dtype), seeds)) / other, limit)
    for size in _BATCHES:
        batched, made = model(batch_size=size), list[Any]()
        for start in range(0, len(seeds), size):
            chunk = slice(start, start + size)
            made += batched.generate_batch(_PROMPTS[chunk], seeds[chunk])
        distance = _apart(plain, [np.asarray(each.image, dtype=float) for each in made]) / other
        _distance(part, f"{name}: batches of {size} beside single images", distance, _BATCH_APART)


def _singly(model: RandomT2I, seeds: list[int]) -> list[Any]:
    images = [model.generate(prompt, seed).image for prompt, seed in zip(_PROMPTS, seeds, strict=True)]
    return [np.asarray(image, dtype=float) for image in images]


def _apart(some: list[Any], others: list[Any]) -> float:
    """The largest mean difference of two images."""
    return float(max(np.abs(one - other).mean() for one, other in zip(some, others, strict=True)))


def _distance(part: Part, label: str, distance: float, limit: float) -> None:
    part.add(Row(f"{label}: share of what another seed changes", distance, at_most(limit)))
