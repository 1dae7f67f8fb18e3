"""The benchmark data kept beside the repository for development; never part of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imageevalkit.cell import REPO


def shared_mirror() -> Path:
    """The folder laid out ``<owner>/<repo>/<commit>/<path>``; skips the test where there is none."""
    folder = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared" / "mirror")
    if not folder.is_dir():
        pytest.skip("no SHARED_MIRROR and no ../shared/mirror")
    return folder
