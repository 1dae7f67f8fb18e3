"""The official code of OneIG-Bench, where it lies beside the repository for development; never part of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imageevalkit.cell import REPO

_COMMIT = "41b49831e79e6dde5323618c164da1c4cf0f699d"


def official_source(path: str) -> str:
    """The text of ``path`` at the pinned commit; skips the test where there is no copy."""
    folder = Path(
        os.environ.get("ONEIG_OFFICIAL") or REPO.parent / ".mirror/OneIG-Bench+OneIG-Benchmark/repo"
    )
    if not folder.is_dir():
        pytest.skip("no ONEIG_OFFICIAL (a clone of OneIG-Bench/OneIG-Benchmark) and none in ../.mirror")
    show = ["git", "-C", str(folder), "show", f"{_COMMIT}:{path}"]
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout
