"""The GPUs of a run: leases that keep other runs off a GPU, and the GPUs that jobs can have now."""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imageevalkit.common.errors import UserError
from imageevalkit.common.locks import open_lock, take_lock, with_owner
from imageevalkit.plan.gpus import Gpu, Memory, MemoryWatch, MinFreeMemory, fitting, spell, too_few

# Not below TMPDIR, which clusters set per job: all runs of all users on a machine must use the same folder.
LEASES = Path("/tmp/imageevalkit-gpus")


@dataclass
class Lease:
    """The GPUs of a job: replicas of ``unit`` GPUs each, at most ``most`` GPUs.

    ``fds`` are the open lock files. A GPU is free when no process has its lock file open.
    """

    gpus: list[Gpu]
    fds: list[int]
    unit: int = 0
    most: int = 0

    def environ(self) -> dict[str, str]:
        """Return the variables that show a job exactly these GPUs, under the names that the run was given."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.name for gpu in self.gpus)}
        if any(gpu.name.isdecimal() for gpu in self.gpus):
            # The names are NVML's indices; by default CUDA may number GPUs differently.
            # Not UUIDs: vLLM reads a number from each name (its issues 13815, 20939, 41848).
            visible["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return visible

    def release(self) -> None:
        """Close the lock files in this process. If a guard still has them open, the GPUs stay locked."""
        while self.fds:
            os.close(self.fds.pop())


def lock(gpu: Gpu, folder: Path = LEASES) -> int | None:
    """Return a descriptor that holds the lock on ``gpu``; None while another process has the lock.

    Raises UserError: the lock folder cannot be used.
    """
    path = folder / _file_name(gpu)
    try:
        fd = _open(folder, path)
    except OSError as error:
        where = folder if folder.is_symlink() or not os.path.lexists(path) else path
        raise UserError(
            f"cannot use {with_owner(where)} to reserve GPUs ({error.strerror}): have it removed, or set "
            "SHARE_GPUS=true, which reserves none"
        ) from None
    try:
        take_lock(fd, path)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def holder(gpu: Gpu, folder: Path = LEASES) -> str:
    """Return who holds the lock on ``gpu``: ``another run (process 4711 of alice)``, or less if unknown."""
    try:
        file = (folder / _file_name(gpu)).lstat()
        place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        # number, FLOCK, ADVISORY, WRITE, process, device:inode, first, last byte; a waiter has "->" before it
        pids = [words[4] for words in map(str.split, locks) if words[1] == "FLOCK" and words[5] == place]
        user = pwd.getpwuid(Path("/proc", pids[0]).stat().st_uid).pw_name
    except (OSError, IndexError, KeyError):  # not Linux, a process in another container, or a killed launcher
        return "another run"
    return f"another run (process {pids[0]} of {user})"


def _file_name(gpu: Gpu) -> str:
    return gpu.key.replace("/", "_")  # older drivers have slashes in the UUIDs of MIG devices


def _open(folder: Path, path: Path) -> int:
    """Open the lock file at ``path`` for reading, or create it. It may belong to another user."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)  # despite the umask: other users create files here, too
    # not through a link: it may lead to a folder that other runs do not use
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # flock needs no write access. O_CREAT only if there is no file: fs.protected_regular refuses it on
        # another user's file in a sticky folder.
        with contextlib.suppress(FileNotFoundError):
            return open_lock(path, os.O_RDONLY, folder=within)
        try:
            fd = open_lock(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644, within)
        except FileExistsError:
            return open_lock(path, os.O_RDONLY, folder=within)
        os.fchmod(fd, 0o644)  # despite the umask: other users must be able to open it
        return fd
    finally:
        os.close(within)


# Seconds: the driver frees the memory of a process only after its end, and 80 GiB take a while.
_FREEING = 20.0
_ASK_HOLDER_EVERY = 1.0


