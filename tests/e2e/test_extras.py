"""The toolkit works without the folder of any extra."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from imageevalkit.extension_points import extras
from tests.support.checkout import environ, find_no_text, make_checkout, needs_driver_env

pytestmark = needs_driver_env


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


def evaluate(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "eval.sh", *words], cwd=checkout, env=environ(checkout), capture_output=True, text=True
    )


def test_the_quick_start_needs_no_extra(checkout: Path) -> None:
    for name in extras():
        shutil.rmtree(checkout / "imageevalkit/extras" / name)
    missing = evaluate(checkout, "prefetch", "--ds_names", "wise")
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1, missing.stderr
    assert missing.stderr.startswith("error: prefetch: this checkout has no imageevalkit/extras/prefetch")
    done = evaluate(find_no_text(checkout), "--quickstart", "--limit", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (checkout / "output/leaderboard.csv").read_text().count("quicktext") >= 2


def test_the_others_load_without_each_extra(checkout: Path) -> None:
    points = sorted({point for connects in extras().values() for point in connects})
    load_all = f"from imageevalkit.extension_points import connected\nfor point in {points}: connected(point)"
    for name in extras():
        folder = checkout / "imageevalkit/extras" / name
        folder.rename(checkout / name)
        done = subprocess.run(
            [checkout / ".venv/bin/python", "-c", load_all],
            cwd=checkout,
            env=environ(checkout),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"without {name}: {done.stderr}"
        (checkout / name).rename(folder)
