"""Resources of a process: CPU cores, open files (``ulimit -n``), and errors of the accelerator.

A run raises the limit on open files as far as needed. If the limit is reached, calls wait for a free
descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from imageevalkit.common.errors import UserError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# asyncio takes half of the start of a command that does not need it: it is imported where it is used
P = ParamSpec("P")
T = TypeVar("T")


def available_cores() -> int:
    """Returns the cores in this process's affinity mask (Linux), else all of the machine; at least 1."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_of(pid: int) -> str:
    """Returns the start time of process ``pid`` in clock ticks since boot; empty if there is no such process.

    The system reuses process ids; id and start time together identify one process.
    """
    with contextlib.suppress(OSError, IndexError):
        # proc(5): the program's name comes first, in brackets, and may itself hold blanks and brackets
        about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return about.rpartition(")")[2].split()[19]
    return ""


@functools.cache
def _threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(available_cores() + 1, "cpu")


async def on_cpu(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns or raises the result of ``work``, which runs in a thread pool, not in the event loop.

    asyncio's default threads also resolve host names: a resolver that hangs for one gateway must not delay
    images of another. More threads than cores would only keep more images in memory; zlib, hashing and fsync
    release the interpreter lock.
    """
    import asyncio

    call = functools.partial(work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads(), call)


# files being written or read, libraries loaded late; in addition two for each thread that resolves a name
_ASIDE = 40
_COMFORTABLE = 4096  # always requested: a dataset may keep a file open for each of its images
_RESOLVERS = 32  # the maximum of asyncio's threads on a machine with as many cores
LEAST = 128
"""Open files that any run needs: on a large machine, an API job uses about a hundred besides its requests."""
_USED_UP = (errno.EMFILE, errno.ENFILE)
_LOOK_AGAIN = 0.05
_PATIENCE = 60.0  # seconds; requests that end free their descriptors
_PATIENCE_IN_LOOP = 1.0  # requests of a blocked event loop cannot end; other threads continue


class Fit(NamedTuple):
    """The number of requests that may be in flight; ``reason`` explains a reduction."""

    requests: int
    reason: str = ""


def requests_that_fit(wanted: int, each: int = 1) -> Fit:
    """Returns how many of ``wanted`` requests may be in flight, if a request takes ``each`` descriptors.

    Raises:
        UserError: not even one fits.
    """
    beside = _in_use() + _ASIDE + 2 * min(_RESOLVERS, available_cores() + 4)
    limit = _raised(beside + wanted * each)
    fitting = min(wanted, (limit - beside) // each)
    if fitting < 1:
        raise UserError(_too_few(limit, beside + each))
    if fitting == wanted:
        return Fit(wanted)
    return Fit(
        fitting, f"NUM_WORKERS {wanted} → {fitting}: this shell allows {limit} open files (ulimit -Hn)"
    )


def require(files: int) -> None:
    """Raise the limit so that this process and its children may each open ``files`` files.

    Raises:
        UserError: the hard limit is lower.
    """
    limit = _raised(files)
    if limit < files:
        raise UserError(_too_few(limit, files))


def _too_few(limit: int, needed: int) -> str:
    return (
        f"this shell allows {limit} open files (ulimit -n) and the run needs at least {needed}: start it from a new "
        f"shell, where ulimit -n {max(1024, needed)} allows more"
    )


def _in_use() -> int:
    return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 - one of them is the listing's own


def _raised(wanted: int) -> int:
    """Returns the limit after raising it to ``wanted``, or as far as the hard limit allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = max(wanted, _COMFORTABLE)
    if hard != resource.RLIM_INFINITY:
        goal = min(goal, hard)
    if soft == resource.RLIM_INFINITY:
        return goal
    while goal > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
            return goal
        except (ValueError, OSError):  # macOS: the kernel's own limit may be below the hard limit
            goal = (goal + soft) // 2
    return soft


def are_used_up(error: BaseException) -> bool:
    """Returns whether ``error`` or its cause is a lack of free descriptors."""
    causes = list(_causes(error))
    if any(isinstance(each, OSError) and each.errno in _USED_UP for each in causes):
        return True
    # a resolver that cannot open its files reports an unknown name
    return any(isinstance(each, socket.gaierror) for each in causes) and not _is_one_free()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        for each in getattr(error, "exceptions", ()):  # an exception group; Python 3.10 has no such class
            yield from _causes(each)
        error = error.__cause__ or error.__context__


def _is_one_free() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in _USED_UP
    return True


@contextlib.contextmanager
def garbage_collection(on: bool) -> Iterator[None]:
    """Turn garbage collection on or off in the block. With 100,000 objects it takes a quarter of the time.

    When turned on, objects that exist by then are excluded.
    """
    if (before := gc.isenabled()) == on:
        yield
        return
    if on:
        gc.freeze()
    (gc.enable if on else gc.disable)()
    try:
        yield
    finally:
        (gc.enable if before else gc.disable)()


def when_one_is_free(act: Callable[[], T]) -> T:
    """Returns or raises the result of ``act``; retries for a minute while no descriptor is free.

    In an event loop, retries for one second only (see :func:`one_is_free`).
    """
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    give_up = time.monotonic() + (_PATIENCE_IN_LOOP if running and running() else _PATIENCE)
    while True:
        try:
            return act()
        except OSError as error:
            if error.errno not in _USED_UP or time.monotonic() > give_up:
                raise
        time.sleep(_LOOK_AGAIN)


async def one_is_free() -> None:
    """Return when a descriptor is free, or after a minute. The event loop's requests can end meanwhile."""
    import asyncio

    give_up = time.monotonic() + _PATIENCE
    while not _is_one_free() and time.monotonic() < give_up:
        await asyncio.sleep(_LOOK_AGAIN)


_DEVICE_ERROR = re.compile(r"CUDA error|cuDNN error|CUDNN_STATUS|NCCL error|Triton Error")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the accelerator is out of memory: a smaller batch or another device may work."""
    # torch.OutOfMemoryError of CUDA and others; MPS raises a plain RuntimeError
    text = str(error)
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in text or "ALLOC_FAILED" in text


def breaks_the_process(error: BaseException) -> bool:
    """Returns whether the error is permanent in this process: every later CUDA call fails too."""
    return type(error).__name__ == "AcceleratorError" or _DEVICE_ERROR.search(str(error)) is not None


def is_of_the_accelerator(error: BaseException) -> bool:
    """Returns whether the worker process must handle the error: the model itself may be usable."""
    return is_out_of_memory(error) or breaks_the_process(error)
