"""What every diffusers pipeline needs around it: loading, argument checks, seeds, refusals, clear errors."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit.errors import suggest
from imageevalkit.generation.contract import Generated, ModelUnusable, Refused
from imageevalkit.load_errors import first_line, why_not_loaded

_DTYPES = ("bfloat16", "float16", "float32")
# set per image below, or they would change what one call returns
_RESERVED = {
    "prompt",
    "image",
    "generator",
    "latents",
    "num_images_per_prompt",
    "output_type",
    "return_dict",
}


class DiffusersModel:
    """A diffusers pipeline with fixed settings.

    Args:
        model_path: a local pipeline folder or a Hugging Face repository id.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        device: a torch device; None takes cuda, else mps, else cpu.
        revision: branch, tag or commit of a hub repository.
        variant: weight variant such as ``fp16``.
        pipeline_class: a class of diffusers; None takes the one the folder names.
        generator_device: where the noise is drawn; ``cpu`` gives the same noise on every machine.
        call_settings: any argument of the pipeline's ``__call__`` (``num_inference_steps``,
            ``guidance_scale``, ``true_cfg_scale``, ``width``, ``height``, ``negative_prompt``,
            ``max_sequence_length``, …); one that is absent or None keeps the pipeline's default.

    Raises:
        ModelUnusable: the pipeline does not load, or takes no such argument; one line.
    """

    def __init__(
        self,
        model_path: str,
        dtype: str = "bfloat16",
        device: str | None = None,
        revision: str | None = None,
        variant: str | None = None,
        pipeline_class: str | None = None,
        generator_device: str = "cpu",
        **call_settings: Any,
    ) -> None:
        _check_environment()
        if dtype not in _DTYPES:
            raise ModelUnusable(
                f"dtype '{dtype}' is not one of {', '.join(_DTYPES)}{suggest(dtype, _DTYPES)}"
            )
        self.model_name = Path(model_path).name
        self.dtype = dtype
        self.device = _device(device)
        self.generator_device = _device(generator_device)
        self.call_settings = {name: value for name, value in call_settings.items() if value is not None}
        cls = _pipeline_class(model_path, pipeline_class, revision)
        self.pipeline_class = cls.__name__
        # before the weights are read: a typing slip should not cost minutes
        _check_settings(cls, self.call_settings)
        self._pipeline = _load(cls, model_path, dtype, self.device, revision, variant)

    def _call(self, seed: int, **inputs: Any) -> Generated:
        """Run the pipeline once. Raises Refused when its safety checker rejects the image."""
        import torch

        generator = torch.Generator(self.generator_device).manual_seed(seed)
        output = self._pipeline(**inputs, **self.call_settings, generator=generator)
        # the checker hands out a black picture, which would be scored as if the model had drawn it
        if any(getattr(output, "nsfw_content_detected", None) or []):
            raise Refused("safety checker of the pipeline rejected the image")
        image: Image.Image = output.images[0]
        return Generated(image, requested_size=self._requested_size())

    def _requested_size(self) -> tuple[int, int] | None:
        width, height = self.call_settings.get("width"), self.call_settings.get("height")
        return (width, height) if width and height else None


def _check_environment() -> None:
    try:
        import diffusers  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise ModelUnusable(
            f"package {error.name} is missing in this environment; "
            "name one in INFER_ENV_MAP that has requirements/model/diffusers.txt"
        ) from error


def _device(name: str | None) -> str:
    """``name``, or the best device here. Raises ModelUnusable when torch has no such device."""
    import torch

    if name is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except Exception as error:  # torch raises RuntimeError, AssertionError, AcceleratorError, … here
        raise ModelUnusable(f"device '{name}' is not usable here: {first_line(error)}") from error
    return name


def _pipeline_class(model_path: str, name: str | None, revision: str | None) -> Any:
    """The pipeline class, by ``name`` or from the model's ``model_index.json``."""
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
    cls = getattr(diffusers, name, None)
    if cls is None:
        known = [attribute for attribute in dir(diffusers) if attribute.endswith("Pipeline")]
        raise ModelUnusable(
            f"pipeline_class '{name}' is not in diffusers {diffusers.__version__}{suggest(name, known)}"
        )
    return cls


def _check_settings(cls: Any, settings: dict[str, Any]) -> None:
    """Raise ModelUnusable when the pipeline's ``__call__`` does not name a setting.

    ``**kwargs`` of a pipeline does not count: it swallows what it does not know.
    """
    parameters = inspect.signature(cls.__call__).parameters.values()
    own = inspect.signature(DiffusersModel.__init__).parameters.values()
    named = {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD} - {"self"} - _RESERVED
    for setting in settings:
        if setting in _RESERVED:
            raise ModelUnusable(f"'{setting}' cannot be set: it is chosen for each image")
        if setting not in named:
            constructor = {p.name for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD} - {"self"}
            hint = suggest(setting, named | constructor)
            raise ModelUnusable(f"{cls.__name__} takes no argument '{setting}'{hint}")


def _load(
    cls: Any, model_path: str, dtype: str, device: str, revision: str | None, variant: str | None
) -> Any:
    import torch

    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "revision": revision, "variant": variant}
    try:
        pipeline = cls.from_pretrained(model_path, **options).to(device)
    except Exception as error:
        raise ModelUnusable(why_not_loaded(model_path, error)) from error
    # its own bar would garble the log of the job
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
