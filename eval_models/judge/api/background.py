"""A coroutine as a plain iterator: it runs in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_END = object()


def in_background(produce: Callable[[Callable[[T], None]], Awaitable[None]]) -> Iterator[T]:
    """What ``produce(give)`` gives, as it comes; then what it raises, if it does.

    Closing the iterator, or an interrupt while it waits, cancels the coroutine and waits for its end.
    """
    given: SimpleQueue[Any] = SimpleQueue()
    cancel: Future[Callable[[], object]] = Future()
    raised: list[BaseException] = []

    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task
        cancel.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        await produce(given.put)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # the caller's thread raises it
            raised.append(error)
        finally:
            given.put(_END)

    thread = threading.Thread(target=run, name="judge", daemon=True)
    thread.start()
    try:
        while (value := given.get()) is not _END:
            yield value
        if raised:
            raise raised[0]
    finally:
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                cancel.result()()
        thread.join()
