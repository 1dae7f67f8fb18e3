"""From a folder or hub id to a diffusers pipeline that is ready to run, and every reason why not in one line."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imageevalkit.errors import suggest
from imageevalkit.generation.model import ModelUnusable
from imageevalkit.machine import is_of_the_accelerator
from imageevalkit.weights import first_line, why_not_loaded

_DTYPES = ("bfloat16", "float16", "float32")
_OFFLOADS = {"model": "enable_model_cpu_offload", "sequential": "enable_sequential_cpu_offload"}


@dataclass(frozen=True)
class LoadOptions:
    """How a pipeline is loaded and placed: see :class:`custom_models.model_utils.diffusers_common.DiffusersModel`."""

    dtype: str | Mapping[str, str]
    device: str
    safety_checker: bool = True
    revision: str | None = None
    variant: str | None = None
    scheduler: str | None = None
    lora: str | None = None
    device_map: str | None = None
    offload: str | None = None
    attention: str | None = None
    compile: bool = False
    vae_slicing: bool = False
    vae_tiling: bool = False


def check_environment(*packages: str, environment: str = "diffusers") -> None:
    """Raise ModelUnusable when this environment lacks torch or one of ``packages``, which ``environment`` has."""
    for package in ("torch", *packages):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ModelUnusable(
                f"package {error.name} is missing in this environment; "
                f"name one in INFER_ENV_MAP that has requirements/model/{environment}.txt"
            ) from error


def torch_dtype(dtype: str | Mapping[str, str]) -> Any:
    """torch's type of that name, or one for each part by its name. Raises ModelUnusable for an unknown one."""
    import torch

    if isinstance(dtype, Mapping):
        return {part: torch_dtype(name) for part, name in dtype.items()}
    if dtype not in _DTYPES:
        raise ModelUnusable(f"dtype '{dtype}' is not one of {', '.join(_DTYPES)}{suggest(dtype, _DTYPES)}")
    return getattr(torch, dtype)


def part_dtype(dtype: str | Mapping[str, str], part: str) -> Any:
    """torch's type for ``part`` of a pipeline. Raises ModelUnusable for an unknown one."""
    types = torch_dtype(dtype)
    if not isinstance(types, dict):
        return types
    # as diffusers chooses for the parts that it loads itself
    return types.get(part, types.get("default", torch_dtype("float32")))


def pipeline_class(model_path: str, name: str | None, revision: str | None) -> Any:
    """The pipeline class, by ``name`` or from the model's ``model_index.json``. Raises ModelUnusable."""
    import diffusers

    if name is None:
        try:
            config = diffusers.DiffusionPipeline.load_config(model_path, revision=revision)
        except Exception as error:
            raise ModelUnusable(why_not_loaded(model_path, error)) from error
        name = str(config["_class_name"])
        cls = getattr(diffusers, name, None)
        if cls is None:
            raise ModelUnusable(
                f"{model_path} needs {name}, which diffusers {diffusers.__version__} does not have; "
                "upgrade diffusers or write a model class"
            )
        return cls
    return _named(name, "pipeline_class", "Pipeline")


def check_settings(cls: Any, settings: dict[str, Any], reserved: frozenset[str], own: set[str]) -> None:
    """Raise ModelUnusable when the ``__call__`` of the pipeline ``cls`` does not name one of ``settings``.

    ``**kwargs`` of a pipeline does not count: it swallows what it does not know. ``reserved`` are chosen for each
    image; ``own`` are the constructor's arguments, among those that a misspelt one may have meant.
    """
    parameters = inspect.signature(cls.__call__).parameters
    named = {p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD} - {"self"} - reserved
    for setting in settings:
        if setting in reserved:
            raise ModelUnusable(f"'{setting}' cannot be set: it is chosen for each image")
        if setting not in named:
            hint = suggest(setting, named | own)
            raise ModelUnusable(f"{cls.__name__} takes no argument '{setting}'{hint}")
    cleaning = parameters.get("clean_caption")
    if cleaning is not None and settings.get("clean_caption", cleaning.default):
        # without these the pipeline only warns, and its prompts are others than everybody else's
        for package in ("bs4", "ftfy"):
            if importlib.util.find_spec(package) is None:
                raise ModelUnusable(
                    f"{cls.__name__} cleans captions with the package {package}, which is missing: "
                    "pip install -r requirements/model/diffusers.txt, or set clean_caption=false"
                )


