"""Benchmark data and official code kept beside the repository for development; never part of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imageevalkit.cell import REPO


def shared_mirror() -> Path:
    """The folder laid out ``<owner>/<repo>/<commit>/<path>``; skips the test where there is none."""
    folder = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared" / "mirror")
    if not folder.is_dir():
        pytest.skip("no SHARED_MIRROR and no ../shared/mirror")
    return folder


def official_source(repo: str, commit: str, path: str) -> str:
    """A file of the bare clone ``<owner>+<name>/repo`` of ``repo``, to run beside ours; skips the test without one."""
    command = ["git", "-C", str(clone(repo)), "show", f"{commit}:{path}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip(f"no OFFICIAL_CLONES and no ../.mirror with {repo} at {commit[:8]}")
    return shown.stdout


def clone(repo: str) -> Path:
    """Where the bare clone of ``repo`` is, if there is one."""
    clones = Path(os.environ.get("OFFICIAL_CLONES") or REPO.parent / ".mirror")
    return clones / repo.replace("/", "+") / "repo"
