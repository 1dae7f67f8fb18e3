"""The errors of an accelerator that say nothing about the model or the item at hand."""

from __future__ import annotations

import re

_DEVICE_ERROR = re.compile(r"CUDA error|cuDNN error|CUDNN_STATUS|NCCL error|Triton Error")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the accelerator has no room left; less at once, or elsewhere, may work."""
    # torch.OutOfMemoryError of CUDA and others; MPS raises a plain RuntimeError
    text = str(error)
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in text or "ALLOC_FAILED" in text


def breaks_the_process(error: BaseException) -> bool:
    """Whether it is an error of the device itself: every later call of CUDA fails too, in this process."""
    return type(error).__name__ == "AcceleratorError" or _DEVICE_ERROR.search(str(error)) is not None


def is_of_the_accelerator(error: BaseException) -> bool:
    """Whether it is for the worker process, and not a reason why a model cannot be used."""
    return is_out_of_memory(error) or breaks_the_process(error)
