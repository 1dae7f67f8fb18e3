"""Pipelines of diffusers: the toolkit's generate job against a bare loop, batches, and the cost of options."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch

from perf.harness import Bar, at_least
from tests.gpu.architectures import ARCHITECTURES, RandomT2I
from tests.gpu.kit import Kit
from tests.gpu.part import GIB, Part, free_memory, held, measured, synchronize

_OF_BARE_LOOP = at_least(0.97)
_STEPS = 4
_SIDE = {False: 1024, True: 32}
# images of the bare loop and of the toolkit; the first is not timed
_IMAGES = {"flux.1-dev": 9, "sd3.5-medium": 13, "qwen-image": 7}
_TINY_IMAGES = 6
_CALLS = 4


class _Option(NamedTuple):
    """``settings`` of the model, and the ``seconds`` with which the option is started."""

    settings: dict[str, Any]
    seconds: float = 12.0


# Each option is measured with one model. All options of a model use one pipeline: an option that cannot be undone comes
# last.
_OPTIONS: dict[str, dict[str, _Option]] = {
    "flux.1-dev": {
        "attention=_native_cudnn": _Option({"attention": "_native_cudnn"}),
        "compile=true": _Option({"compile": True}, 30),
    },
    "sd3.5-medium": {
        "batch_size=4": _Option({"batch_size": 4}),
        "batch_size=8": _Option({"batch_size": 8}),
        "offload=model": _Option({"offload": "model"}, 20),
    },
}
_TINY_OPTIONS = ("batch_size=4",)


def examine(part: Part) -> None:
    """Examine the architecture that the part is named after."""
    weights = _size(part)
    if not part.tiny:
        total = torch.cuda.get_device_properties(0).total_memory
        # activations and CUDA's own take a few GiB beside the weights
        if weights > 0.92 * total:
            part.skip(part.name, f"its {weights / GIB:.0f} GiB do not fit into {total / GIB:.0f} GiB")
            return
    model = _Model(part, weights)
    part.attempt(f"{part.name}: eval.sh / a bare loop", model.against_bare_loop)
    if part.name not in _OPTIONS:
        return
    words = "images per second of those without"
    part.attempt(f"{part.name}: {words} options", model.without_options)
    for name, option in _OPTIONS[part.name].items():
        label = f"{part.name}, {name}: {words}"
        if part.tiny and name not in _TINY_OPTIONS:
            part.skip(label, "not on the CPU")
        elif model.plain is None:
            part.skip(label, "no speed without options")
        else:
            part.attempt(label, model.with_option, label, option.settings, seconds=option.seconds)


def _settings(part: Part) -> dict[str, Any]:
    side = _SIDE[part.tiny]
    return {"num_inference_steps": _STEPS, "width": side, "height": side}


def _size(part: Part) -> int:
    """Returns the bytes of the weights."""
    architecture = ARCHITECTURES[part.name]
    with torch.device("meta"):
        parts = architecture.parts(sizes={} if part.tiny else architecture.sizes).values()
    modules = [each for each in parts if isinstance(each, torch.nn.Module)]
    each = torch.finfo(getattr(torch, part.dtype)).bits // 8
    return each * sum(parameter.numel() for module in modules for parameter in module.parameters())


class _Rate(NamedTuple):
    """Images per second; a remark on the first call; the peak of GPU memory in GiB."""

    rate: float
    note: str
    memory: str


class _Model:
    """The architecture that ``part`` is named after, with ``weights`` bytes."""

    plain: _Rate | None = None
    """The speed of the toolkit's class without options."""

    def __init__(self, part: Part, weights: int) -> None:
        self._part, self._weights = part, weights

    @cached_property
    def _pipeline(self) -> Any:
        """The pipeline of this process: the bare loop and all options share it, since to build it takes seconds."""
        part = self._part
        return ARCHITECTURES[part.name].build(part.device, getattr(torch, part.dtype), part.tiny)

    def against_bare_loop(self) -> None:
        """Add the speed of a run, against a loop as diffusers' documentation shows it."""
        part = self._part
        kit = Kit(part, part.folder, _TINY_IMAGES if part.tiny else _IMAGES[part.name])
        kit.add("random-t2i", "tests.gpu.architectures", "RandomT2I", gpus=0 if part.tiny else 1)
        settings = {"architecture": part.name, "tiny": part.tiny, "dtype": part.dtype, **_settings(part)}
        words = ",".join(f"{name}={str(value).lower()}" for name, value in settings.items())
        # first: a run waits while this process has memory of the GPU
        kit.generate("random-t2i", words)
        ours = kit.rate("random-t2i", 1)
        started = time.monotonic()
        pipeline = self._pipeline
        synchronize()
        times, saving = [time.monotonic()], list[float]()
        with measured(held()) as found:
            for n, prompt in enumerate(kit.prompts):
                generator = torch.Generator("cpu").manual_seed(n)
                image = pipeline(prompt, generator=generator, **_settings(part)).images[0]
                saved = time.monotonic()
                image.save(part.folder / f"{n:04d}.png")
                times.append(time.monotonic())
                saving.append(times[-1] - saved)
        count, seconds = len(kit.prompts) - 1, times[-1] - times[1]
        note = f"built in {times[0] - started:.1f} s, first image {times[1] - times[0]:.1f} s"
        label = f"{part.name}, {self._weights / GIB:.1f} GiB, {_STEPS} steps: eval.sh / a bare loop"
        bare = count / seconds
        self._add(
            label, ours, bare, found.memory, f"{note}, saving {sum(saving[1:]) / count:.2f} s", _OF_BARE_LOOP
        )
        without = count / (seconds - sum(saving[1:]))
        self._add("  the same / a bare loop that saves nothing", ours, without, "", "")

    def _add(
        self, label: str, ours: float, plain: float, memory: str, note: str, bar: Bar | None = None
    ) -> None:
        self._part.speed(label, ours, plain, bar, GiB=memory, note=note)

    def without_options(self) -> None:
        """Measure the toolkit's class without options."""
        self.plain = self._rate()

    def with_option(self, label: str, settings: dict[str, Any]) -> None:
        """Add the speed with ``settings``, against the speed without options."""
        assert self.plain
        with _same_attention(self._pipeline):
            rate, note, memory = self._rate(**settings)
        note = f"{note}; without {self.plain.memory or '?'} GiB"
        self._add(label, rate, self.plain.rate, memory, note)

    def _rate(self, **options: Any) -> _Rate:
        """Returns the speed of the toolkit's class in this process after a first call."""
        part = self._part
        model = RandomT2I(
            "",
            architecture=part.name,
            tiny=part.tiny,
            built=self._pipeline,
            dtype=part.dtype,
            **_settings(part),
            **options,
        )
        free_memory()
        batch = model.batch_size
        # a call with offload takes seconds
        calls = 2 if part.tiny or batch > 1 or options.get("offload") else _CALLS
        with measured() as first:
            _generate(model, 0)
        with measured(held()) as found:
            for n in range(calls):
                _generate(model, n)
        return _Rate(calls * batch / found.seconds, f"first call {first.seconds:.1f} s", found.memory)


def _generate(model: RandomT2I, seed: int) -> None:
    if model.batch_size == 1:
        model.generate("a red cup on a table", seed=seed)
    else:
        model.generate_batch(["a red cup on a table"] * model.batch_size, list(range(model.batch_size)))


@contextmanager
def _same_attention(pipeline: Any) -> Iterator[None]:
    """A block after which the attention backend is the old one, of the pipeline and of the process.

    ``set_attention_backend`` of diffusers sets both. Otherwise the next option would have this backend, too.
    """
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    old, _ = Registry.get_active_backend()
    try:
        yield
    finally:
        pipeline.transformer.reset_attention_backend()
        Registry.set_active_backend(old)
