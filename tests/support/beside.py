"""Programs of tests.support in processes of their own, with packages that no other test may see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from imageevalkit.store.cell import REPO


def packages_beside(name: str) -> Path:
    """Returns the folder of the packages ``name``, as "dreamsim"; skips the test if test.sh has not installed them."""
    variable = f"{name.upper()}_PACKAGES"
    folder = Path(os.environ.get(variable) or Path(sys.prefix) / f"{name.replace('_', '-')}-packages")
    if not folder.is_dir():
        pytest.skip(f"no {variable}, and test.sh has not installed {folder}")
    return folder


def run_beside(
    module: str, *arguments: Path | str, packages: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m tests.support.<module>`` with ``packages`` (see :func:`packages_beside`); it must succeed."""
    paths = [REPO, REPO / "infer"]
    if "dreamsim" in packages:  # torchvision is among them, without its compiled operators
        paths.append(REPO / "tests/support/torchvision_ops")
    search = [*map(str, [*paths, *map(packages_beside, packages)]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{module}", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search), **environ},
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done
