"""The toolkit works without the folder of any extra, and its extras without each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imageevalkit.extension_points import extras
from imageevalkit.store.cell import REPO
from tests.support.checkout import (
    environ,
    find_no_text,
    make_checkout,
    needs_driver_env,
    run_command,
    run_eval,
)

pytestmark = needs_driver_env


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A copy of the tree without extras."""
    checkout = make_checkout(tmp_path)
    for name in extras():
        shutil.rmtree(checkout / "imageevalkit/extras" / name)
    return checkout


def test_the_quick_start_needs_no_extra(bare: Path) -> None:
    missing = run_eval(bare, "prefetch", "--ds_names", "wise")
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1, missing.stderr
    assert missing.stderr.startswith("error: prefetch: this checkout has no imageevalkit/extras/prefetch")
    run_eval(find_no_text(bare), "--quickstart", "--limit", "2", status=0)
    assert (bare / "output/leaderboard.csv").read_text().count("quickshapes") >= 2


def test_the_tests_of_the_core_need_no_extra(bare: Path) -> None:
    """They are the unit tests whose files import neither an extra nor a benchmark."""
    for name in ("docs", "perf", "tests"):
        shutil.copytree(REPO / name, bare / name, dirs_exist_ok=True)
    files = [
        str(path.relative_to(bare))
        for path in sorted((bare / "tests/unit").glob("test_*.py"))
        if not re.search(
            r"imageevalkit[./]extras|^from benchmarks\.", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    words = ["-q", "-n", "0", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=bare,
        capture_output=True,
        text=True,
        env=environ(bare, PYTEST_ADDOPTS=""),
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert "passed" in done.stdout


def test_the_others_load_without_each_extra(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path)
    points = sorted({point for connects in extras().values() for point in connects})
    load_all = f"from imageevalkit.extension_points import connected\nfor point in {points}: connected(point)"
    for name in extras():
        folder = checkout / "imageevalkit/extras" / name
        folder.rename(checkout / name)
        words = [str(checkout / ".venv/bin/python"), "-c", load_all]
        run_command(words, checkout, environ(checkout), status=0)
        (checkout / name).rename(folder)
