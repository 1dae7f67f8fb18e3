"""Calls foreign code (a model's class, a benchmark's dataset or rules): all its errors become exceptions.

Otherwise ``sys.exit()`` or a KeyboardInterrupt raised by such code would end the process, and with it all
other cells. The user's Ctrl-C still ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType

_interrupted = threading.Event()


class CodeExit(Exception):
    """Foreign code raised an exception that would have ended the process; the text names it."""


@contextmanager
def guest_code(cancellable: bool = False) -> Iterator[None]:
    """Run foreign code in a block: every error that leaves the block is an ``Exception``.

    ``cancellable``: a CancelledError passes through, for a coroutine whose task may be cancelled. Raises
    CodeExit in place of any error that would end more than the block.
    """
    try:
        yield
    except BaseException as error:
        if (failure := as_failure(error, cancellable)) is not error:
            raise failure from error
        raise


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Redirect what foreign code prints in a block, its programs and C libraries included, to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def as_failure(error: BaseException, cancellable: bool = False) -> BaseException:
    """Returns the error that leaves a :func:`guest_code` block after ``error``: itself, or a CodeExit."""
    if isinstance(error, (StopIteration, StopAsyncIteration)):  # a future cannot hold it
        failure = CodeExit(f"its code raised {type(error).__name__}")
    elif isinstance(error, Exception) or _is_ctrl_c(error) or (cancellable and _is_cancellation(error)):
        return error
    else:
        failure = CodeExit(_words(error))
    failure.__cause__ = error
    return failure


def _is_ctrl_c(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt) and _interrupted.is_set()


def _is_cancellation(error: BaseException) -> bool:
    import asyncio  # importing asyncio takes half of the start of a command that does not need it

    return isinstance(error, asyncio.CancelledError)


def _words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"its code called exit({'' if error.code is None else repr(error.code)})"
    text = f": {error}" if str(error) else ""
    return f"its code raised {type(error).__name__}{text}"


def notice_ctrl_c() -> None:
    """From now on, distinguish Ctrl-C from a KeyboardInterrupt raised by code. Call it in the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.set()
    raise KeyboardInterrupt
