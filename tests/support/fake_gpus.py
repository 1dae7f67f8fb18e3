"""GPUs of a fake machine, which a test may change while somebody runs: the fake ``pynvml`` reads them from a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GIB = 1 << 30
RESERVED = 1 << 20  # bytes: the driver keeps a little for itself


@dataclass
class FakeGpu:
    """A GPU or MIG device with its memory in bytes (None: not reported).

    ``migs`` are MIG devices by their places; None: the GPU has no MIG mode.
    """

    uuid: str
    total: int | None = 80 * GIB
    free: int = 80 * GIB - RESERVED
    migs: Sequence[FakeGpu | None] | None = None
    enabled: bool = True
    lost: bool = False


def install_fake_gpus(folder: Path, gpus: Sequence[FakeGpu | str], failure: str = "") -> str:
    """Writes ``gpus`` (a text: the UUID of a GPU) to ``folder`` and returns it, as the value of FAKE_NVML.

    With ``failure``, the initialisation of NVML fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    described = [asdict(FakeGpu(gpu) if isinstance(gpu, str) else gpu) for gpu in gpus]
    _write(folder, {"failure": failure, "memory_failure": "", "seconds": 0, "gpus": described})
    return str(folder)


def divided(uuid: str, *migs: str) -> FakeGpu:
    """Returns a GPU in MIG mode with the MIG devices ``migs``."""
    return FakeGpu(uuid, total=None, migs=[FakeGpu(mig) for mig in migs])


def set_memory(folder: Path, used: Mapping[str, float | None]) -> None:
    """From now on so many GiB of the GPUs are in use, by UUID; None: the GPU reports no memory."""
    machine = _read(folder)
    for gpu in machine["gpus"]:
        if gpu["uuid"] in used:
            gib = used[gpu["uuid"]]
            gpu["total"] = None if gib is None else 80 * GIB
            gpu["free"] = 80 * GIB - RESERVED - round((gib or 0) * GIB)
    _write(folder, machine)


def lose(folder: Path, *indices: int) -> None:
    """From now on these GPUs do not answer."""
    machine = _read(folder)
    for index in indices:
        machine["gpus"][index]["lost"] = True
    _write(folder, machine)


def fail_memory(folder: Path, failure: str) -> None:
    """From now on memory cannot be read; it can again if ``failure`` is empty."""
    _write(folder, {**_read(folder), "memory_failure": failure})


def slow_memory(folder: Path, seconds: float) -> None:
    """From now on a GPU's memory takes so long to read."""
    _write(folder, {**_read(folder), "seconds": seconds})


def memory_reads(folder: Path, uuid: str) -> int:
    """Returns how often the memory of a GPU was read."""
    path = folder / "memory_reads"
    return path.read_text().splitlines().count(uuid) if path.exists() else 0


def _read(folder: Path) -> dict[str, Any]:
    machine: dict[str, Any] = json.loads((folder / "machine.json").read_text())
    return machine


def _write(folder: Path, machine: Mapping[str, Any]) -> None:
    part = folder / ".machine.json"
    part.write_text(json.dumps(machine))
    part.replace(folder / "machine.json")  # a reader sees the old GPUs or the new ones
