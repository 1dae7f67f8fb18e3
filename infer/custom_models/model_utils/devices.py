"""The torch device of a model."""

from __future__ import annotations

from imageevalkit.generation.model import ModelUnusable
from imageevalkit.weights import first_line


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
