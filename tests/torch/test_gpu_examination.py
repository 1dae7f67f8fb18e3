"""The examination of a GPU, with tiny models on the CPU, as ``bash test.sh --gpu --tiny`` runs it; its document."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perf.harness import REPO
from tests.gpu.__main__ import PACKAGES
from tests.gpu.part import TINY_PARTS
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
