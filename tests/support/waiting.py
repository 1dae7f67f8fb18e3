"""Waiting for other processes and threads, on a machine however busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LONGEST_WAIT = 240.0
"""Seconds after which a test gives up. A busy machine may take minutes for the work of one second."""


def wait_for(condition: Callable[[], Any], seconds: float = LONGEST_WAIT) -> None:
    """Return as soon as ``condition`` returns a true value. Raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
