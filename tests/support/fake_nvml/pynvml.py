"""A fake of NVIDIA's module ``pynvml``. The folder FAKE_NVML describes its GPUs; without it, NVML is not installed.

``tests.support.fake_gpus`` writes the folder.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_DEVICE_MIG_ENABLE = 1
NVML_INIT_FLAG_NO_GPUS = 1


class NVMLError(Exception):
    """A failure of NVML."""


class NVMLError_LibraryNotFound(NVMLError):
    """No driver is installed."""


class NVMLError_NotSupported(NVMLError):
    """The GPU cannot do this."""


class NVMLError_NotFound(NVMLError):
    """There is no such MIG device."""


class NVMLError_NoPermission(NVMLError):
    """This user may not do this."""


def _machine() -> dict[str, Any]:
    machine: dict[str, Any] = json.loads(Path(os.environ["FAKE_NVML"], "machine.json").read_text())
    return machine


def nvmlInit() -> None:
    nvmlInitWithFlags(0)


def nvmlInitWithFlags(flags: int) -> None:
    if "FAKE_NVML" not in os.environ:
        raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    machine = _machine()
    if machine["failure"]:
        raise NVMLError(machine["failure"])
    if not (machine["gpus"] or flags & NVML_INIT_FLAG_NO_GPUS):
        raise NVMLError("No devices were found")


def nvmlDeviceGetCount() -> int:
    return len(_machine()["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:
    gpu: dict[str, Any] = _machine()["gpus"][index]
    if gpu["lost"]:
        raise NVMLError("GPU is lost")
    return {**gpu, "index": index}


def nvmlDeviceGetIndex(handle: dict[str, Any]) -> int:
    return int(handle["index"])


def nvmlDeviceGetUUID(handle: dict[str, Any]) -> str:
    return str(handle["uuid"])


def nvmlDeviceGetName(handle: dict[str, Any]) -> str:
    return "NVIDIA A100-SXM4-80GB"


def nvmlDeviceGetMigMode(device: dict[str, Any]) -> list[int]:
    if device["migs"] is None:
        raise NVMLError_NotSupported("Not Supported")
    return [int(device["enabled"])] * 2


def nvmlDeviceGetMaxMigDeviceCount(device: dict[str, Any]) -> int:
    if device["migs"] is None:
        raise NVMLError_NotSupported("Not Supported")
    return len(device["migs"])


def nvmlDeviceGetMigDeviceHandleByIndex(device: dict[str, Any], index: int) -> dict[str, Any]:
    mig: dict[str, Any] | None = device["migs"][index]
    if mig is None:
        raise NVMLError_NotFound("Not Found")
    return mig


def nvmlDeviceGetMemoryInfo(handle: dict[str, Any]) -> SimpleNamespace:
    machine = _machine()
    with Path(os.environ["FAKE_NVML"], "memory_reads").open("a") as reads:
        reads.write(f"{handle['uuid']}\n")
    time.sleep(machine["seconds"])
    if machine["memory_failure"]:
        raise NVMLError(machine["memory_failure"])
    if handle["total"] is None:
        raise NVMLError_NoPermission("Insufficient Permissions")
    return SimpleNamespace(total=handle["total"], free=handle["free"])
