"""The bounds and tables of perf/, and that its programs measure the tree as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perf.harness import REPO, Row, Table, at_least, at_most
from perf.latency_server import AnsweredRequest, job_lengths, makespan
from tests.support.checkout import needs_driver_env

_PROGRAMS = ("api_generation", "api_judging", "launcher", "matrix", "report", "adoption")


@pytest.mark.parametrize(
    ("lengths", "workers", "seconds"),
    [
        ([], 3, 0),
        ([1, 2, 3], 1, 6),
        ([1, 2, 3], 8, 3),
        # 3 | 1 1 1: the long job first is optimal, in the given order it comes last
        ([3, 1, 1, 1], 2, 3),
        ([1, 1, 1, 3], 2, 4),
        # worker a: 2 then 4, worker b: 3 then 1 then 2
        ([2, 3, 4, 1, 2], 2, 6),
    ],
)
def test_makespan_gives_each_job_in_turn_to_the_first_free_worker(
    lengths: list[float], workers: int, seconds: float
) -> None:
    assert makespan(lengths, workers) == seconds


def test_job_length_is_all_requests_up_to_the_first_image() -> None:
    log = [
        AnsweredRequest("0", 1, 1.0, "500"),
        AnsweredRequest("1", 1, 9.0, "ok"),
        AnsweredRequest("0", 2, 2.0, "ok"),
        # an image that was paid twice must not lengthen the bound
        AnsweredRequest("0", 3, 4.0, "ok"),
    ]
    assert job_lengths(3, log) == [3.0, 9.0, 0.0]


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


def test_rows_that_failed_are_no_kept_bar(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("rows")
    table.add(Row("lost", 0.5, at_most(1.0), problems=["3 of 4 lost"]))
    assert table.status == 1
    assert "FAILED" in (text := capsys.readouterr().out) and "3 of 4 lost" in text


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
