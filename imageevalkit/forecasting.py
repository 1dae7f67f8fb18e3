"""What a stage would do, told to ``--dry_run``: a request on stdin, a line for each of its cells on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from imageevalkit.cell import REPO
from imageevalkit.errors import CellFailure, ExitStatus
from imageevalkit.guest_code import guest_code
from imageevalkit.secrets import one_line


def tell_forecasts(forecast: Callable[[str, dict[str, Any]], str]) -> ExitStatus:
    """Print ``forecast(cell key, request)`` for each cell; one that fails is a line too, and status 1."""
    sys.path.insert(0, str(REPO / "infer"))
    request = json.load(sys.stdin)
    status = ExitStatus.COMPLETE
    for key in request["cells"]:
        try:
            with guest_code():
                line = forecast(key, request)
            print(line)
        except Exception as error:  # a fault in one dataset class or benchmark must not hide the other cells
            kind = "" if isinstance(error, CellFailure) else f"{type(error).__name__}: "
            print(f"{key}: unknown: {kind}{one_line(error, 300)}")
            status = ExitStatus.FAILED
    return status
