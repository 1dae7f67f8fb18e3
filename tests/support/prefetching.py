"""The command ``utils/prefetch.sh`` as a function call."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from imageevalkit.cli import prefetch
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError


class Ended(NamedTuple):
    """The exit status of the command, and what it prints on stdout and as its error."""

    status: int
    said: str
    error: str


def prefetch_here(*words: str | Path, **config: str) -> Ended:
    """Run the command with ``words`` in this process; ``config`` are scalars of config.sh."""
    reader, writer = os.pipe()
    parts = [part for name, value in config.items() for part in ("scalar", name, "1", value)]
    os.write(writer, "".join(f"{part}\0" for part in [*parts, "end"]).encode())
    os.close(writer)
    usual, said = signal.getsignal(signal.SIGINT), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(sys, "argv", ["prefetch", "--config-fd", str(reader), *map(str, words)])
        try:
            status, error = prefetch.main(), ""
        except UserError as failure:
            status, error = ExitStatus.USAGE, str(failure)
        except CellFailure as failure:
            status, error = ExitStatus.FAILED, str(failure)
        finally:
            signal.signal(signal.SIGINT, usual)
    return Ended(status, said.getvalue(), error)
