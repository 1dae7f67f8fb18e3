"""Errors that users see, the command-line parser, and the exit statuses of all commands."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import sys
import traceback
from collections.abc import Callable, Iterable
from enum import IntEnum
from pathlib import Path
from typing import NoReturn, TextIO

from imageevalkit.common.guest_code import CodeExit, notice_ctrl_c
from imageevalkit.common.redaction import one_line
from imageevalkit.common.text import let_streams_take_any_text, printable


class ExitStatus(IntEnum):
    """Exit statuses; :func:`worst` orders them by gravity, not by number."""

    COMPLETE = 0
    FAILED = 1
    USAGE = 2
    """Nothing was started: a wrong option, name or environment, or a cell in use."""
    INCOMPLETE = 3
    """The cell ran to its end, but items are refused, failed, blank, corrupt or not judged."""
    FELL = 4
    """A score is below the baseline of ``--gate`` or is missing; the run itself succeeded."""
    LATER = 75
    """A job that follows another left no outcome: it needs all its images. sysexits.h: EX_TEMPFAIL."""
    INTERRUPTED = 130
    TERMINATED = 143


_GRAVITY = (
    ExitStatus.COMPLETE,
    ExitStatus.INCOMPLETE,
    ExitStatus.LATER,
    ExitStatus.FELL,
    ExitStatus.FAILED,
    ExitStatus.USAGE,
    ExitStatus.TERMINATED,
    ExitStatus.INTERRUPTED,
)


def worst(statuses: Iterable[ExitStatus]) -> ExitStatus:
    """Returns the gravest of ``statuses``; COMPLETE if there are none."""
    return max(statuses, key=_GRAVITY.index, default=ExitStatus.COMPLETE)


class UserError(Exception):
    """A mistake that the user can correct. The text is one line: what is wrong, where, what to do."""


class CellFailure(Exception):
    """A cell cannot continue (full disk, model does not load, missing file); other cells can."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns ``" (did you mean 'x'?)"`` for the closest of ``known``, or an empty string."""
    # without dashes: all options have them, which would make any two look similar
    by_lower = {k.lower().lstrip("-"): k for k in known}
    close = difflib.get_close_matches(name.lower().lstrip("-"), by_lower, n=1, cutoff=0.6)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def unknown(what: str, name: str, known: Iterable[str], more: str = "") -> UserError:
    """Returns the error for a ``name`` that is not in ``known``; ``more`` lists other valid values."""
    known = list(known)
    return UserError(f"unknown {what} '{name}'{suggest(name, known)}; known: {', '.join(known)}{more}")


def run_main(main: Callable[[], ExitStatus]) -> None:
    """Run a command's ``main`` and exit. A :class:`UserError` becomes one line on stderr and status 2.

    A ``main`` that writes results must guard its last prints itself (see :func:`say`): here a closed stdout
    only ends a listing.
    """
    let_streams_take_any_text()
    notice_ctrl_c()
    status = status_of(main)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # the reader is gone; the status stays
    except OSError as error:
        status = worst([status, _os_failure(error)])
    # else unwritten data in a broken stream makes the interpreter complain at exit, with status 120
    sys.stdout = sys.stderr = None
    sys.exit(int(status))


def status_of(main: Callable[[], ExitStatus]) -> ExitStatus:
    """Returns the status of ``main``. An error that the user can correct becomes one line on stderr."""
    try:
        return main()
    except UserError as error:
        complain(str(error))
        return ExitStatus.USAGE
    except CellFailure as error:
        complain(str(error))
        return ExitStatus.FAILED
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        return ExitStatus.COMPLETE  # the reader of a listing (head, less) was closed: not an error
    except OSError as error:
        return _os_failure(error)


def _os_failure(error: OSError) -> ExitStatus:
    complain(f"{error.strerror or error}: {error.filename or 'standard output'}")
    return ExitStatus.FAILED


def complain(text: str) -> None:
    """Print an error to stderr."""
    say(f"error: {text}", sys.stderr)


def show(text: str) -> None:
    """Print a command's output without terminal control sequences. Raises OSError."""
    print(printable(text))  # noqa: T201


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a remark to ``stream`` (default stdout) without terminal control sequences.

    A closed or full stream must not stop a run or change its status.
    """
    with contextlib.suppress(OSError):
        print(printable(text), file=stream, flush=True)


@functools.cache  # a run parses the same text several times, and may make several plans
def note_once(text: str) -> None:
    """Print a note to stderr, once per process for each ``text``."""
    say(f"note: {text}", sys.stderr)


class Arguments(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises :class:`UserError` and accepts no abbreviated options."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def remedy_of_import(error: BaseException, environments: str) -> str:
    """Returns what to do if ``error`` is a missing package; empty for any other error.

    ``environments`` is the name of the map in config.sh that selects another environment.
    """
    if not isinstance(error, ModuleNotFoundError):
        return ""
    here = Path(sys.prefix)
    if here.resolve() == (_REPO / ".venv").resolve():
        return f"; it runs in the driver's environment .venv: name one with that package in {environments} (config.sh)"
    return f"; install that package in {here}, or name another environment in {environments} (config.sh)"


_REPO = Path(__file__).resolve().parents[2]
# the folders of users' own rules and datasets
_CODE = ("benchmarks", "infer/custom_datasets/dataset_cls")


def said_of(error: Exception) -> str:
    """Returns the text of ``error`` from a benchmark's code on one line, with its file and line number."""
    raised = (error.__cause__ or error) if isinstance(error, CodeExit) else error
    places = [
        f" ({Path(frame.filename).relative_to(_REPO).as_posix()}, line {frame.lineno})"
        for frame in traceback.extract_tb(raised.__traceback__)
        if any(Path(frame.filename).is_relative_to(_REPO / folder) for folder in _CODE)
    ]
    return f"{type(error).__name__}: {one_line(error, 300)}{places[-1] if places else ''}"