def load_pipeline(
    cls: Any,
    model_path: str,
    options: LoadOptions,
    load_parts: Callable[[], Mapping[str, Any]],
    add_parts: Callable[[Any], None],
) -> Any:
    """The pipeline on its device.

    ``load_parts`` gives parts to use in place of its own; ``add_parts`` adds to it before it is placed.

    Raises:
        ModelUnusable: it does not load, or an option is not possible here.
        Exception: the accelerator's own, such as torch.OutOfMemoryError.
    """
    _check_offload(options)
    if options.lora:
        _check_lora(cls, options.lora)
    # diffusers offloads no pipeline that is spread over GPUs
    device_map = None if options.offload else options.device_map
    named = {"revision": options.revision, "variant": options.variant, "device_map": device_map}
    arguments: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    arguments[_dtype_argument()] = torch_dtype(options.dtype)
    if not options.safety_checker:
        arguments |= {"safety_checker": None, "requires_safety_checker": False}
    try:
        pipeline = cls.from_pretrained(model_path, **arguments, **load_parts())
        if options.scheduler:
            scheduler = _named(options.scheduler, "scheduler", "Scheduler")
            pipeline.scheduler = scheduler.from_config(pipeline.scheduler.config)
        if options.lora:
            _add_lora(pipeline, options.lora)
        add_parts(pipeline)
        if options.offload:
            getattr(pipeline, _OFFLOADS[options.offload])(device=options.device)
        elif not device_map:
            pipeline.to(options.device)
    except ModelUnusable:
        raise
    except Exception as error:
        if is_of_the_accelerator(error):
            raise
        raise ModelUnusable(why_not_loaded(model_path, error)) from error
    _spare_memory_of_vae(pipeline, options)
    if options.attention:
        _set_attention(_denoiser(pipeline, "attention"), options.attention)
    if options.compile:
        _compile(_denoiser(pipeline, "compile"))
    # its own bar would garble the log of the job
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _dtype_argument() -> str:
    """What ``from_pretrained`` calls it: another name in the environments of older models."""
    import diffusers

    major, minor = diffusers.__version__.split(".")[:2]
    return "dtype" if (int(major), int(minor)) >= (0, 40) else "torch_dtype"


def _check_offload(options: LoadOptions) -> None:
    """Before the weights are read: they may be many."""
    if options.offload and options.offload not in _OFFLOADS:
        raise ModelUnusable(f"offload '{options.offload}' is not one of {', '.join(_OFFLOADS)}")
    if options.offload and options.device == "cpu":
        raise ModelUnusable(
            f"offload={options.offload} moves weights between CPU and GPU, and the device is the CPU"
        )


def _check_lora(cls: Any, lora: str) -> None:
    """Before the weights are read, as :func:`_check_offload`."""
    from diffusers.loaders.lora_base import LoraBaseMixin

    if not issubclass(cls, LoraBaseMixin):
        raise ModelUnusable(f"lora cannot be set: {cls.__name__} takes none")
    # of a relative path the content would not count as a setting
    if not Path(lora).is_absolute() or not Path(lora).exists():
        raise ModelUnusable(f"lora '{lora}' is no absolute path of a file or folder that is there")
    check_environment("peft")


def _add_lora(pipeline: Any, lora: str) -> None:
    try:
        pipeline.load_lora_weights(lora)
    except Exception as error:
        if is_of_the_accelerator(error):
            raise
        raise ModelUnusable(f"lora '{lora}' does not load: {first_line(error)}") from error
    if not pipeline.get_list_adapters():  # diffusers only warns, and images would be those of the bare model
        raise ModelUnusable(f"lora '{lora}' has no weights for any part of {type(pipeline).__name__}")


def _named(name: str, option: str, ending: str) -> Any:
    """The class ``name`` of diffusers."""
    import diffusers

    cls = getattr(diffusers, name, None)
    if cls is None:
        known = [attribute for attribute in dir(diffusers) if attribute.endswith(ending)]
        raise ModelUnusable(
            f"{option} '{name}' is not in diffusers {diffusers.__version__}{suggest(name, known)}"
        )
    return cls


def _denoiser(pipeline: Any, option: str) -> Any:
    for part in ("transformer", "unet"):
        if (denoiser := pipeline.components.get(part)) is not None:
            return denoiser
    raise ModelUnusable(
        f"{option} cannot be set: {type(pipeline).__name__} has neither a transformer nor a unet to set it for"
    )


def _spare_memory_of_vae(pipeline: Any, options: LoadOptions) -> None:
    try:
        if options.vae_slicing:
            pipeline.vae.enable_slicing()
        if options.vae_tiling:
            pipeline.vae.enable_tiling()
    except (AttributeError, NotImplementedError) as error:
        raise ModelUnusable(f"vae_slicing or vae_tiling is not possible: {first_line(error)}") from error


def _set_attention(denoiser: Any, name: str) -> None:
    """``name`` is one of diffusers' attention backends; a UNet of the older kind takes only xformers."""
    from diffusers.models.attention_processor import Attention, AttentionProcessor

    # the processors that this type lists call torch or xformers themselves
    is_older = any(
        isinstance(module, Attention) and isinstance(module.get_processor(), AttentionProcessor)
        for module in denoiser.modules()
    )
    if is_older and name != "xformers":
        raise ModelUnusable(f"{type(denoiser).__name__} takes no attention backend but xformers")
    try:
        if is_older:
            denoiser.enable_xformers_memory_efficient_attention()
        else:
            denoiser.set_attention_backend(name)
    except (ValueError, RuntimeError, ImportError) as error:
        raise ModelUnusable(f"attention '{name}' is not usable here: {first_line(error)}") from error


def _compile(denoiser: Any) -> None:
    """Compile the denoiser: its repeated blocks where it names them, which takes a fraction of the time."""
    try:
        denoiser.compile_repeated_blocks()
    except ValueError:  # it names none
        denoiser.compile()
