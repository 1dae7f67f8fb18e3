"""The GPUs of this machine, read from NVML, and the GPUs that a run may use."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from imageevalkit.common.errors import UserError, say
from imageevalkit.plan.config import Config

T = TypeVar("T")

SECONDS = 60  # a driver that initialises many GPUs without persistence mode takes tens of seconds
_BYTES = 1 << 20


@dataclass(frozen=True)
class Device:
    """A GPU. ``migs`` are the UUIDs of its MIG devices; None if MIG mode is off."""

    index: str
    uuid: str
    migs: list[str] | None = None


class Memory(NamedTuple):
    """Memory of a GPU in MiB."""

    total: float
    free: float

    def __str__(self) -> str:
        return f"{(self.total - self.free) / 1024:.1f} of {self.total / 1024:.1f} GiB in use"


def devices() -> list[Device]:
    """Return all GPUs of the machine; empty if NVML is not installed. Raises UserError: NVML fails."""
    told, failed = _of_each(_device)
    for index, why in failed.items():
        _tell_left_out(index, why)
    return told


def memory() -> dict[str, Memory]:
    """Return the memory by UUID, without GPUs that report none. Raises UserError like :func:`devices`."""
    return {uuid: memory for found in _of_each(_memory)[0] for uuid, memory in found.items()}


def _of_each(ask: Callable[[Any, Any], T]) -> tuple[list[T], dict[int, str]]:
    """Return the result of ``ask`` for each GPU, and by index the errors of GPUs that do not answer.

    NVML also counts lost GPUs and GPUs that this user may not use. Raises UserError: no GPU answers.
    """
    import pynvml  # type: ignore[import-untyped]

    told, failed = list[T](), dict[int, str]()
    try:
        # the flag: NVML must not fail on a node where Slurm gave the job no GPU
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                told.append(ask(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)))
            except pynvml.NVMLError as error:
                failed[index] = str(error)
    except pynvml.NVMLError_LibraryNotFound:  # no driver
        return [], {}
    except pynvml.NVMLError as error:
        raise _failure(error) from None
    if failed and not told:
        raise _failure(next(iter(failed.values())))
    return told, failed


def _device(nvml: Any, gpu: Any) -> Device:
    parts = [nvml.nvmlDeviceGetUUID(mig) for mig in _mig_handles(nvml, gpu)]
    index, uuid = str(nvml.nvmlDeviceGetIndex(gpu)), nvml.nvmlDeviceGetUUID(gpu)
    return Device(index, uuid, parts if _is_divided(nvml, gpu) else None)


def _memory(nvml: Any, gpu: Any) -> dict[str, Memory]:
    """Return the memory of a GPU and of its MIG devices by UUID, without devices that report none."""
    found: dict[str, Memory] = {}
    for handle in (gpu, *_mig_handles(nvml, gpu)):
        with contextlib.suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            told = nvml.nvmlDeviceGetMemoryInfo(handle)
            found[nvml.nvmlDeviceGetUUID(handle)] = Memory(told.total / _BYTES, told.free / _BYTES)
    return found


@functools.cache
def _tell_left_out(index: int, why: str) -> None:
    """Print a note, cached to print it once: the planner and the launcher both read the GPUs."""
    say(f"GPU {index} is left out: NVML failed ({why})", sys.stderr)


def _is_divided(nvml: Any, gpu: Any) -> bool:
    with contextlib.suppress(nvml.NVMLError_NotSupported):
        return bool(nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    return False


def _mig_handles(nvml: Any, gpu: Any) -> list[Any]:
    """Return the MIG devices of a GPU; empty if MIG mode is off."""
    found = []
    with contextlib.suppress(nvml.NVMLError_NotSupported):
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with contextlib.suppress(nvml.NVMLError_NotFound):
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))
    return found


def _failure(error: object) -> UserError:
    return UserError(f"NVML failed ({error}); repair the driver, or run without GPUs: CUDA_VISIBLE_DEVICES=")


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) *(%|MiB|GiB)?", re.IGNORECASE)
_MIB = {"mib": 1.0, "gib": 1024.0}


class MinFreeMemory(NamedTuple):
    """The memory that must be free on a GPU: ``share`` of it (0 to 1) or ``mib``; ``text`` is the setting."""

    text: str
    share: float = 0.0
    mib: float = 0.0

    @classmethod
    def parse(cls, text: str, where: str) -> MinFreeMemory:
        """Parse ``90%`` or ``20GiB``; 0 demands nothing. Raises UserError for anything else."""
        match = _AMOUNT.fullmatch(text.strip())
        number, unit = (float(match[1]), (match[2] or "").lower()) if match else (-1.0, "")
        if number == 0:
            return cls(text)
        if number > 0 and unit == "%" and number <= 100:
            return cls(text, share=number / 100)
        if number > 0 and unit in _MIB:
            return cls(text, mib=number * _MIB[unit])
        raise UserError(
            f"{where} is '{text}': use a percentage (90%) or an amount (20GiB); 0 asks for nothing"
        )

    def __bool__(self) -> bool:
        return bool(self.share or self.mib)

    def of(self, total: float) -> float:
        """Return the MiB that must be free on a GPU with ``total`` MiB."""
        return self.mib or self.share * total


def _asked(ask: Callable[[], T]) -> Future[T]:
    """Run ``ask`` in a thread of its own: the driver may hang, and nothing interrupts a call to it."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(ask())
        except Exception as error:
            future.set_exception(error)

    # a daemon thread: a hanging driver must not keep the launcher from ending
    threading.Thread(target=run, name="gpus", daemon=True).start()
    return future


