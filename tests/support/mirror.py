"""Benchmark data and official code kept beside the repository for development; never part of it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from imageevalkit import assets, registry
from imageevalkit.assets.data import fetch
from imageevalkit.store.cell import REPO

KIT = ("PenghaoYin/ImageEvalKit", "85b5e1511b867688fa37edee304ee0adc953e941")
"""The repository and commit of the benchmarks' upstream toolkit."""


def shared_mirror() -> Path:
    """The folder laid out ``<owner>/<repo>/<commit>/<path>``; skips the test where there is none."""
    folder = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared" / "mirror")
    if not folder.is_dir():
        pytest.skip("no SHARED_MIRROR and no ../shared/mirror")
    return folder


def use_official_data(benchmark: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the files of ``benchmark`` below ``folder``, where benchmarks are then looked for; skips like the above."""
    mirror = shared_mirror()
    monkeypatch.setattr(assets, "BENCHMARKS", folder)
    assert fetch(registry.benchmark_files(benchmark), mirror) == []


def official_source(repo: str, commit: str, path: str) -> str:
    """A file of the bare clone ``<owner>+<name>/repo`` of ``repo``, to run beside ours; skips the test without one."""
    command = ["git", "-C", str(clone(repo)), "show", f"{commit}:{path}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip(f"no OFFICIAL_CLONES and no ../.mirror with {repo} at {commit[:8]}")
    return shown.stdout


def official_folder(repo: str, commit: str, folder: str) -> dict[str, bytes]:
    """The files of ``folder``, by their path below it; otherwise as :func:`official_source`."""
    command = ["git", "-C", str(clone(repo)), "archive", f"{commit}:{folder}"]
    packed = subprocess.run(command, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"no OFFICIAL_CLONES and no ../.mirror with {repo} at {commit[:8]}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        files = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def clone(repo: str) -> Path:
    """Where the bare clone of ``repo`` is, if there is one."""
    clones = Path(os.environ.get("OFFICIAL_CLONES") or REPO.parent / ".mirror")
    return clones / repo.replace("/", "+") / "repo"
