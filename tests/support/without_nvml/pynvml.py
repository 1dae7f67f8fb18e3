"""A stand-in for NVIDIA's module where its library is not, so that tests see the GPUs of a fake nvidia-smi alone."""

from __future__ import annotations


class NVMLError(Exception):
    """Whatever goes wrong."""


def nvmlInit() -> None:
    raise NVMLError("NVML Shared Library Not Found")
