"""The base of local models, and functions for packages, devices, dtypes, weights, images and one-line
errors."""

from __future__ import annotations

import importlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from imageevalkit.assets.weights import first_line, why_not_loaded
from imageevalkit.common.errors import suggest
from imageevalkit.common.machine import is_of_the_accelerator
from imageevalkit.generate.model import GenerationError, ImageModel, ModelUnusable

_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(eq=False)
class LocalModel(ImageModel, ABC):
    """A model on a device of this machine. A subclass is a dataclass whose fields are its settings.

    Args:
        model_path: folder or hub repository of the weights.
        revision: branch, tag or commit of a hub repository.
        device: a torch device; None takes cuda, else mps, else cpu.

    Raises ModelUnusable, with one line, if the model does not load. Errors of the accelerator propagate.
    """

    without_gradients: ClassVar = False
    """True if :meth:`make` needs torch's inference mode from here, because its code does not enter it."""
    seed_honoured = True

    model_path: str
    _: KW_ONLY
    revision: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        self.model_name = Path(self.model_path).name
        self.check()
        with self.loading(self.model_path):
            self.device = best_device(self.device)
            self.load()

    @abstractmethod
    def check(self) -> None:
        """Raises ModelUnusable for problems that show before the weights load, which may take minutes."""

    @abstractmethod
    def load(self) -> None:
        """Imports packages and builds the model."""

    @abstractmethod
    def make(self, given: Any, seed: int) -> Any:
        """Returns the image (``PIL.Image`` or ``Generated``) of a prompt or an input list. All seeds are
        set."""

    def generate(self, given: Any, seed: int = 42) -> Any:
        """Sets all seeds and returns :meth:`make`. Raises ItemFailed if the model cannot take the item."""
        import numpy as np
        import torch

        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)
        with torch.inference_mode(self.without_gradients):
            return self.make(given, seed)

    def loading(self, path: str) -> Any:
        """Returns the block :func:`loading` for the weights of a part at ``path``."""
        return loading(path)

    def chosen(self, *names: str) -> dict[str, Any]:
        """Returns the settings ``names`` as keyword arguments of the same names."""
        return {name: getattr(self, name) for name in names}


def check_environment(*packages: str, environment: str = "diffusers") -> None:
    """Raises ModelUnusable if torch or one of ``packages`` is missing; the message names ``environment``."""
    for package in ("torch", *packages):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ModelUnusable(
                f"package {error.name} is missing in this environment; {_name_one_with(environment)}"
            ) from error


def _name_one_with(environment: str) -> str:
    return f"name one in INFER_ENV_MAP that has requirements/model/{environment}.txt"


def best_device(name: str | None) -> str:
    """Returns ``name``, or the best device if None. Raises ModelUnusable if torch cannot use the device."""
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


def weights_folder(model_path: str, revision: str | None = None, patterns: Sequence[str] = ()) -> Path:
    """Returns ``model_path`` if it is a folder, else the folder of the hub repository's files.

    ``patterns`` selects files of the repository; empty means all. Raises ModelUnusable if the files are not
    in the cache and cannot be downloaded.
    """
    if Path(model_path).is_dir():
        return Path(model_path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_path, revision=revision, allow_patterns=list(patterns) or None))
    except Exception as error:  # an error of the hub, its HTTP library or the disk
        raise ModelUnusable(why_not_loaded(model_path, error)) from error


def torch_dtype(dtype: str | Mapping[str, str]) -> Any:
    """Returns torch's dtype by name, or a dict of dtypes by part. Raises ModelUnusable for an unknown
    name."""
    import torch

    if isinstance(dtype, Mapping):
        return {part: torch_dtype(name) for part, name in dtype.items()}
    if dtype not in _DTYPES:
        raise ModelUnusable(f"dtype '{dtype}' is not one of {', '.join(_DTYPES)}{suggest(dtype, _DTYPES)}")
    return getattr(torch, dtype)


@contextmanager
def loading(model_path: str, environment: str = "") -> Iterator[None]:
    """A block that loads the weights of ``model_path`` or authors' modules, and names the cause of a failure.

    ``environment`` is the requirements file in requirements/model/ with the packages of the authors' code.

    Raises ModelUnusable if an import fails (missing package or wrong version) or the weights do not load.
    Errors of the accelerator, such as torch.OutOfMemoryError, propagate: the worker process handles them.
    """
    try:
        yield
    except GenerationError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) and environment:
            why = f"the authors' code does not import in this environment ({first_line(error)})"
            raise ModelUnusable(f"{why}; {_name_one_with(environment)}") from error
        if is_of_the_accelerator(error):
            raise
        raise ModelUnusable(why_not_loaded(model_path, error)) from error


def to_image(pixels: Any) -> Image.Image:
    """Returns an image of ``pixels`` (3 x height x width, -1 to 1); fractions are truncated as in authors'
    scripts."""
    return levels_to_image((pixels.float() + 1) / 2 * 255)


def levels_to_image(levels: Any) -> Image.Image:
    """Returns an image of ``levels`` (3 x height x width), clamped to 0-255 and truncated."""
    import torch

    return Image.fromarray(levels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0).cpu().numpy())