def _hangs() -> UserError:
    return UserError(f"the GPU driver did not answer within {SECONDS} s; check it with nvidia-smi")


class MemoryWatch:
    """Reads GPU memory in a thread, so that the event loop can refresh the display meanwhile."""

    def __init__(self) -> None:
        self._question: Future[dict[str, Memory]] | None = None
        self._began = self._answer_began = self._stale_at = float("-inf")
        self._answer: dict[str, Memory] = {}

    def read(self, since: float) -> Mapping[str, Memory] | None:
        """Return recent memory by UUID, read after ``since`` (monotonic seconds); None if not known yet.

        If it returns None, call it again.

        Raises:
            UserError: The driver fails or hangs.
        """
        now = time.monotonic()
        if self._question is not None and self._question.done():
            done, self._question = self._question, None  # cleared: a failure is asked again
            self._answer, self._answer_began = done.result(), self._began
            # while a job waits, a slow driver must not be asked without pauses
            self._stale_at = now + min(10.0, max(2.0, 4 * (now - self._began)))
        elif self._question is not None and now - self._began >= SECONDS:
            raise _hangs()
        if self._answer_began > since and now < self._stale_at:
            return self._answer
        if self._question is None:
            self._question, self._began = _asked(memory), now
        return None


# values by which schedulers and users hide all GPUs
_NO_GPU = ("-1", "NoDevFiles", "none", "void")


