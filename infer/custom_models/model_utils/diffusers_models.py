"""Runs any pipeline of diffusers: a new model needs only a registry entry.

The classes generate images from a prompt or an input list. The functions after them load a pipeline from a
folder or hub id, and report each failure in one line.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models.model_utils.inputs import one_image, split_inputs, split_subject
from custom_models.model_utils.loading import best_device, check_environment, loading, torch_dtype
from imageevalkit.assets.weights import first_line, why_not_loaded
from imageevalkit.common.errors import suggest
from imageevalkit.common.machine import is_of_the_accelerator
from imageevalkit.generate.model import Generated, ImageModel, ItemFailed, ModelUnusable, Refused

# With these pipelines (diffusers 0.42.1) an image depends on the other prompts of its batch.
_NOT_IN_BATCHES = {
    "CogView4Pipeline": "it pads prompts to the longest one and attends to the padding",
    "OmniGenPipeline": "it gives all prompts the positions of the first one",
}
_DENOISERS = ("transformer", "unet")
_OFFLOADS = {"model": "enable_model_cpu_offload", "sequential": "enable_sequential_cpu_offload"}


@dataclass(frozen=True)
class LoadOptions:
    """How a pipeline is loaded and placed.

    Args:
        dtype: ``bfloat16``, ``float16`` or ``float32``; or a mapping from parts to such names, with
        ``default`` for
            all other parts: ``{"default": "bfloat16", "transformer": "float16"}``.
        variant: weight variant such as ``fp16``.
        scheduler: a scheduler class of diffusers that replaces the folder's and keeps its configuration.
        lora: absolute path of a LoRA weight file, or of a folder with one, as trainers save them; scale 1.
        denoiser: absolute path of a folder whose ``transformer`` or ``unet`` replaces the pipeline's, such as
        a
            checkpoint of full fine-tuning (``unet_ema`` is ignored).
        safety_checker: False omits the safety checker of a Stable Diffusion pipeline.
        device_map: ``balanced`` spreads the parts of the pipeline over all GPUs of the replica.
        offload: ``model`` keeps only the active part on the GPU, ``sequential`` only the active layer;
        overrides
            ``device_map``.
        attention: attention backend by diffusers' name (``native``, ``flash``, ``_flash_3``, ``sage``,
        ``xformers``,
            …).
        compile: applies torch.compile to the denoiser: the first image is slow, later images are faster.
        vae_slicing, vae_tiling: save memory: decode a batch image by image, an image tile by tile.
    """

    dtype: str | Mapping[str, str] = "bfloat16"
    variant: str | None = None
    scheduler: str | None = None
    lora: str | None = None
    denoiser: str | None = None
    safety_checker: bool = True
    device_map: str | None = None
    offload: str | None = None
    attention: str | None = None
    compile: bool = False
    vae_slicing: bool = False
    vae_tiling: bool = False


class DiffusersModel(ImageModel):
    """A diffusers pipeline with fixed settings.

    Args:
        model_path: a local pipeline folder or a Hugging Face repository id.
        revision: branch, tag or commit of a hub repository.
        device: a torch device; None takes cuda, else mps, else cpu.
        pipeline_class: a class of diffusers; None takes the class that the folder names.
        generator_device: the device that draws the noise; ``cpu`` draws the same noise on every machine.
        settings: fields of :class:`LoadOptions`, and any argument of the pipeline's ``__call__``
            (``num_inference_steps``, ``guidance_scale``, ``true_cfg_scale``, ``width``, ``height``,
            ``negative_prompt``, ``max_sequence_length``, …); without a value, or None, the pipeline's default
            applies.

    Raises ModelUnusable, with one line, if the pipeline does not load or has no such argument. Errors of the
    accelerator, such as torch.OutOfMemoryError, propagate.
    """

    environment = "diffusers"
    """The name of the requirements file in requirements/model for this class."""

    reserved = frozenset(
        ("prompt", "image", "generator", "latents", "num_images_per_prompt", "output_type", "return_dict")
    )
    """Pipeline arguments that users cannot set: they belong to an image or change the result of a call."""
    seed_honoured = True

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        device: str | None = None,
        pipeline_class: str | None = None,
        generator_device: str = "cpu",
        **settings: Any,
    ) -> None:
        check_environment("diffusers", environment=self.environment)
        own = {field.name for field in fields(LoadOptions)}
        options = LoadOptions(**{n: v for n, v in settings.items() if n in own})
        torch_dtype(options.dtype)
        self._model_path = model_path
        self.model_name = Path(model_path).name
        self.dtype, self.revision = options.dtype, revision
        self.device = best_device(device)
        self.generator_device = best_device(generator_device)
        self.call_settings = {n: v for n, v in settings.items() if n not in own and v is not None}
        cls = _pipeline_class(model_path, pipeline_class, revision)
        self.pipeline_class = cls.__name__
        self.call_parameters = inspect.signature(cls.__call__).parameters
        # before the weights load: a misspelt setting should not cost minutes
        self._check_settings(cls, own)
        _check_options(cls, options, self.device)
        self._pipeline = self._load(cls, options)

    def _check_settings(self, cls: Any, options: set[str]) -> None:
        """Raises ModelUnusable if the ``__call__`` of the pipeline ``cls`` has no parameter for a setting.

        ``**kwargs`` does not count, because it ignores unknown arguments.
        """
        parameters = self.call_parameters
        named = (
            {p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD} - {"self"} - self.reserved
        )
        for setting in self.call_settings:
            if setting in self.reserved:
                raise ModelUnusable(f"'{setting}' cannot be set: it is chosen for each image")
            if setting not in named:
                hint = suggest(setting, named | options | self._arguments())
                raise ModelUnusable(f"{cls.__name__} takes no argument '{setting}'{hint}")
        cleaning = parameters.get("clean_caption")
        if cleaning is not None and self.call_settings.get("clean_caption", cleaning.default):
            # without these packages the pipeline only warns, and uses other prompts than elsewhere
            for package in ("bs4", "ftfy"):
                if importlib.util.find_spec(package) is None:
                    raise ModelUnusable(
                        f"{cls.__name__} cleans captions with the package {package}, which is missing: "
                        "pip install -r requirements/model/diffusers.txt, or set clean_caption=false"
                    )

    @classmethod
    def _arguments(cls) -> set[str]:
        """Returns the names of the constructor's arguments, base classes included."""
        constructors = [vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base)]
        parameters = [p for init in constructors for p in inspect.signature(init).parameters.values()]
        return {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"}

    def _load(self, cls: Any, options: LoadOptions) -> Any:
        """Returns the pipeline on its device. Raises the errors that the class documents."""
        # diffusers cannot offload a pipeline that is spread over GPUs
        device_map = None if options.offload else options.device_map
        named = {"revision": self.revision, "variant": options.variant, "device_map": device_map}
        arguments: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        arguments[_dtype_argument()] = torch_dtype(options.dtype)
        if not options.safety_checker:
            arguments |= {"safety_checker": None, "requires_safety_checker": False}
        if options.denoiser:
            arguments |= _denoiser_from(options.denoiser, cls, options.dtype)
        with loading(self._model_path):
            pipeline = cls.from_pretrained(self._model_path, **arguments, **self._load_parts())
            if options.scheduler:
                scheduler = _named(options.scheduler, "scheduler", "Scheduler")
                pipeline.scheduler = scheduler.from_config(pipeline.scheduler.config)
            if options.lora:
                _add_lora(pipeline, options.lora)
            self._add_parts(pipeline)
            if options.offload:
                getattr(pipeline, _OFFLOADS[options.offload])(device=self.device)
            elif not device_map:
                pipeline.to(self.device)
        _tune(pipeline, options)
        # the pipeline's progress bar would garble the log of the job
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def _load_parts(self) -> dict[str, Any]:
        """Returns the parts, by name, that do not come from the pipeline's own folder."""
        return {}

    def _add_parts(self, pipeline: Any) -> None:
        """Loads further parts into ``pipeline`` while it is still on the CPU."""

    def _call(self, seed: int, **inputs: Any) -> Generated:
        """Runs the pipeline for one image. Raises Refused if its safety checker rejects the image.

        ``inputs`` replace settings of the same name, such as ``width``.
        """
        import torch

        # some pipelines use the global generator in place of theirs (OmniGen, to encode its input images)
        torch.manual_seed(seed)
        arguments = {**self.call_settings, **inputs}
        output = self._pipeline(**arguments, generator=self._generator(seed))
        (result,) = self._results(output, arguments)
        if isinstance(result, Refused):
            raise result
        return result

    def _call_batch(self, seeds: Sequence[int], **inputs: Any) -> list[Generated | Refused]:
        """Runs the pipeline once for all ``seeds``; each of ``inputs`` is a list with an entry per seed, or
        replaces a setting."""
        # all pipelines repeat a default negative prompt for a batch, but few repeat a given one
        settings = {
            name: [value] * len(seeds) if "negative_prompt" in name and isinstance(value, str) else value
            for name, value in self.call_settings.items()
        }
        generators = [self._generator(seed) for seed in seeds]
        arguments = {**settings, **inputs}
        return self._results(self._pipeline(**arguments, generator=generators), arguments)

    def _generator(self, seed: int) -> Any:
        import torch

        return torch.Generator(self.generator_device).manual_seed(seed)

    def _results(self, output: Any, arguments: Mapping[str, Any]) -> list[Generated | Refused]:
        """Returns, for each image of ``output``, the image or the safety checker's refusal."""
        # the checker replaces a rejected image with a black one, which would be scored as the model's image
        rejected = output.get("nsfw_content_detected") or [False] * len(output.images)
        width, height = arguments.get("width"), arguments.get("height")
        size = (width, height) if width and height else None
        return [
            Refused("safety checker of the pipeline rejected the image")
            if refused
            else Generated(image, requested_size=size)
            for image, refused in zip(output.images, rejected, strict=True)
        ]


class DiffusersT2I(DiffusersModel):
    """Text to image; see :class:`DiffusersModel` for the settings.

    Args:
        prompt_suffix: appended to every prompt, for models whose authors recommend a suffix.
        batch_size: images per call of the pipeline, at least 1.
    """

    def __init__(
        self, model_path: str, *, prompt_suffix: str = "", batch_size: int = 1, **settings: Any
    ) -> None:
        if type(batch_size) is not int or batch_size < 1:
            raise ModelUnusable(f"batch_size must be a whole number from 1, not {batch_size!r}")
        super().__init__(model_path, **settings)
        if batch_size > 1 and self.pipeline_class in _NOT_IN_BATCHES:
            raise ModelUnusable(
                f"{self.pipeline_class} makes no batches: {_NOT_IN_BATCHES[self.pipeline_class]}; leave out batch_size"
            )
        self.prompt_suffix = str(prompt_suffix)
        self.batch_size = batch_size
        self.takes_size = {"width", "height"} <= self.call_parameters.keys()

    def generate(self, prompt: str, seed: int = 42, size: tuple[int, int] | None = None) -> Generated:
        """Returns one image. Raises Refused if the pipeline's safety checker rejects it."""
        return self._call(seed, prompt=self._prompt(prompt), **_sides(size))

    def generate_batch(
        self, prompts: Sequence[str], seeds: Sequence[int], size: tuple[int, int] | None = None
    ) -> list[Generated | Refused]:
        """Returns one image, or the safety checker's refusal, for each prompt with its seed."""
        return self._call_batch(seeds, prompt=[self._prompt(prompt) for prompt in prompts], **_sides(size))

    def _prompt(self, prompt: str) -> str:
        """Returns the text that the pipeline gets for ``prompt``."""
        return prompt + self.prompt_suffix


def _sides(size: tuple[int, int] | None) -> dict[str, int]:
    return {"width": size[0], "height": size[1]} if size else {}


class DiffusersEdit(DiffusersModel):
    """Edit; see :class:`DiffusersModel` for the settings.

    Args:
        multi_image: True if the pipeline takes a list of images; False if it takes exactly one image.
        follow_input: if no size is set, request the size of the last input image, for pipelines whose default
        has
            another shape.
        batch_size: ignored, but accepted for models that also do text to image: edits differ in size.
    """

    def __init__(
        self,
        model_path: str,
        *,
        multi_image: bool = False,
        follow_input: bool = False,
        batch_size: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(model_path, **settings)
        self.multi_image = multi_image
        self._follow_input = follow_input and not {"width", "height"} & self.call_settings.keys()

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """Returns one edited image.

        Raises ItemFailed if the pipeline does not take this number of input images, and Refused if its safety
        checker rejects the result.
        """
        images, instruction = split_inputs(input_list)
        return self._show(images, instruction, seed)

    def _show(self, images: Sequence[Image.Image], prompt: str, seed: int) -> Generated:
        if not self.multi_image:
            one_image(images, self.pipeline_class)
        elif not images:
            raise ItemFailed(
                f"{self.pipeline_class} takes at least one input image, the item has 0", attempts=0
            )
        inputs = self._inputs(list(images), prompt)
        if self._follow_input:
            inputs["width"], inputs["height"] = images[-1].size
        return self._call(seed, **inputs)

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        """Returns the pipeline's arguments for an item."""
        return {"prompt": prompt, "image": images if self.multi_image else images[0]}


class DiffusersSubject(DiffusersEdit):
    """Subject-driven generation. The pipeline gets the subject's images and the prompt, but not its name."""

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """Returns one image of the subject.

        Raises ItemFailed without a prompt or if the pipeline does not take this number of images, and Refused
        if its safety checker rejects the result.
        """
        subject = split_subject(input_list)
        return self._show(subject.images, subject.prompt, seed)


def part_dtype(dtype: str | Mapping[str, str], part: str) -> Any:
    """Returns torch's dtype for ``part`` of a pipeline. Raises ModelUnusable for an unknown dtype."""
    types = torch_dtype(dtype)
    if not isinstance(types, dict):
        return types
    # diffusers chooses likewise for the parts that it loads itself
    return types.get(part, types.get("default", torch_dtype("float32")))


def _pipeline_class(model_path: str, name: str | None, revision: str | None) -> Any:
    """Returns the pipeline class ``name``, or the class in the model's ``model_index.json`` if ``name`` is
    None.

    Raises ModelUnusable if the class or the file is missing.
    """
    import diffusers

    if name is not None:
        return _named(name, "pipeline_class", "Pipeline")
    try:
        name = str(diffusers.DiffusionPipeline.load_config(model_path, revision=revision)["_class_name"])
    except Exception as error:
        raise ModelUnusable(why_not_loaded(model_path, error)) from error
    if (cls := getattr(diffusers, name, None)) is None:
        raise ModelUnusable(
            f"{model_path} needs {name}, which diffusers {diffusers.__version__} does not have; "
            "upgrade diffusers or write a model class"
        )
    return cls


def _named(name: str, option: str, ending: str) -> Any:
    """Returns the class ``name`` of diffusers. Raises ModelUnusable if it does not exist."""
    import diffusers

    cls = getattr(diffusers, name, None)
    if cls is None:
        known = [attribute for attribute in dir(diffusers) if attribute.endswith(ending)]
        raise ModelUnusable(
            f"{option} '{name}' is not in diffusers {diffusers.__version__}{suggest(name, known)}"
        )
    return cls


def _dtype_argument() -> str:
    """Returns the name of the dtype argument of ``from_pretrained``, which differs in older diffusers."""
    import diffusers

    major, minor = diffusers.__version__.split(".")[:2]
    return "dtype" if (int(major), int(minor)) >= (0, 40) else "torch_dtype"


def _check_options(cls: Any, options: LoadOptions, device: str) -> None:
    """Raises ModelUnusable if the pipeline ``cls`` does not support ``options`` on ``device``."""
    offload, lora = options.offload, options.lora
    if offload and offload not in _OFFLOADS:
        raise ModelUnusable(f"offload '{offload}' is not one of {', '.join(_OFFLOADS)}")
    if offload and device == "cpu":
        raise ModelUnusable(f"offload={offload} moves weights between CPU and GPU, and the device is the CPU")
    if not lora:
        return
    from diffusers.loaders.lora_base import LoraBaseMixin

    if not issubclass(cls, LoraBaseMixin):
        raise ModelUnusable(f"lora cannot be set: {cls.__name__} takes none")
    # the content of a relative path would not be part of the fingerprint
    if not Path(lora).is_absolute() or not Path(lora).exists():
        raise ModelUnusable(f"lora '{lora}' is no absolute path of a file or folder that is there")
    check_environment("peft")


def _denoiser_from(folder: str, cls: Any, dtype: str | Mapping[str, str]) -> dict[str, Any]:
    """Returns the denoiser in ``folder`` for the pipeline ``cls``, as ``{"transformer": …}`` or ``{"unet":
    …}``."""
    import diffusers

    names = [name for name in _DENOISERS if name in inspect.signature(cls.__init__).parameters]
    part = next((name for name in names if (Path(folder) / name).is_dir()), None)
    if not Path(folder).is_absolute() or part is None:
        wanted = " or ".join(f"{name}/" for name in names) or "transformer/ or unet/"
        raise ModelUnusable(
            f"denoiser '{folder}' is no absolute path of a folder with {wanted} for {cls.__name__}"
        )
    path = str(Path(folder) / part)
    with loading(path):
        return {
            part: diffusers.AutoModel.from_pretrained(path, **{_dtype_argument(): part_dtype(dtype, part)})
        }


def _add_lora(pipeline: Any, lora: str) -> None:
    try:
        pipeline.load_lora_weights(lora)
    except Exception as error:
        if is_of_the_accelerator(error):
            raise
        raise ModelUnusable(f"lora '{lora}' does not load: {first_line(error)}") from error
    if not pipeline.get_list_adapters():  # diffusers only warns, and would use the bare model
        raise ModelUnusable(f"lora '{lora}' has no weights for any part of {type(pipeline).__name__}")


def _tune(pipeline: Any, options: LoadOptions) -> None:
    """Applies the options that save memory or time. Raises ModelUnusable if the pipeline lacks one."""
    try:
        if options.vae_slicing:
            pipeline.vae.enable_slicing()
        if options.vae_tiling:
            pipeline.vae.enable_tiling()
    except (AttributeError, NotImplementedError) as error:
        raise ModelUnusable(f"vae_slicing or vae_tiling is not possible: {first_line(error)}") from error
    if options.attention:
        _set_attention(_denoiser(pipeline, "attention"), options.attention)
    if options.compile:
        denoiser = _denoiser(pipeline, "compile")
        try:  # compiling only the repeated blocks takes a fraction of the time
            denoiser.compile_repeated_blocks()
        except ValueError:
            denoiser.compile()


def _denoiser(pipeline: Any, option: str) -> Any:
    for part in _DENOISERS:
        if (denoiser := pipeline.components.get(part)) is not None:
            return denoiser
    raise ModelUnusable(
        f"{option} cannot be set: {type(pipeline).__name__} has neither a transformer nor a unet to set it for"
    )


def _set_attention(denoiser: Any, name: str) -> None:
    """Sets diffusers' attention backend ``name``. An older UNet accepts only xformers."""
    from diffusers.models.attention_processor import Attention, AttentionProcessor

    # the processors in AttentionProcessor call torch or xformers directly, so no backend applies
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
