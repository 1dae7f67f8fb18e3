"""Read many images with several processes, each with its own model and one thread."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_connections
from pathlib import Path
from typing import NamedTuple

from eval_models.ocr.interface import TextReader
from eval_models.ocr.registry import make_reader
from imageevalkit.errors import CellFailure
from imageevalkit.images import CorruptImage

# In a row, without one image read: then it is the machine, not the images.
_MAX_DEATHS = 5


class Reading(NamedTuple):
    """One image's outcome: ``text``, or None and the one-line ``error``; ``seconds`` is the reading alone."""

    path: Path
    text: str | None
    error: str
    seconds: float


def read_many(reader: str, paths: Iterable[Path], workers: int) -> Iterator[Reading]:
    """Read ``paths`` with the reader of that name; outcomes come as they finish, in no particular order.

    A worker that dies (out of memory, a crash in native code) costs only the image it held, which is
    reported with an error; another worker takes its place.

    Raises:
        UserError: no such reader.
        CellFailure: the reader itself does not work here (a package is missing), or its processes keep dying.
    """
    make_reader(reader)
    deaths = 0
    todo = iter(paths)
    leash, hold = multiprocessing.Pipe(duplex=False)
    idle = [_worker(reader, leash) for _ in range(workers)]
    busy: dict[Future[Reading], tuple[ProcessPoolExecutor, Path]] = {}
    try:
        while True:
            while idle and (path := next(todo, None)) is not None:
                worker = idle.pop()
                try:
                    future = worker.submit(_read, path)
                except BrokenProcessPool:  # it died between two images
                    worker = _worker(reader, leash)
                    future = worker.submit(_read, path)
                busy[future] = (worker, path)
            if not busy:
                return
            done, _ = wait(busy, return_when=FIRST_COMPLETED)
            for future in done:
                worker, path = busy.pop(future)
                try:
                    reading = future.result()
                    deaths = 0
                except BrokenProcessPool:
                    deaths += 1
                    worker.shutdown()
                    worker = _worker(reader, leash)
                    reading = Reading(path, None, "the reading process died", 0.0)
                idle.append(worker)
                yield reading
                if deaths >= _MAX_DEATHS:
                    raise CellFailure(
                        f"text reader '{reader}': {deaths} processes died in a row, the last on {path}; "
                        "is there enough memory? Fewer workers need less"
                    )
    finally:
        hold.close()  # an interrupted run does not wait for the images in hand
        for worker in [*idle, *(worker for worker, _ in busy.values())]:
            worker.shutdown(cancel_futures=True)
        leash.close()


def _worker(reader: str, leash: Connection) -> ProcessPoolExecutor:
    # One executor per process: when a process dies, its executor breaks, and with one process per executor
    # that names the image and leaves the other readings alone. spawn: the parent has threads.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, _start, (reader, leash))


_reader: TextReader


def _start(reader: str, leash: Connection) -> None:
    global _reader
    # Ctrl-C reaches the whole process group; the parent ends this process, without a traceback from here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    _reader = make_reader(reader)


def _end_with_parent(leash: Connection) -> None:
    """End this process when the parent lets go of the pipe's other end, be it by its own sudden death."""
    wait_connections([leash])
    os._exit(1)


def _read(path: Path) -> Reading:
    start = time.monotonic()
    text, error = None, ""
    try:
        text = _reader.read(path)
    except CellFailure:
        raise
    except CorruptImage as problem:
        error = f"unreadable image: {problem}"
    except Exception as problem:  # whatever the reader's libraries raise costs this image, not the cell
        error = f"{type(problem).__name__}: {problem}".splitlines()[0]
    return Reading(path, text, error, time.monotonic() - start)
