"""Errors a user meets, command lines among them, and the exit statuses of every command."""

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

from imageevalkit.guest_code import CodeExit, notice_ctrl_c
from imageevalkit.secrets import one_line
from imageevalkit.text import let_streams_take_any_text, printable


class ExitStatus(IntEnum):
    """Exit statuses; :func:`worst` orders them by gravity, not by number."""

    COMPLETE = 0
    FAILED = 1
    USAGE = 2
    """Nothing was started: a wrong option, name, environment or a cell in use."""
    INCOMPLETE = 3
    """The cell ran to its end, but items are refused, failed, blank, corrupt or unjudged."""
    FELL = 4
    """A score fell below the baseline of ``--gate``, or is lacking; the run itself did what it should."""
    LATER = 75
    """A job that follows another one has left no outcome, as it needs all that one makes; sysexits.h: EX_TEMPFAIL."""
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
    """The gravest of ``statuses`` (COMPLETE when there are none)."""
    return max(statuses, key=_GRAVITY.index, default=ExitStatus.COMPLETE)


class UserError(Exception):
    """A mistake the user can mend. Its text is one line: what is wrong, where, what to do next."""


class CellFailure(Exception):
    """A cell cannot go on (full disk, model does not load, missing file); other cells are unharmed."""


def suggest(name: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the nearest of ``known``, or an empty string."""
    # dashes are common to all options and would make any two of them look alike
    by_lower = {k.lower().lstrip("-"): k for k in known}
    close = difflib.get_close_matches(name.lower().lstrip("-"), by_lower, n=1, cutoff=0.6)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def unknown(what: str, name: str, known: Iterable[str], more: str = "") -> UserError:
    """To raise where a user's ``name`` is none of the ``known`` ones; ``more`` says what else it may be."""
    known = list(known)
    return UserError(f"unknown {what} '{name}'{suggest(name, known)}; known: {', '.join(known)}{more}")


def run_main(main: Callable[[], ExitStatus]) -> None:
    """Run a command's ``main`` and exit: a :class:`UserError` is one line on stderr and status 2.

    A main that leaves results must itself guard what it prints at the end (see :func:`say`): here a closed
    stdout only ends a listing.
    """
    let_streams_take_any_text()
    notice_ctrl_c()
    status = status_of(main)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # nobody reads the last words; what they say, and the status, stand
    except OSError as error:
        status = worst([status, _os_failure(error)])
    # what a broken stream still holds would make the interpreter complain, and its status 120, at exit
    sys.stdout = sys.stderr = None
    sys.exit(int(status))


def status_of(main: Callable[[], ExitStatus]) -> ExitStatus:
    """What ``main`` returns; where it raises what a user can mend or should know, that is one line on stderr."""
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
        return ExitStatus.COMPLETE  # the reader of a listing (head, less) went away: not an error of ours
    except OSError as error:
        return _os_failure(error)


def _os_failure(error: OSError) -> ExitStatus:
    complain(f"{error.strerror or error}: {error.filename or 'standard output'}")
    return ExitStatus.FAILED


def complain(text: str) -> None:
    """Say what is wrong, on stderr."""
    say(f"error: {text}", sys.stderr)


def show(text: str) -> None:
    """Print what a command is asked for, without what would steer the terminal. Raises OSError."""
    print(printable(text))  # noqa: T201


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a remark to ``stream`` (stdout), without what would steer the terminal, if anybody listens.

    A closed or full stream must not stop a run or change its status.
    """
    with contextlib.suppress(OSError):
        print(printable(text), file=stream, flush=True)


@functools.cache  # a run parses the same text several times, and may make several plans
def note_once(text: str) -> None:
    """Print a note to stderr, the first time that the process calls this with ``text``."""
    say(f"note: {text}", sys.stderr)


class Arguments(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises :class:`UserError`; options cannot be abbreviated."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def remedy_of_import(error: BaseException, environments: str) -> str:
    """Returns what to do if ``error`` is a missing package: ``environments`` is the map that names another environment.

    Empty for any other error.
    """
    if not isinstance(error, ModuleNotFoundError):
        return ""
    here = Path(sys.prefix)
    if here.resolve() == (_REPO / ".venv").resolve():
        return f"; it runs in the driver's environment .venv: name one with that package in {environments} (config.sh)"
    return f"; install that package in {here}, or name another environment in {environments} (config.sh)"


_REPO = Path(__file__).resolve().parents[1]
# where a user's own rules and datasets are
_CODE = ("benchmarks", "infer/custom_datasets/dataset_cls")


def said_of(error: Exception) -> str:
    """What ``error`` of a benchmark's code says, in one line, and the file and line that it came from."""
    raised = (error.__cause__ or error) if isinstance(error, CodeExit) else error
    places = [
        f" ({Path(frame.filename).relative_to(_REPO).as_posix()}, line {frame.lineno})"
        for frame in traceback.extract_tb(raised.__traceback__)
        if any(Path(frame.filename).is_relative_to(_REPO / folder) for folder in _CODE)
    ]
    return f"{type(error).__name__}: {one_line(error, 300)}{places[-1] if places else ''}"
