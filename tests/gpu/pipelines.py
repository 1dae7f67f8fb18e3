"""Pipelines of diffusers: the toolkit's generate job against a bare loop, batches, and what their options cost."""

from __future__ import annotations

import time
from typing import Any

import torch

from perf.harness import at_least
from tests.gpu.architectures import ARCHITECTURES, RandomT2I
from tests.gpu.kit import Kit
from tests.gpu.part import GIB, Part, measured, synchronize

_OF_BARE_LOOP = at_least(0.97)
_STEPS = 4
_SIDE = {False: 1024, True: 32}
# of the bare loop and of the toolkit; those after the first are timed
_IMAGES = {"flux.1-dev": 13, "sd3.5-medium": 25, "qwen-image": 9}
_TINY_IMAGES = 6
# of each option one model shows what it does; attention backends are not for Stable Diffusion 3
_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "flux.1-dev": {
        "attention=native": {"attention": "native"},
        "attention=_native_cudnn": {"attention": "_native_cudnn"},
        # last: it may take the rest of the time
        "compile=true": {"compile": True},
    },
    "sd3.5-medium": {
        "batch_size=4": {"batch_size": 4},
        "batch_size=8": {"batch_size": 8},
        "offload=model": {"offload": "model"},
        "vae_tiling=true": {"vae_tiling": True},
    },
}
_TINY_OPTIONS = ("attention=native", "batch_size=4")
_LONGEST_OPTION = 45.0  # seconds: compilation


def examine(part: Part) -> None:
    """Examine the architecture that the part is named after."""
    weights = _size(part)
    if not part.tiny:
        total = torch.cuda.get_device_properties(0).total_memory
        # activations and CUDA's own take a few GiB beside the weights
        if weights > 0.92 * total:
            part.skip(part.name, f"its {weights / GIB:.0f} GiB do not fit into {total / GIB:.0f} GiB")
            return
    part.attempt(f"{part.name}: eval.sh / a bare loop", _against_bare_loop, part, weights)
    if part.name not in _OPTIONS:
        return
    plain = _rate(part)
    for name, options in _OPTIONS[part.name].items():
        label = f"{part.name}, {name}: images per second of those without"
        if part.tiny and name not in _TINY_OPTIONS:
            part.skip(label, "not on the CPU")
        elif part.left < _LONGEST_OPTION:
            part.skip(label, "no time left")
        else:
            part.attempt(label, _option, part, label, plain, options)


def _settings(part: Part) -> dict[str, Any]:
    side = _SIDE[part.tiny]
    return {"num_inference_steps": _STEPS, "width": side, "height": side}


def _size(part: Part) -> int:
    """Bytes of the weights."""
    architecture = ARCHITECTURES[part.name]
    with torch.device("meta"):
        parts = architecture.parts(sizes={} if part.tiny else architecture.sizes).values()
    modules = [each for each in parts if isinstance(each, torch.nn.Module)]
    each = torch.finfo(getattr(torch, part.dtype)).bits // 8
    return each * sum(parameter.numel() for module in modules for parameter in module.parameters())


def _against_bare_loop(part: Part, weights: int) -> None:
    kit = Kit(part, part.folder, _TINY_IMAGES if part.tiny else _IMAGES[part.name])
    kit.add("random-t2i", "tests.gpu.architectures", "RandomT2I", gpus=0 if part.tiny else 1)
    settings = {"architecture": part.name, "tiny": part.tiny, "dtype": part.dtype, **_settings(part)}
    words = ",".join(f"{name}={str(value).lower()}" for name, value in settings.items())
    # first: a run waits while this process has memory of the GPU
    kit.generate("random-t2i", words)
    ours = kit.rate("random-t2i", 1)
    plain, note, memory = _bare_loop(part, kit.prompts)
    label = f"{part.name}, {weights / GIB:.1f} GiB, {_STEPS} steps: eval.sh / a bare loop"
    part.speed(label, ours, plain, _OF_BARE_LOOP, GiB=memory, note=note)


def _bare_loop(part: Part, prompts: list[str]) -> tuple[float, str, str]:
    """Images per second of a loop as diffusers' documentation shows it, a remark on its start, its memory in GiB."""
    started = time.monotonic()
    pipeline = ARCHITECTURES[part.name].build(part.device, getattr(torch, part.dtype), part.tiny)
    synchronize()
    times = [time.monotonic()]
    with measured() as found:
        for n, prompt in enumerate(prompts):
            generator = torch.Generator("cpu").manual_seed(n)
            image = pipeline(prompt, generator=generator, **_settings(part)).images[0]
            image.save(part.folder / f"{n:04d}.png")
            times.append(time.monotonic())
    note = f"built in {times[0] - started:.1f} s, first image {times[1] - times[0]:.1f} s"
    return (len(prompts) - 1) / (times[-1] - times[1]), note, found.memory


def _rate(part: Part, **options: Any) -> tuple[float, str, str]:
    """Images per second of the toolkit's class in this process, after a first call; the same as :func:`_bare_loop`."""
    model = RandomT2I(
        "", architecture=part.name, tiny=part.tiny, dtype=part.dtype, **_settings(part), **options
    )
    batch = model.batch_size
    # offload takes seconds for each
    calls = 2 if part.tiny or options.get("offload") else max(2, 8 // batch)
    with measured() as first:
        _make(model, 0)
    with measured() as found:
        for n in range(calls):
            _make(model, n)
    return calls * batch / found.seconds, f"first call {first.seconds:.1f} s", found.memory


def _make(model: RandomT2I, seed: int) -> None:
    if model.batch_size == 1:
        model.generate("a red cup on a table", seed=seed)
    else:
        model.generate_batch(["a red cup on a table"] * model.batch_size, list(range(model.batch_size)))


def _option(part: Part, label: str, plain: tuple[float, str, str], options: dict[str, Any]) -> None:
    rate, note, memory = _rate(part, **options)
    part.speed(label, rate, plain[0], GiB=memory, note=f"{note}; without {plain[2] or '?'} GiB")
