"""A fake of NVIDIA's module ``pynvml``: what the launcher calls of it, over GPUs that a test describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NVML_DEVICE_MIG_ENABLE = 1


class NVMLError(Exception):
    """Whatever goes wrong."""


class NVMLError_NotSupported(NVMLError):
    """The GPU cannot do that."""


class NVMLError_NotFound(NVMLError):
    """There is no such MIG device."""


class NVMLError_NoPermission(NVMLError):
    """Not for this user."""


@dataclass
class FakeGpu:
    """A GPU or MIG device, memory in bytes (None: not told); ``migs`` by their places (None: it has no MIG)."""

    uuid: str
    total: int | None = 80 << 30
    free: int = 79 << 30
    migs: Sequence[FakeGpu | None] | None = None
    enabled: bool = True
    index: int = 0
    lost: bool = False


@dataclass
class FakeNvml:
    """Stands in for the module; ``problem`` is what every question about a device ends with."""

    gpus: list[FakeGpu] = field(default_factory=list)
    problem: NVMLError | None = None

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_NotFound = NVMLError_NotFound
    NVMLError_NoPermission = NVMLError_NoPermission
    NVML_DEVICE_MIG_ENABLE = NVML_DEVICE_MIG_ENABLE

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self.problem:
            raise self.problem
        if self.gpus[index].lost:
            raise NVMLError("GPU is lost")
        self.gpus[index].index = index
        return self.gpus[index]

    def nvmlDeviceGetIndex(self, gpu: FakeGpu) -> int:
        return gpu.index

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        if gpu.migs is None:
            raise NVMLError_NotSupported("Not Supported")
        return int(gpu.enabled), int(gpu.enabled)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        if gpu.migs is None:
            raise NVMLError_NotSupported("Not Supported")
        return len(gpu.migs)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        found = gpu.migs[index] if gpu.migs and gpu.enabled else None
        if found is None:
            raise NVMLError_NotFound("Not Found")
        return found

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> FakeGpu:
        if gpu.total is None:
            raise NVMLError_NoPermission("Insufficient Permissions")
        return gpu
