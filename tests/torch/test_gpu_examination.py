"""The examination of a GPU, with tiny models on the CPU, as ``bash test.sh --gpu --tiny`` runs it; its document."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perf.harness import REPO, Row, at_least
from tests.gpu.__main__ import PACKAGES
from tests.gpu.part import TINY_PARTS
from tests.gpu.written import Document
from tests.support.checkout import needs_driver_env


@needs_driver_env
def test_all_parts_run_on_the_cpu(tmp_path: Path) -> None:
    """Only the GPU's own rows are skipped."""
    if not PACKAGES.is_dir():
        pytest.skip(f"{PACKAGES} is not there: bash test.sh installs it")
    document = tmp_path / "performance.md"
    command = [sys.executable, "-m", "tests.gpu", "--tiny", "--write", str(document)]
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert "FAILED" not in ended.stdout and "MISSED" not in ended.stdout
    sections = [line[3:] for line in document.read_text().splitlines() if line.startswith("## ")]
    assert sections == TINY_PARTS


def test_a_machine_without_a_gpu_is_told_what_to_do() -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPO / "tests/support/fake_nvml")}
    command = [sys.executable, "-m", "tests.gpu"]
    ended = subprocess.run(command, cwd=REPO, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "no NVIDIA GPU answers" in ended.stderr and "bash test.sh --gpu --tiny" in ended.stderr


def test_a_part_replaces_its_own_section_only(tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    path.write_text("# Performance\n\nMeasured on one card.\n\n## judge\n\nold\n\n## by hand\n\nstays\n")
    document = Document(path, "a card; torch 9")
    row = Row("answers | per second", 2.5, at_least(2.0), {"note": "no profile"})
    document.write("judge", [row, Row("images", float("nan"), skipped="no GPU")])
    document.write("metrics", [])
    sections = path.read_text().split("\n## ")
    assert sections[0] == "# Performance\n\nMeasured on one card.\n"
    assert sections[1].splitlines()[::2][:2] == ["judge", "a card; torch 9"]
    assert "| answers per second | 2.50 | ≥ 2 | ok |  |  |  | no profile |" in sections[1]
    assert "| images |  |  | skipped |  |  |  | no GPU |" in sections[1] and "old" not in sections[1]
    assert sections[2].strip() == "by hand\n\nstays"
    assert sections[3].startswith("metrics\n")


@pytest.mark.skipif(not (REPO / ".venv/.imageevalkit-requirements").exists(), reason="no .venv")
def test_the_note_of_a_packed_environment_is_that_of_make_env() -> None:
    """tests/gpu/install.sh writes it without make_env.sh, which would install from the network."""
    listed = (REPO / "requirements/driver.txt").read_text().rstrip("\n") + "\n"
    noted = (REPO / ".venv/.imageevalkit-requirements").read_text().strip()
    assert noted == hashlib.sha256(listed.encode()).hexdigest()
