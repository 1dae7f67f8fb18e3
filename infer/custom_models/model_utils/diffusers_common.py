"""What every diffusers pipeline needs around it: settings, seeds, refusals."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from custom_models.model_utils import diffusers_loading as loading
from custom_models.model_utils.adapters import best_device
from imageevalkit.generation.model import Generated, Refused


class DiffusersModel:
    """A diffusers pipeline with fixed settings.

    Args:
        model_path: a local pipeline folder or a Hugging Face repository id.
        dtype: ``bfloat16``, ``float16`` or ``float32``; or such a name for each part, and for all others
            under ``default``: ``{"default": "bfloat16", "transformer": "float16"}``.
        device: a torch device; None takes cuda, else mps, else cpu.
        revision: branch, tag or commit of a hub repository.
        variant: weight variant such as ``fp16``.
        pipeline_class: a class of diffusers; None takes the one the folder names.
        scheduler: a scheduler class of diffusers in place of the folder's, with that one's configuration.
        lora: absolute path of a file of LoRA weights, or of a folder with one, as trainers save them; added in full.
        safety_checker: False leaves out the one that a pipeline of Stable Diffusion has.
        generator_device: where the noise is drawn; ``cpu`` gives the same noise on every machine.
        device_map: ``balanced`` spreads the parts of the pipeline over all GPUs of the replica.
        offload: ``model`` keeps only the part at work on the GPU, ``sequential`` only the layer at work; it takes
            the place of ``device_map``.
        attention: attention backend as diffusers names them (``native``, ``flash``, ``_flash_3``, ``sage``,
            ``xformers``, …).
        compile: torch.compile the denoiser: slow first image, faster ones after it.
        vae_slicing, vae_tiling: decode a batch image by image, an image tile by tile: less memory.
        call_settings: any argument of the pipeline's ``__call__`` (``num_inference_steps``,
            ``guidance_scale``, ``true_cfg_scale``, ``width``, ``height``, ``negative_prompt``,
            ``max_sequence_length``, …); one that is absent or None keeps the pipeline's default.

    Raises:
        ModelUnusable: the pipeline does not load, or takes no such argument; one line.
        Exception: the accelerator's own, such as torch.OutOfMemoryError.
    """

    environment = "diffusers"
    """The list in requirements/model that has what the class needs."""

    reserved = frozenset(
        ("prompt", "image", "generator", "latents", "num_images_per_prompt", "output_type", "return_dict")
    )
    """Arguments of the pipeline that are set for each image, or would change what one call returns."""

    def __init__(
        self,
        model_path: str,
        *,
        dtype: str | Mapping[str, str] = "bfloat16",
        device: str | None = None,
        revision: str | None = None,
        variant: str | None = None,
        pipeline_class: str | None = None,
        scheduler: str | None = None,
        lora: str | None = None,
        safety_checker: bool = True,
        generator_device: str = "cpu",
        device_map: str | None = None,
        offload: str | None = None,
        attention: str | None = None,
        compile: bool = False,
        vae_slicing: bool = False,
        vae_tiling: bool = False,
        **call_settings: Any,
    ) -> None:
        loading.check_environment("diffusers", environment=self.environment)
        loading.torch_dtype(dtype)
        self.model_name = Path(model_path).name
        self.dtype = dtype
        self.device = best_device(device)
        self.generator_device = best_device(generator_device)
        self.call_settings = {name: value for name, value in call_settings.items() if value is not None}
        cls = loading.pipeline_class(model_path, pipeline_class, revision)
        self.pipeline_class = cls.__name__
        # before the weights are read: a typing slip should not cost minutes
        loading.check_settings(cls, self.call_settings, self.reserved, self._arguments())
        options = loading.LoadOptions(
            dtype,
            self.device,
            revision=revision,
            variant=variant,
            scheduler=scheduler,
            lora=lora,
            safety_checker=safety_checker,
            device_map=device_map,
            offload=offload,
            attention=attention,
            compile=compile,
            vae_slicing=vae_slicing,
            vae_tiling=vae_tiling,
        )
        self._options = options
        self._pipeline = loading.load_pipeline(cls, model_path, options, self._load_parts, self._add_parts)

    @classmethod
    def _arguments(cls) -> set[str]:
        """The names of the constructor's arguments, those of its base classes included."""
        constructors = [vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base)]
        parameters = [p for init in constructors for p in inspect.signature(init).parameters.values()]
        return {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"}

    def _load_parts(self) -> dict[str, Any]:
        """Parts of the pipeline that are not to be loaded from where it is, by their names."""
        return {}

    def _add_parts(self, pipeline: Any) -> None:
        """Load what ``pipeline`` needs besides, while it is still on the CPU."""

    def _call(self, seed: int, **inputs: Any) -> Generated:
        """Run the pipeline once. Raises Refused when its safety checker rejects the image."""
        import torch

        # some pipelines draw from it what the generator is for (OmniGen, to encode its input images)
        torch.manual_seed(seed)
        output = self._pipeline(**inputs, **self.call_settings, generator=self._generator(seed))
        (result,) = self._results(output)
        if isinstance(result, Refused):
            raise result
        return result

    def _call_batch(self, seeds: Sequence[int], **inputs: Any) -> list[Generated | Refused]:
        """Run the pipeline once for all ``seeds``; ``inputs`` are lists with one entry for each."""
        # pipelines repeat a missing negative prompt for a batch, but few of them one that is given
        settings = {
            name: [value] * len(seeds) if "negative_prompt" in name and isinstance(value, str) else value
            for name, value in self.call_settings.items()
        }
        generators = [self._generator(seed) for seed in seeds]
        return self._results(self._pipeline(**inputs, **settings, generator=generators))

    def _generator(self, seed: int) -> Any:
        import torch

        return torch.Generator(self.generator_device).manual_seed(seed)

    def _results(self, output: Any) -> list[Generated | Refused]:
        """What the pipeline made, image by image."""
        # the checker hands out a black picture, which would be scored as if the model had drawn it
        rejected = output.get("nsfw_content_detected") or [False] * len(output.images)
        return [
            Refused("safety checker of the pipeline rejected the image")
            if refused
            else Generated(image, requested_size=self._requested_size())
            for image, refused in zip(output.images, rejected, strict=True)
        ]

    def _requested_size(self) -> tuple[int, int] | None:
        width, height = self.call_settings.get("width"), self.call_settings.get("height")
        return (width, height) if width and height else None
