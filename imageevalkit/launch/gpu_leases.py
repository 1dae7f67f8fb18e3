"""Leases on GPUs: locks by UUID, so that no two runs of any user on one machine share a GPU."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from imageevalkit.errors import UserError
from imageevalkit.launch.gpus import Gpu
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
