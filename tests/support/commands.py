"""The commands ``eval.sh`` and ``utils/prefetch.sh`` as function calls, for runs that start no job."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from imageevalkit.cli import __main__ as evaluation
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError


class Ended(NamedTuple):
    """The exit status of the command, and what it prints on stdout and as its error."""

    status: int
    said: str
    error: str


def eval_here(*words: str | Path, **config: str) -> Ended:
    """Run ``eval.sh`` with ``words`` in this process; ``config`` are scalars of config.sh."""
    return _run(evaluation.main, words, config)


def prefetch_here(*words: str | Path, **config: str) -> Ended:
    """Run ``utils/prefetch.sh`` with ``words`` in this process; ``config`` are scalars of config.sh."""
    from imageevalkit.extras.prefetch import __main__ as prefetch  # an extra, which a tree may lack

    return _run(prefetch.main, words, config)


def _run(main: Callable[[], ExitStatus], words: tuple[str | Path, ...], config: dict[str, str]) -> Ended:
    reader, writer = os.pipe()
    parts = [part for name, value in config.items() for part in ("scalar", name, "1", value)]
    os.write(writer, "".join(f"{part}\0" for part in [*parts, "end"]).encode())
    os.close(writer)
    usual, said = signal.getsignal(signal.SIGINT), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(said),
        contextlib.chdir(Path.cwd()),
    ):
        patch.setattr(sys, "argv", ["command", "--config-fd", str(reader), *map(str, words)])
        try:
            status, error = main(), ""
        except UserError as failure:
            status, error = ExitStatus.USAGE, str(failure)
        except CellFailure as failure:
            status, error = ExitStatus.FAILED, str(failure)
        finally:
            signal.signal(signal.SIGINT, usual)
    return Ended(status, said.getvalue(), error)
