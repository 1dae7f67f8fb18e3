"""The programs of perf/ measure the tree as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perf.harness import REPO
from tests.support.checkout import needs_driver_env

_PROGRAMS = ("api_generation", "launcher", "matrix")


@needs_driver_env
@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_program_measures_the_tree_as_it_is(program: str) -> None:
    """Its status says whether a bar was kept, which depends on the machine. Its rows say that all work was done."""
    command = [sys.executable, "-m", f"perf.{program}", "--small"]
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert len(ended.stdout.splitlines()) > 2
    assert "FAILED" not in ended.stdout