class GpuPool:
    """The ``gpus`` of a run. Unless the run ``shares`` GPUs, a job only gets unused GPUs.

    A GPU is unused if no other run has its lock and ``min_free`` of its memory is free. ``ours`` are the GPUs
    of this run's jobs.
    """

    def __init__(
        self, gpus: Sequence[Gpu], min_free: MinFreeMemory, shares: bool = False, folder: Path = LEASES
    ) -> None:
        self.gpus = gpus
        self.ours: set[Gpu] = set()
        self._min_free = min_free
        self._shares = shares
        self._folder = folder
        self._watch = MemoryWatch()
        self._released: dict[Gpu, float] = {}
        self._told: dict[Gpu, str] = {}
        self._with_memory: set[Gpu] = set()
        self._useless: dict[Gpu, str] = {}
        self._holders: dict[Gpu, tuple[float, str]] = {}

    def never(self, count: int) -> str:
        """Return why a process can never have ``count`` of these GPUs; empty if it can."""
        problem = too_few(self.gpus, count)
        if problem or not self._useless:
            return problem
        useful = [gpu for gpu in fitting(self.gpus, count) if gpu not in self._useless]
        return "; ".join(_grouped(self._useless)) if len(useful) < count else ""

    def give_back(self, lease: Lease) -> None:
        """Take back the GPUs of a job that has ended."""
        lease.release()
        self.ours.difference_update(lease.gpus)
        self._released.update(dict.fromkeys(lease.gpus, time.monotonic()))

    def look(self) -> tuple[dict[Gpu, list[int]], dict[Gpu, str]]:
        """Return the unused GPUs with the descriptors of their locks, and the reasons why others are in use.

        Raises UserError: the driver fails, or the lock folder cannot be used.
        """
        free: dict[Gpu, list[int]] = {}
        kept: dict[Gpu, str] = {}
        try:
            for gpu in self.gpus:
                if gpu in self.ours:
                    continue
                if self._shares:
                    free[gpu] = []
                elif (fd := lock(gpu, self._folder)) is not None:
                    free[gpu] = [fd]
                else:
                    kept[gpu] = f"held by {self._holder(gpu)}"
            if free and self._min_free and not self._shares:
                kept |= self._in_use(free)
        except BaseException:
            _unlock(free)
            raise
        _unlock({gpu: free.pop(gpu) for gpu in kept.keys() & free.keys()})
        return free, kept

    def _in_use(self, free: Iterable[Gpu]) -> dict[Gpu, str]:
        """Return the ``free`` GPUs on which a process without a lock uses memory, with the reason."""
        told = self._watch.read(max(self._released.values(), default=float("-inf")))
        if told is None:
            return {gpu: self._told.get(gpu, "the driver is asked for its free memory") for gpu in free}
        found = ((gpu, self._problem(gpu, told.get(gpu.key))) for gpu in free)
        self._told = {gpu: problem for gpu, problem in found if problem}
        return self._told

    def _problem(self, gpu: Gpu, memory: Memory | None) -> str:
        self._useless.pop(gpu, None)
        if memory is None:  # some GPUs never report it; a GPU that stops reporting it is lost
            if gpu in self._with_memory:
                self._useless[gpu] = "does not answer any more (see nvidia-smi)"
            return self._useless.get(gpu, "")
        self._with_memory.add(gpu)
        needed, asked = self._min_free.of(memory.total), f"GPU_MIN_FREE_MEMORY={self._min_free.text}"
        if memory.total < needed:
            self._useless[gpu] = f"{memory.total / 1024:.1f} GiB in all, less than {asked}"
            return self._useless[gpu]
        if memory.free >= needed:
            return ""
        if time.monotonic() - self._released.get(gpu, float("-inf")) < _FREEING:
            return f"{memory}, being freed after the job before"
        return f"{memory} by another process ({asked})"

    def _holder(self, gpu: Gpu) -> str:
        now = time.monotonic()
        asked, known = self._holders.get(gpu, (float("-inf"), ""))
        if now - asked > _ASK_HOLDER_EVERY:
            asked, known = now, holder(gpu, self._folder)
            self._holders[gpu] = (asked, known)
        return known


class Offer:
    """The GPUs that are free at one moment. At the end of the ``with``, GPUs without a lease are unlocked."""

    def __init__(self, pool: GpuPool) -> None:
        self._pool = pool
        self._found: tuple[dict[Gpu, list[int]], dict[Gpu, str]] | None = None
        self._leases: list[Lease] = []

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._found:
            _unlock(self._found[0])

    def reserve(self, unit: int, most: int) -> Lease | None:
        """Return a lease on ``unit`` GPUs; None if fewer are free. :meth:`grow` may add more up to ``most``.

        Raises UserError: the driver fails, or the lock folder cannot be used.
        """
        lease = Lease([], [], unit, most)
        if unit and not self._extend(lease):
            return None
        self._leases.append(lease)
        return lease

    def grow(self) -> None:
        """Add the remaining GPUs to the leases: one replica to each in turn, in the order of reservation."""
        growing = [lease for lease in self._leases if lease.unit]
        while growing:
            growing = [lease for lease in growing if self._extend(lease)]

    def could(self, *counts: int) -> bool:
        """Return whether several jobs could get so many more GPUs each (``counts``) at the same time."""
        free = list(self._free())
        for count in counts:
            taken = fitting(free, count)[:count]
            if len(taken) < count:
                return False
            free = [gpu for gpu in free if gpu not in taken]
        return True

    def why_not(self, unit: int) -> str:
        """Return why ``unit`` GPUs could not be reserved; empty if jobs of this run will free them."""
        free, kept = self._found or ({}, {})
        soon = [gpu for gpu in fitting(self._pool.gpus, unit) if gpu in self._pool.ours or gpu in free]
        if len(soon) >= unit:
            return ""
        reasons = {gpu: kept[gpu] for gpu in fitting(kept, unit)}
        return "; ".join([f"needs {'a GPU' if unit == 1 else f'{unit} GPUs'}", *_grouped(reasons)])

    def _free(self) -> dict[Gpu, list[int]]:
        self._found = self._found or self._pool.look()
        return self._found[0]

    def _extend(self, lease: Lease) -> bool:
        """Add the GPUs of one replica to ``lease``. Return False if too few are free or it is full."""
        free = self._free()
        taken = fitting(free, lease.unit)[: lease.unit]
        if len(taken) < lease.unit or len(lease.gpus) + lease.unit > lease.most:
            return False
        for gpu in taken:
            lease.gpus.append(gpu)
            lease.fds += free.pop(gpu)
        self._pool.ours.update(taken)
        return True


def _unlock(locks: Mapping[Gpu, Iterable[int]]) -> None:
    for fds in locks.values():
        for fd in fds:
            os.close(fd)


def _grouped(reasons: Mapping[Gpu, str]) -> list[str]:
    """Return one clause for each reason, with all GPUs that it applies to."""
    gpus: dict[str, list[Gpu]] = {}
    for gpu, reason in reasons.items():
        gpus.setdefault(reason, []).append(gpu)
    return [f"{spell(several)}: {reason}" for reason, several in gpus.items()]
