"""The settings of a judge that runs in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from imageevalkit.errors import UserError, suggest

_DTYPES = ("auto", "bfloat16", "float16", "float32")
# Taken by the launcher before they come here: where the job runs, and on how many GPUs.
_OF_THE_JOB = ("environment", "gpus")
# They change speed and memory only (and last bits, as every other machine does).
_NOT_IDENTITY = ("revision", "device_map", "batch_size")


@dataclass(frozen=True)
class TransformersSettings:
    """What a user may set.

    ``revision``: branch, tag or commit of a hub repository. ``dtype``: "auto" is the checkpoint's own.
    ``device_map``: a torch device, or one of accelerate's ways over several GPUs ("auto"); None takes all GPUs
    there are, else mps, else the CPU. ``attn_implementation``: as transformers names it ("sdpa", "eager",
    "flash_attention_2"); None is transformers' choice. ``min_pixels`` and ``max_pixels`` bound width × height
    to which an image is resized. ``batch_size``: the most questions in one forward pass.
    """

    revision: str | None = None
    dtype: str = "auto"
    device_map: str | None = None
    attn_implementation: str | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    batch_size: int = 16

    @classmethod
    def from_kwargs(cls, model_path: str, kwargs: Mapping[str, Any]) -> TransformersSettings:
        """Those that ``kwargs`` give for the judge at ``model_path``, checked.

        Raises:
            UserError: there is no such setting, or not with that value.
        """
        known = [field.name for field in fields(cls)]
        for name in kwargs:
            if name not in known:
                raise UserError(
                    f"it takes no setting '{name}'{suggest(name, known)}; known: {', '.join([*known, *_OF_THE_JOB])}"
                )
        settings = cls(**kwargs)
        for name in ("batch_size", "min_pixels", "max_pixels"):
            value = getattr(settings, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"{name} must be a whole number from 1, not {value!r}")
        for name in ("revision", "dtype", "device_map", "attn_implementation"):
            value = getattr(settings, name)
            if value is not None and not isinstance(value, str):
                raise UserError(f"{name} must be text, not {value!r}")
        if settings.dtype not in _DTYPES:
            raise UserError(
                f"dtype '{settings.dtype}' is not one of {', '.join(_DTYPES)}"
                f"{suggest(settings.dtype, _DTYPES)}"
            )
        if settings.revision is not None and Path(model_path).is_dir():
            raise UserError(f"revision is for hub repositories, {model_path} is a folder")
        return settings

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that may move a score, those left to the checkpoint omitted."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in _NOT_IDENTITY and value is not None
        }
