"""How many CPU cores this process may use."""

from __future__ import annotations

import os
import sys


def available_cores() -> int:
    """Cores in this process's affinity mask (Linux), else all of the machine; at least 1."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
