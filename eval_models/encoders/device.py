"""Where an encoder computes, and giving its memory back."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from eval_models.encoders.interface import EncoderOptions
from imageevalkit.errors import CellFailure
from imageevalkit.load_errors import first_line

if TYPE_CHECKING:
    import numpy as np


def choose_device(options: EncoderOptions) -> str:
    """``options.device``, else the first GPU, else the CPU, in torch's words.

    Raises:
        CellFailure: torch knows no such device.
    """
    import torch

    name = options.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except Exception as error:  # torch raises what the device's backend does
        raise CellFailure(
            f"encoders: torch cannot use the device '{name}' ({first_line(error)}); leave it out, or say cuda:0 or cpu"
        ) from error
    return name


def to_device(pixels: list[np.ndarray], device: str) -> Any:
    """One float32 tensor (batch, 3, height, width) on ``device``."""
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(pixels)).to(device)


def free_memory() -> None:
    """Give back what models that nothing refers to any more have held on the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
