"""Which GPUs this run may use, and leases on them, so that two runs on one machine never share one."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from imageevalkit.errors import UserError

# Not TMPDIR: every run of every user on the machine must look in the same place, and clusters set TMPDIR
# per job.
LEASES = Path("/tmp/imageevalkit-gpus")
_QUERY_SECONDS = 60  # a driver that initialises many GPUs without persistence mode takes tens of seconds


class Gpu(NamedTuple):
    """A GPU: ``name`` as CUDA_VISIBLE_DEVICES spells it (index, UUID or MIG id), ``key`` the same for all."""

    name: str
    key: str


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that ``environ`` allows, in its order and naming; none where there is no ``nvidia-smi``.

    Raises:
        UserError: ``nvidia-smi`` is there, but fails.
    """
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None and not allowed.strip():
        return []
    uuids = _query(environ)
    if allowed is None:
        return [Gpu(index, uuid) for index, uuid in uuids.items()]
    found: dict[str, Gpu] = {}
    for name in (part.strip() for part in allowed.split(",")):
        key = _key(name, uuids)
        if key is None:
            break  # CUDA too ignores everything from the first name it does not know
        found.setdefault(key, Gpu(name, key))
    return list(found.values())


def _key(name: str, uuids: Mapping[str, str]) -> str | None:
    if name.startswith("MIG-"):
        return name if uuids else None  # nvidia-smi's query lists whole GPUs only
    if name.startswith("GPU-"):
        return next((uuid for uuid in uuids.values() if uuid.startswith(name)), None)
    return uuids.get(name)


def _query(environ: Mapping[str, str]) -> dict[str, str]:
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUERY_SECONDS, env=dict(environ), check=True
        )
    except FileNotFoundError:
        return {}
    except subprocess.TimeoutExpired:
        raise UserError(
            f"nvidia-smi did not answer within {_QUERY_SECONDS} s; check the GPU driver"
        ) from None
    except subprocess.CalledProcessError as error:
        said = (error.stdout + error.stderr).strip().splitlines() or ["no message"]
        raise UserError(
            f"nvidia-smi failed ({said[-1]}); mend the driver, or run without GPUs: CUDA_VISIBLE_DEVICES="
        ) from None
    rows = (line.split(",") for line in done.stdout.splitlines() if "," in line)
    return {index.strip(): uuid.strip() for index, uuid in rows}


@dataclass(frozen=True)
class Lease:
    """GPUs held by this run. ``fds`` hold the locks: they are free when no process has them open."""

    gpus: list[Gpu]
    fds: list[int]

    def environ(self) -> dict[str, str]:
        """What makes a job see exactly these GPUs, in the naming that the run was given."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.name for gpu in self.gpus)}
        if self.gpus and "CUDA_VISIBLE_DEVICES" not in os.environ:
            # the names are nvidia-smi's indices then, and CUDA's own order is another on mixed machines
            visible["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return visible

    def release(self) -> None:
        """Close this process's descriptors; a guard that still has them keeps the GPUs."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def lease(gpus: Iterable[Gpu], count: int, folder: Path = LEASES) -> Lease | None:
    """Lock ``count`` of ``gpus``, or None (and nothing locked) while fewer are free.

    Raises:
        UserError: the lock folder cannot be used.
    """
    held = Lease([], [])
    for gpu, fd in _locks(gpus, folder) if count else ():
        held.gpus.append(gpu)
        held.fds.append(fd)
        if len(held.fds) == count:
            break
    if len(held.fds) < count:
        held.release()
        return None
    return held


def _locks(gpus: Iterable[Gpu], folder: Path) -> Iterator[tuple[Gpu, int]]:
    for gpu in gpus:
        try:
            fd = _open(folder, gpu.key.replace("/", "_"))
        except OSError as error:
            raise UserError(
                f"cannot use {error.filename or folder} to reserve GPUs ({error.strerror}); remove it"
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        yield gpu, fd


def _open(folder: Path, name: str) -> int:
    """Open a lock file that belongs to whoever came first, without the right to write anyone else's."""
    try:
        folder.mkdir()
        folder.chmod(0o1777)  # past the umask: the next user makes files here too
    except FileExistsError:
        pass
    path = folder / name
    # flock needs no write access. O_CREAT only where there is no file: fs.protected_regular refuses it on
    # another user's file in a sticky folder.
    flags = os.O_RDONLY | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(fd, 0o644)  # past the umask: other users must be able to open it
    return fd
