"""Which GPUs a run may use, by CUDA_VISIBLE_DEVICES, and whether a job can ever have as many as it needs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from imageevalkit.errors import UserError
from imageevalkit.launch import nvidia_smi
from imageevalkit.launch.nvidia_smi import Device

# how schedulers and people say that there is none
_NO_GPU = ("-1", "NoDevFiles", "none", "void")


class Gpu(NamedTuple):
    """A GPU or MIG device: ``name`` as CUDA_VISIBLE_DEVICES spells it, ``key`` (UUID) the same for all."""

    name: str
    key: str

    @property
    def is_mig(self) -> bool:
        """Whether it is a part of a GPU."""
        return self.key.startswith("MIG-")


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that ``environ`` allows, in its order and naming; none where there is no ``nvidia-smi``.

    A GPU in MIG mode stands for its MIG devices, in its place.

    Raises:
        UserError: ``nvidia-smi`` fails, or does not know a UUID of CUDA_VISIBLE_DEVICES or its first name, or there is
            nothing but GPUs in MIG mode that nobody has divided.
    """
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None and not allowed.strip():
        return []
    devices = nvidia_smi.devices(environ)
    if not devices:
        return []
    meant: list[Device] = []
    found: dict[str, Gpu] = {}
    for name in _all_names(devices) if allowed is None else allowed.split(","):
        device, gpus = _meant(name.strip(), devices)
        if device is None:
            break  # CUDA too ignores everything from the first name it does not know
        meant.append(device)
        for gpu in gpus:
            found.setdefault(gpu.key, gpu)
    if not meant and allowed is not None and allowed.strip() not in _NO_GPU:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={allowed.strip()} names none of this machine's GPUs "
            f"({', '.join(device.index for device in devices)}); to run without GPUs: CUDA_VISIBLE_DEVICES="
        )
    if meant and not found:
        raise UserError(
            f"GPU {meant[0].index} is in MIG mode and has no MIG devices: make some (nvidia-smi mig -cgi … -C), "
            "or run without GPUs: CUDA_VISIBLE_DEVICES="
        )
    return list(found.values())


def fitting(gpus: Iterable[Gpu], count: int) -> list[Gpu]:
    """Those of ``gpus`` of which a process can use ``count`` at once: of several, whole ones.

    The MIG User Guide, "CUDA Device Enumeration": a process enumerates a single MIG device.
    """
    return [gpu for gpu in gpus if count <= 1 or not gpu.is_mig]


def too_few(gpus: Sequence[Gpu], count: int) -> str:
    """Why a process can never have ``count`` of ``gpus``; empty when it can."""
    there = len(fitting(gpus, count))
    if there >= count:
        return ""
    if len(gpus) > there:
        return (
            f"a process sees only one MIG device, and of whole GPUs this machine shows {there}: "
            "take one, on a MIG device that is large enough"
        )
    return f"this machine shows {there} (nvidia-smi and CUDA_VISIBLE_DEVICES decide)"


def spell(gpus: Sequence[Gpu]) -> str:
    """``gpus`` for a message: ``GPUs 0, 1``, or their UUIDs."""
    names = ", ".join(gpu.name for gpu in gpus)
    if not all(gpu.name.isdecimal() for gpu in gpus):
        return names
    return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {names}"


def _all_names(devices: Sequence[Device]) -> list[str]:
    # CUDA hides whole GPUs where it shows MIG devices: an index would count something else there
    by_index = all(device.migs is None for device in devices)
    return [device.index if by_index else device.uuid for device in devices]


def _meant(name: str, devices: Sequence[Device]) -> tuple[Device | None, list[Gpu]]:
    """What ``name`` of CUDA_VISIBLE_DEVICES is: its GPU, and the devices that a job can be given."""
    if name.startswith("MIG-"):
        device, uuid = _mig(name, devices)
        return device, [Gpu(name, uuid)]
    if name.startswith("GPU-"):
        named = [device for device in devices if device.uuid.startswith(name)]
        if len(named) != 1:
            raise _unknown(name, len(named))
    else:
        named = [device for device in devices if device.index == name]
    if not named:
        return None, []
    [device] = named
    if device.migs is None:
        return device, [Gpu(name, device.uuid)]
    return device, [Gpu(mig, mig) for mig in device.migs.values()]


def _mig(name: str, devices: Sequence[Device]) -> tuple[Device, str]:
    known = [
        (device, mig) for device in devices for mig in (device.migs or {}).values() if mig.startswith(name)
    ]
    exact = [(device, mig) for device, mig in known if mig == name]
    if len(exact or known) == 1:
        return (exact or known)[0]
    raise _unknown(name, len(known))


def _unknown(name: str, matches: int) -> UserError:
    what = f"fits {matches} of the devices" if matches else "is none of the devices"
    return UserError(f"CUDA_VISIBLE_DEVICES names {name}, which {what} that nvidia-smi -L shows")


@functools.cache
def visible() -> list[Gpu]:
    """The GPUs this run may use; asked only when something wants one (a login node's nvidia-smi may fail)."""
    return visible_gpus()


def one_if_any() -> int:
    """A GPU for what is fast on one and runs without."""
    return min(1, len(visible()))


def require(count: int, who: str) -> int:
    """``count``. Raises UserError (``who`` begins it) when a process can never have as many GPUs."""
    if count and (problem := too_few(visible(), count)):
        raise UserError(f"{who} {count} GPU(s), but {problem}")
    return count


def in_replicas(each: int, replicas: int | None) -> int:
    """GPUs that a job of replicas of ``each`` can use; ``replicas`` bounds them."""
    if not each:
        return 0
    there = len(fitting(visible(), each)) // each
    return each * max(1, there if replicas is None else min(there, replicas))


def mapped(count: str, where: str) -> int | None:
    """The entry ``count`` of a map of GPUs in config.sh; None when it is empty. Raises UserError: no whole number."""
    if not count.strip():
        return None
    if not count.strip().isdecimal():
        raise UserError(f"{where} in config.sh is '{count}': use a whole number")
    return int(count)
