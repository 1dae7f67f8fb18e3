"""The bounds and tables of perf/, and that its programs measure the tree as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perf.harness import REPO, Row, Table, at_most
from tests.support.checkout import needs_driver_env

_PROGRAMS = ("api_generation", "launcher", "matrix")


def test_rows_that_failed_are_no_kept_bar(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("rows")
    table.add(Row("lost", 0.5, at_most(1.0), problems=["3 of 4 lost"]))
    assert table.status == 1
    assert "FAILED" in (text := capsys.readouterr().out) and "3 of 4 lost" in text


@needs_driver_env
@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_program_measures_the_tree_as_it_is(program: str) -> None:
    """Its status says whether a bar was kept, which depends on the machine. Its rows say that all work was done."""
    command = [sys.executable, "-m", f"perf.{program}", "--small"]
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert len(ended.stdout.splitlines()) > 2
    assert "FAILED" not in ended.stdout
