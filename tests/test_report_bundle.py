"""The sources of the report's page, and the bundle that is made of them: users have no Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPORT = Path(__file__).parents[1] / "imageevalkit/report"
PAGE, BUNDLE = REPORT / "page", REPORT / "bundle"
needs_npm = pytest.mark.skipif(
    not (shutil.which("npm") and (PAGE / "node_modules").is_dir()),
    reason="needs npm and the page's packages (npm ci in imageevalkit/report/page)",
)


def _npm(*arguments: str) -> None:
    done = subprocess.run(
        ["npm", *arguments], cwd=PAGE, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_bundle_is_small() -> None:
    assert sum(file.stat().st_size for file in BUNDLE.iterdir()) <= 1_500_000


@needs_npm
def test_the_bundle_is_what_the_sources_make(tmp_path: Path) -> None:
    _npm("run", "build", "--", "--outDir", str(tmp_path))
    made, kept = (
        {file.name: file.read_bytes() for file in folder.iterdir()} for folder in (tmp_path, BUNDLE)
    )
    assert made == kept, "run `npm run build` in imageevalkit/report/page and commit the bundle"


@needs_npm
def test_the_linter_finds_nothing() -> None:
    _npm("run", "lint")
