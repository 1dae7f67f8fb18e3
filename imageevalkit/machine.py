"""What a machine gives a process: cores, open files (``ulimit -n``), and an accelerator that may fail.

The limit on open files is raised as far as a run needs, and waited at where it is met all the same.
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
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from imageevalkit.errors import UserError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# asyncio, half of the start of a command that has no use for it, is imported where it is used
P = ParamSpec("P")
T = TypeVar("T")


def available_cores() -> int:
    """Cores in this process's affinity mask (Linux), else all of the machine; at least 1."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(available_cores() + 1, "cpu")


async def on_cpu(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work`` returns or raises, done off the event loop, in threads of its own.

    asyncio's default threads also resolve host names: a resolver that hangs for one gateway must not keep the images of
    another from being proven and stored. More threads than cores would only hold more images at once; zlib, hashing and
    fsync release the interpreter lock.
    """
    import asyncio

    call = functools.partial(work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads(), call)


# files being written or read, libraries that are loaded late; beside them two for every thread that looks up a name
_ASIDE = 40
_COMFORTABLE = 4096  # asked for in any case: a dataset may keep the file of each of its pictures open
_RESOLVERS = 32  # asyncio's threads at most, where there are as many cores
LEAST = 128
"""What any run needs: a job that asks an API has about a hundred beside its requests on a large machine."""
_USED_UP = (errno.EMFILE, errno.ENFILE)
_LOOK_AGAIN = 0.05
_PATIENCE = 60.0  # seconds; requests that end free their descriptors
_PATIENCE_IN_LOOP = 1.0  # no request ends while its event loop waits here, but other threads go on


class Fit(NamedTuple):
    """Requests that may be in flight; ``told`` says why they are fewer than were wanted."""

    requests: int
    told: str = ""


def requests_that_fit(wanted: int, each: int = 1) -> Fit:
    """How many of ``wanted`` requests may be in flight in this process, where one takes ``each`` descriptors.

    Raises:
        UserError: not even one.
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
    """Make sure that this process, and those it starts, may each have so many ``files`` open.

    Raises:
        UserError: they may not.
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
    """The limit, raised to ``wanted`` or as far as the hard one goes."""
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
        except (ValueError, OSError):  # macOS: the kernel's own limit may be below the hard one
            goal = (goal + soft) // 2
    return soft


def are_used_up(error: BaseException) -> bool:
    """Whether ``error``, or what caused it, is that no descriptor was free."""
    causes = list(_causes(error))
    if any(isinstance(each, OSError) and each.errno in _USED_UP for each in causes):
        return True
    # a resolver that cannot open its files says that the name is unknown
    return any(isinstance(each, socket.gaierror) for each in causes) and not _is_one_free()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        for each in getattr(error, "exceptions", ()):  # a group: Python 3.10 has none of its own
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
    """A block with it or without: among 100,000 objects that all stay, looking for some takes a quarter of the time.

    Where it is turned on, what is there by then is not looked at any more.
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
    """What ``act`` returns or raises; it is called again while no descriptor is free, for a minute at most.

    In an event loop for a second: see :func:`one_is_free`.
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
    """Return when a descriptor is free, or after a minute: an event loop's own requests can end meanwhile."""
    import asyncio

    give_up = time.monotonic() + _PATIENCE
    while not _is_one_free() and time.monotonic() < give_up:
        await asyncio.sleep(_LOOK_AGAIN)


_DEVICE_ERROR = re.compile(r"CUDA error|cuDNN error|CUDNN_STATUS|NCCL error|Triton Error")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the accelerator has no room left; less at once, or elsewhere, may work."""
    # torch.OutOfMemoryError of CUDA and others; MPS raises a plain RuntimeError
    text = str(error)
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in text or "ALLOC_FAILED" in text


def breaks_the_process(error: BaseException) -> bool:
    """Whether it is an error of the device itself: every later call of CUDA fails too, in this process."""
    return type(error).__name__ == "AcceleratorError" or _DEVICE_ERROR.search(str(error)) is not None


def is_of_the_accelerator(error: BaseException) -> bool:
    """Whether it is for the worker process, and not a reason why a model cannot be used."""
    return is_out_of_memory(error) or breaks_the_process(error)
