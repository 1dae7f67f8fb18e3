"""What classes of models share: the device, the folder of the weights, seeds, pictures, and one line for what fails."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit.generation.model import GenerationError, ModelUnusable
from imageevalkit.machine import is_of_the_accelerator
from imageevalkit.weights import first_line, why_not_loaded


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

    Raises:
        ModelUnusable: neither; or the files are not in the cache and cannot be fetched.
    """
    if Path(model_path).is_dir():
        return Path(model_path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_path, revision=revision, allow_patterns=list(patterns) or None))
    except Exception as error:  # of the hub, of its HTTP library, of the disk
        raise ModelUnusable(why_not_loaded(model_path, error)) from error


@contextmanager
def loading(model_path: str, environment: str) -> Iterator[None]:
    """Name the cause when the authors' modules or the weights do not load.

    Args:
        model_path: the weights being loaded.
        environment: name of the list in requirements/model/ that has what the authors' code imports.

    Raises:
        ModelUnusable: an import failed (package missing, or of a version without that name), or the weights.
    """
    try:
        yield
    except GenerationError:
        raise
    except ImportError as error:
        raise ModelUnusable(
            f"the authors' code does not import in this environment ({first_line(error)}); "
            f"name one in INFER_ENV_MAP that has requirements/model/{environment}.txt"
        ) from error
    except Exception as error:
        if is_of_the_accelerator(error):
            raise  # the worker process decides what to do
        raise ModelUnusable(why_not_loaded(model_path, error)) from error


def set_seeds(seed: int) -> None:
    """Seed Python, NumPy and torch (CPU and all GPUs) before an image; NumPy takes the seed modulo 2**32."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def to_image(pixels: Any) -> Image.Image:
    """A picture of ``pixels`` (3 x height x width, -1 to 1), fractions cut off as the authors' scripts do."""
    return levels_to_image((pixels.float() + 1) / 2 * 255)


def levels_to_image(levels: Any) -> Image.Image:
    """The same of ``levels`` (3 x height x width, 0 to 255; what is beyond counts as the nearest of them)."""
    import torch

    return Image.fromarray(levels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0).cpu().numpy())
