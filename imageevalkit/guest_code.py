"""Calling code of others (a model's class, a benchmark's dataset or rules): what it raises is a failure of its own.

``sys.exit()`` in a class, or a KeyboardInterrupt of its own making, would else end the process, and with it the cells
of everybody else. A user's Ctrl-C still does.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_interrupted = threading.Event()


class CodeExit(Exception):
    """Code of others raised what is no ordinary error; the text says what."""


@contextmanager
def guest_code(cancellable: bool = False) -> Iterator[None]:
    """A block that calls such code: every error that leaves it is an ``Exception``.

    ``cancellable``: a CancelledError is one of ours, as in a coroutine whose task may be cancelled. Raises CodeExit: in
    place of whatever would end more than the block.
    """
    try:
        yield
    except BaseException as error:
        if (failure := as_failure(error, cancellable)) is not error:
            raise failure from error
        raise


def as_failure(error: BaseException, cancellable: bool = False) -> BaseException:
    """What leaves a block of :func:`guest_code` that raised ``error``: itself, or a CodeExit that it caused."""
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
    import asyncio  # half of the start of a command that has no use for it

    return isinstance(error, asyncio.CancelledError)


def _words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"its code called exit({'' if error.code is None else repr(error.code)})"
    text = f": {error}" if str(error) else ""
    return f"its code raised {type(error).__name__}{text}"


def notice_ctrl_c() -> None:
    """From now on a Ctrl-C is told from a KeyboardInterrupt that somebody's code raises; in the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.set()
    raise KeyboardInterrupt
