"""CPU work off the event loop, in threads of its own.

asyncio's default threads also resolve host names: a resolver that hangs for one gateway must not keep the images of
another from being proven and stored. More threads than cores would only hold more images at once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from imageevalkit.cores import available_cores

P = ParamSpec("P")
T = TypeVar("T")


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(available_cores() + 1, "cpu")


async def on_cpu(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work`` returns or raises; zlib, hashing and fsync release the interpreter lock."""
    call = functools.partial(work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads(), call)
