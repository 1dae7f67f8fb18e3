"""The tables of perf/, and that its programs measure the tree as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perf.harness import REPO, Row, Table, at_least, at_most
from tests.support.checkout import needs_driver_env

_PROGRAMS = ("api_generation", "api_judging", "launcher", "matrix", "report", "adoption")


def test_a_table_says_which_bars_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("rows", "wall s")
    table.add(Row("kept", 1.1, at_most(1.1), {"wall s": "3.00"}), Row("told", 9.0))
    assert table.status == 0
    table.add(Row("slow", 0.9, at_least(0.95)))
    assert table.status == 1
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[2:]}
    assert lines["kept"] == ["1.10", "≤", "1.1", "ok", "3.00", "0.00"]
    assert lines["told"] == ["9.00", "0.00"]
    assert lines["slow"] == ["0.90", "≥", "0.95", "MISSED", "0.00"]


def test_perf_sh_lists_its_programs_and_knows_no_others() -> None:
    listed = subprocess.run(
        ["bash", "perf.sh", "--list"], cwd=REPO, capture_output=True, text=True, check=True
    )
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names == [*_PROGRAMS]
    assert all(len(line.split()) > 2 for line in listed.stdout.splitlines())
    ended = subprocess.run(["bash", "perf.sh", "api"], cwd=REPO, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: no program 'api': use ")


@needs_driver_env
@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_program_measures_the_tree_as_it_is(program: str) -> None:
    """Its status says whether a bar was kept, which depends on the machine. Its rows say that all work was done."""
    command = [sys.executable, "-m", f"perf.{program}", "--small"]
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert len(ended.stdout.splitlines()) > 2
    assert "FAILED" not in ended.stdout