class Gpu(NamedTuple):
    """A GPU or MIG device. ``name`` is its spelling in CUDA_VISIBLE_DEVICES, ``key`` is its UUID."""

    name: str
    key: str


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs that ``environ`` allows, in its order and naming; empty if there are none.

    The MIG devices of a GPU in MIG mode take its place.

    Raises:
        UserError: The driver fails, or does not know a UUID or the first name in CUDA_VISIBLE_DEVICES. Also
            if all allowed GPUs are in MIG mode without MIG devices.
    """
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None and not allowed.strip():
        return []
    try:
        there = _asked(devices).result(SECONDS)
    except TimeoutError:
        raise _hangs() from None
    if not there:
        return []
    meant: list[Device] = []
    found: dict[str, Gpu] = {}
    # CUDA hides whole GPUs if it shows MIG devices, and may hide a GPU that does not answer: an index would
    # then name another GPU
    by_index = all(device.migs is None and device.index == str(n) for n, device in enumerate(there))
    everything = [device.index if by_index else device.uuid for device in there]
    for name in everything if allowed is None else allowed.split(","):
        device, gpus = _meant(name.strip(), there)
        if device is None:
            break  # CUDA too ignores everything from the first name it does not know
        meant.append(device)
        for gpu in gpus:
            found.setdefault(gpu.key, gpu)
    if not meant and allowed is not None and allowed.strip() not in _NO_GPU:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={allowed.strip()} names none of this machine's GPUs "
            f"({', '.join(device.index for device in there)}); to run without GPUs: CUDA_VISIBLE_DEVICES="
        )
    if meant and not found:
        raise UserError(
            f"GPU {meant[0].index} is in MIG mode and has no MIG devices: make some (nvidia-smi mig -cgi … -C), "
            "or run without GPUs: CUDA_VISIBLE_DEVICES="
        )
    return list(found.values())


def fitting(gpus: Iterable[Gpu], count: int) -> list[Gpu]:
    """Return the ``gpus`` of which a process can use ``count`` at once: only whole GPUs if ``count`` > 1.

    The MIG User Guide, "CUDA Device Enumeration": a process enumerates a single MIG device.
    """
    return [gpu for gpu in gpus if count <= 1 or not gpu.key.startswith("MIG-")]


def too_few(gpus: Sequence[Gpu], count: int) -> str:
    """Return why a process can never have ``count`` of ``gpus``; empty if it can."""
    there = len(fitting(gpus, count))
    if there >= count:
        return ""
    if len(gpus) > there:
        return (
            f"a process sees only one MIG device, and of whole GPUs this machine shows {there}: "
            "take one, on a MIG device that is large enough"
        )
    return f"this machine shows {there} (its driver and CUDA_VISIBLE_DEVICES decide)"


def spell(gpus: Sequence[Gpu]) -> str:
    """Return ``gpus`` for a message: ``GPUs 0, 1``, or their UUIDs."""
    names = ", ".join(gpu.name for gpu in gpus)
    if not all(gpu.name.isdecimal() for gpu in gpus):
        return names
    return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {names}"


def _meant(name: str, devices: Sequence[Device]) -> tuple[Device | None, list[Gpu]]:
    """Return the GPU of ``name`` in CUDA_VISIBLE_DEVICES (None: unknown), and its devices for jobs."""
    by_name = {device.index: device for device in devices}
    if name.startswith(("GPU-", "MIG-")):
        by_name = {uuid: device for device in devices for uuid in (device.uuid, *(device.migs or ()))}
        fits = [name] if name in by_name else [uuid for uuid in by_name if uuid.startswith(name)]
        if len(fits) != 1:
            what = f"fits {len(fits)} of the devices" if fits else "is none of the devices"
            raise UserError(f"CUDA_VISIBLE_DEVICES names {name}, which {what} that nvidia-smi -L shows")
        device = by_name[fits[0]]
        if name.startswith("MIG-"):
            return device, [Gpu(name, fits[0])]
    elif name in by_name:
        device = by_name[name]
    else:
        return None, []
    if device.migs is None:
        return device, [Gpu(name, device.uuid)]
    return device, [Gpu(mig, mig) for mig in device.migs]


@functools.cache
def visible() -> list[Gpu]:
    """Return the GPUs that this run may use. Call it only if a job wants one: it may fail on a login node."""
    return visible_gpus()


@dataclass(frozen=True)
class Supply:
    """The GPUs that a job can have: the GPUs of this machine, or the ``per_node`` GPUs of a cluster node."""

    per_node: int | None = None

    @property
    def _there(self) -> list[Gpu]:
        if self.per_node is None:
            return visible()
        return [Gpu(str(n), f"GPU-{n}") for n in range(self.per_node)]

    def wanted(self, count: int | None, who: str = "") -> int:
        """Return ``count``. If it is None, return 1 if there is a GPU, else 0: the job runs without one, too.

        Raises UserError, which begins with ``who``: a process can never have so many GPUs.
        """
        if count is None:
            return min(1, len(self._there))
        if self.per_node is not None and count > self.per_node:
            raise UserError(f"{who} {count} GPU(s), but a node has {self.per_node} (SLURM_GPUS_PER_NODE)")
        if count and (problem := too_few(self._there, count)):
            raise UserError(f"{who} {count} GPU(s), but {problem}")
        return count

    def mapped(self, config: Config, variable: str, name: str, who: str) -> int | None:
        """Return the entry for ``name`` in a map of config.sh, or None. Raises like :meth:`wanted`."""
        count, where = config.map(variable).get(name, "").strip(), f"{variable}['{name}'] in config.sh"
        if not count:
            return None
        if not count.isdecimal():
            raise UserError(f"{where} is '{count}': use a whole number")
        return self.wanted(int(count), f"{where}: {who} needs")

    def in_replicas(self, each: int, replicas: int | None) -> int:
        """Return how many GPUs a job can use that has up to ``replicas`` replicas of ``each`` GPUs.

        If ``replicas`` is None, a job on a cluster asks for one replica: a second one may wait for hours.
        """
        if not each:
            return 0
        if self.per_node is not None and replicas is None:
            return each
        there = len(fitting(self._there, each)) // each
        return each * max(1, there if replicas is None else min(there, replicas))
