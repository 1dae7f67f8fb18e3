"""The GPUs of a run: leases on them, which no two runs share, and which of them its jobs can have now."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imageevalkit.errors import UserError
from imageevalkit.launch.gpus import Gpu, fitting, spell, too_few
from imageevalkit.launch.nvidia_smi import Memory, MemoryWatch, MinFreeMemory
from imageevalkit.locks import open_lock, take_lock, with_owner

# Not TMPDIR: every run of every user on the machine must look in the same place, and clusters set TMPDIR
# per job.
LEASES = Path("/tmp/imageevalkit-gpus")


@dataclass(frozen=True)
class Lease:
    """GPUs held by a job. ``fds`` hold the locks: they are free when no process has them open."""

    gpus: list[Gpu]
    fds: list[int]

    def environ(self) -> dict[str, str]:
        """What makes a job see exactly these GPUs, in the naming that the run was given."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.name for gpu in self.gpus)}
        if any(gpu.name.isdecimal() for gpu in self.gpus):
            # The lock and the memory are those of nvidia-smi's index; CUDA's own order, and a user's, may be another.
            # Not UUIDs: vLLM reads a number from each name (its issues 13815, 20939, 41848).
            visible["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return visible

    def release(self) -> None:
        """Close this process's descriptors; a guard that still has them keeps the GPUs."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def lock(gpu: Gpu, folder: Path = LEASES) -> int | None:
    """A descriptor that holds the lock on ``gpu``, or None while somebody else has it.

    Raises:
        UserError: the lock folder cannot be used.
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
    """Who holds the lock on ``gpu``: ``another run (process 4711 of alice)``, as far as the system tells."""
    try:
        file = (folder / _file_name(gpu)).lstat()
        place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        # number, FLOCK, ADVISORY, WRITE, process, device:inode, first and last byte; a waiter has "->" before them
        pids = [words[4] for words in map(str.split, locks) if words[1] == "FLOCK" and words[5] == place]
        user = pwd.getpwuid(Path("/proc", pids[0]).stat().st_uid).pw_name
    except (OSError, IndexError, KeyError):  # not Linux, another container's, or a launcher that was killed
        return "another run"
    return f"another run (process {pids[0]} of {user})"


def _file_name(gpu: Gpu) -> str:
    return gpu.key.replace("/", "_")


def _open(folder: Path, path: Path) -> int:
    """Open a lock file that belongs to whoever came first, without the right to write anyone else's."""
    try:
        folder.mkdir()
        folder.chmod(0o1777)  # past the umask: the next user makes files here too
    except FileExistsError:
        pass
    # a link in its place may lead to where other runs do not look
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return _open_within(within, path)
    finally:
        os.close(within)


def _open_within(folder: int, path: Path) -> int:
    # flock needs no write access. O_CREAT only where there is no file: fs.protected_regular refuses it on
    # another user's file in a sticky folder.
    flags = os.O_RDONLY
    try:
        return open_lock(path, flags, folder=folder)
    except FileNotFoundError:
        pass
    try:
        fd = open_lock(path, flags | os.O_CREAT | os.O_EXCL, 0o644, folder)
    except FileExistsError:
        return open_lock(path, flags, folder=folder)
    os.fchmod(fd, 0o644)  # past the umask: other users must be able to open it
    return fd


# The driver gives a process's memory back after the process has gone; 80 GiB take a moment.
_FREEING = 20.0
_ASK_HOLDER_EVERY = 1.0


class GpuPool:
    """The GPUs in ``gpus``, of which a job is given only those that nobody else uses, unless ``shares``.

    Nobody: no other run has the lease, and ``min_free`` of the memory is free.
    """

    def __init__(
        self, gpus: Sequence[Gpu], min_free: MinFreeMemory, shares: bool = False, folder: Path = LEASES
    ) -> None:
        self.gpus = gpus
        self._min_free = min_free
        self._shares = shares
        self._folder = folder
        self._watch = MemoryWatch()
        self.ours: set[Gpu] = set()
        self._released: dict[Gpu, float] = {}
        self._told: dict[Gpu, str] = {}
        self._too_small: dict[Gpu, str] = {}
        self._holders: dict[Gpu, tuple[float, str]] = {}

    def offer(self) -> Offer:
        """What can be had at this moment."""
        return Offer(self)

    def never(self, count: int) -> str:
        """Why a process can never have ``count`` of these GPUs; empty when it can."""
        problem = too_few(self.gpus, count)
        if problem or not self._too_small:
            return problem
        large = [gpu for gpu in fitting(self.gpus, count) if gpu not in self._too_small]
        return "; ".join(_grouped(self._too_small)) if len(large) < count else ""

    def give_back(self, lease: Lease) -> None:
        """The job that had ``lease`` has ended."""
        lease.release()
        self.ours.difference_update(lease.gpus)
        self._released.update(dict.fromkeys(lease.gpus, time.monotonic()))

    def close(self) -> None:
        """No more GPUs are wanted."""
        self._watch.close()

    def look(self) -> tuple[dict[Gpu, list[int]], dict[Gpu, str]]:
        """The GPUs that nobody uses, locked by these descriptors, and why the others cannot be had.

        Raises:
            UserError: nvidia-smi fails, or the lock folder cannot be used.
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
            unlock(free.values())
            raise
        for gpu in kept.keys() & free.keys():
            unlock([free.pop(gpu)])
        return free, kept

    def _in_use(self, free: Iterable[Gpu]) -> dict[Gpu, str]:
        """Those of ``free`` GPUs on which somebody who takes no lease has memory."""
        told = self._watch.read(max(self._released.values(), default=float("-inf")))
        if told is None:
            return {gpu: self._told.get(gpu, "nvidia-smi is asked for its free memory") for gpu in free}
        found = ((gpu, self._problem(gpu, told[gpu.key])) for gpu in free if gpu.key in told)
        self._told = {gpu: problem for gpu, problem in found if problem}
        return self._told

    def _problem(self, gpu: Gpu, memory: Memory) -> str:
        needed = self._min_free.of(memory.total)
        if memory.total < needed:
            self._too_small[gpu] = (
                f"{memory.total / 1024:.1f} GiB in all, less than GPU_MIN_FREE_MEMORY={self._min_free.text}"
            )
            return self._too_small[gpu]
        if memory.free >= needed:
            return ""
        if time.monotonic() - self._released.get(gpu, float("-inf")) < _FREEING:
            return f"{memory}, being freed after the job before"
        return f"{memory} by another process (GPU_MIN_FREE_MEMORY={self._min_free.text})"

    def _holder(self, gpu: Gpu) -> str:
        now = time.monotonic()
        asked, known = self._holders.get(gpu, (float("-inf"), ""))
        if now - asked > _ASK_HOLDER_EVERY:
            asked, known = now, holder(gpu, self._folder)
            self._holders[gpu] = (asked, known)
        return known


@dataclass
class Share:
    """GPUs set aside for a job: a multiple of ``unit``, at most ``most``."""

    unit: int
    most: int
    gpus: list[Gpu] = field(default_factory=list)


class Offer:
    """The GPUs that can be had at one moment; those that nobody takes are free again at the end of the ``with``."""

    def __init__(self, pool: GpuPool) -> None:
        self._pool = pool
        self._locks: dict[Gpu, list[int]] = {}
        self._kept: dict[Gpu, str] = {}
        self._free: list[Gpu] | None = None
        self._shares: list[Share] = []

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, *_: object) -> None:
        unlock(self._locks.values())

    def reserve(self, unit: int, most: int) -> Share | None:
        """``unit`` GPUs for one job, or None while fewer are free; more up to ``most`` come by :meth:`grow`.

        Raises:
            UserError: nvidia-smi fails, or the lock folder cannot be used.
        """
        share = Share(unit, most)
        if unit:
            share.gpus = self._take(unit)
            if not share.gpus:
                return None
        self._shares.append(share)
        return share

    def grow(self) -> None:
        """Deal out what is left: a replica's GPUs to each job in turn, the first ones first."""
        growing = [share for share in self._shares if share.unit]
        while growing:
            for share in list(growing):
                more = self._take(share.unit) if len(share.gpus) + share.unit <= share.most else []
                share.gpus += more
                if not more:
                    growing.remove(share)

    def lease(self, share: Share) -> Lease:
        """The GPUs of ``share`` for its job."""
        held = Lease(share.gpus, [fd for gpu in share.gpus for fd in self._locks.pop(gpu)])
        self._pool.ours.update(held.gpus)
        return held

    def why_not(self, unit: int) -> str:
        """Why ``unit`` GPUs could not be reserved; empty when jobs of this run have them, and will end."""
        ours = self._pool.ours | {gpu for share in self._shares for gpu in share.gpus}
        soon = [gpu for gpu in fitting(self._pool.gpus, unit) if gpu in ours or gpu in (self._free or [])]
        if len(soon) >= unit:
            return ""
        kept = {gpu: self._kept[gpu] for gpu in fitting(self._kept, unit)}
        return "; ".join([f"needs {'a GPU' if unit == 1 else f'{unit} GPUs'}", *_grouped(kept)])

    def _take(self, count: int) -> list[Gpu]:
        if self._free is None:
            self._locks, self._kept = self._pool.look()
            self._free = list(self._locks)
        taken = fitting(self._free, count)[:count]
        if len(taken) < count:
            return []
        for gpu in taken:
            self._free.remove(gpu)
        return taken


def unlock(locks: Iterable[Sequence[int]]) -> None:
    """Close the descriptors that hold locks."""
    for fds in locks:
        for fd in fds:
            os.close(fd)


def _grouped(reasons: dict[Gpu, str]) -> list[str]:
    """One clause for each reason, with all GPUs that it keeps."""
    gpus: dict[str, list[Gpu]] = {}
    for gpu, reason in reasons.items():
        gpus.setdefault(reason, []).append(gpu)
    return [f"{spell(several)}: {reason}" for reason, several in gpus.items()]
