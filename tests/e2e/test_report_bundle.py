"""The sources of the report's page, and the bundle that is made of them: users have no Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.checkout import run_command

REPORT = Path(__file__).parents[2] / "imageevalkit/report"
PAGE, BUNDLE = REPORT / "page", REPORT / "bundle"


def _npm(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(["npm", *arguments], cwd=folder)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with the packages that their lock file names, apart from the tree."""
    if not shutil.which("npm"):
        pytest.skip("needs npm")
    folder = tmp_path_factory.mktemp("page") / "page"
    here = PAGE / "node_modules"
    shutil.copytree(PAGE, folder, ignore=shutil.ignore_patterns("node_modules"))
    if here.is_dir():
        (folder / "node_modules").symlink_to(here)
    elif (done := _npm(folder, "ci", "--no-audit", "--no-fund")).returncode:
        pytest.skip(f"npm cannot get the packages: {done.stderr.strip()[-300:]}")
    return folder


def test_the_bundle_is_small() -> None:
    assert sum(file.stat().st_size for file in BUNDLE.iterdir()) <= 1_500_000


def test_the_bundle_is_what_the_sources_make(page: Path, tmp_path: Path) -> None:
    done = _npm(page, "run", "build", "--", "--outDir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    made, kept = (
        {file.name: file.read_bytes() for file in folder.iterdir()} for folder in (tmp_path, BUNDLE)
    )
    assert made == kept, "run `npm run build` in imageevalkit/report/page and commit the bundle"


def test_the_linter_finds_nothing(page: Path) -> None:
    done = _npm(page, "run", "lint")
    assert done.returncode == 0, done.stdout + done.stderr
