"""What all classes of local models share: packages, device, types, weights, pictures, and one line for what fails."""

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
from imageevalkit.errors import suggest
from imageevalkit.generation.model import GenerationError, ImageModel, ModelUnusable
from imageevalkit.machine import is_of_the_accelerator

_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(eq=False)
class LocalModel(ImageModel, ABC):
    """A model on a device of this machine. A subclass is a dataclass whose fields are its settings.

    Args:
        model_path: folder or hub repository of the weights.
        revision: branch, tag or commit of a hub repository.
        device: a torch device; None takes cuda, else mps, else cpu.

    Raises ModelUnusable: it does not load, in one line; the accelerator's own errors as they are.
    """

    without_gradients: ClassVar = False
    """Whether :meth:`make` is called in torch's inference mode: code that has no such block itself."""
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
        """Raise ModelUnusable for what can be told before weights are read, which may take minutes."""

    @abstractmethod
    def load(self) -> None:
        """Import what it needs, and build the model."""

    @abstractmethod
    def make(self, given: Any, seed: int) -> Any:
        """The image of a prompt or an input list, with all seeds set; a ``PIL.Image`` or a ``Generated``."""

    def generate(self, given: Any, seed: int = 42) -> Any:
        """See :meth:`make`. Raises ItemFailed: the item is not one that the model takes."""
        import numpy as np
        import torch

        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)
        with torch.inference_mode(self.without_gradients):
            return self.make(given, seed)

    def loading(self, path: str) -> Any:
        """See :func:`loading`, for the weights of a part at ``path``."""
        return loading(path)

    def chosen(self, *names: str) -> dict[str, Any]:
        """The settings ``names``, for functions that call them so too."""
        return {name: getattr(self, name) for name in names}


def check_environment(*packages: str, environment: str = "diffusers") -> None:
    """Raise ModelUnusable when this environment lacks torch or one of ``packages``, which ``environment`` has."""
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


def weights_folder(model_path: str, revision: str | None = None, patterns: Sequence[str] = ()) -> Path:
    """``model_path`` itself where it is a folder, else the hub repository's files (``patterns``; all when empty).

    Raises ModelUnusable: neither; or the files are not in the cache and cannot be fetched.
    """
    if Path(model_path).is_dir():
        return Path(model_path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_path, revision=revision, allow_patterns=list(patterns) or None))
    except Exception as error:  # of the hub, of its HTTP library, of the disk
        raise ModelUnusable(why_not_loaded(model_path, error)) from error


def torch_dtype(dtype: str | Mapping[str, str]) -> Any:
    """torch's type of that name, or one for each part by its name. Raises ModelUnusable for an unknown one."""
    import torch

    if isinstance(dtype, Mapping):
        return {part: torch_dtype(name) for part, name in dtype.items()}
    if dtype not in _DTYPES:
        raise ModelUnusable(f"dtype '{dtype}' is not one of {', '.join(_DTYPES)}{suggest(dtype, _DTYPES)}")
    return getattr(torch, dtype)


@contextmanager
def loading(model_path: str, environment: str = "") -> Iterator[None]:
    """Name the cause when the weights of ``model_path`` do not load, or authors' modules.

    ``environment`` is the list in requirements/model/ that has what the authors' code imports.

    Raises ModelUnusable: an import failed (package missing, or of a version without that name), or the weights;
    Exception: the accelerator's own, such as torch.OutOfMemoryError: the worker process decides what to do.
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
    """A picture of ``pixels`` (3 x height x width, -1 to 1), fractions cut off as the authors' scripts do."""
    return levels_to_image((pixels.float() + 1) / 2 * 255)


def levels_to_image(levels: Any) -> Image.Image:
    """The same of ``levels`` (3 x height x width, 0 to 255; what is beyond counts as the nearest of them)."""
    import torch

    return Image.fromarray(levels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0).cpu().numpy())
