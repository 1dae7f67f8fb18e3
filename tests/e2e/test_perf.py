"""The bounds of perf/, the draws of its server, its tables, and that its programs measure the tree as it is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from perf import latency_server as server
from perf.harness import REPO, Row, Table, at_least, at_most
from perf.latency_server import AnsweredRequest, job_lengths, makespan
from tests.support.checkout import needs_driver_env

DRAWN = 20_000
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


def test_latencies_have_the_median_and_p99_and_repeat() -> None:
    drawn = sorted(server.latency(1, f"item {n}", 1) for n in range(DRAWN))
    assert drawn[DRAWN // 2] == pytest.approx(server.MEDIAN, rel=0.03)
    assert drawn[DRAWN * 99 // 100] == pytest.approx(server.P99, rel=0.08)
    assert server.latency(1, "item 0", 1) == server.latency(1, "item 0", 1)
    others = [server.latency(2, "item 0", 1), server.latency(1, "item 0", 2), server.latency(1, "item 1", 1)]
    assert server.latency(1, "item 0", 1) not in others


def test_faults_have_their_shares_and_a_retry_may_fare_better() -> None:
    counts = Counter(server.answer(1, f"item {n}", 1) for n in range(DRAWN))
    assert counts.keys() == {server.OK, *server.FAULTS}
    for fault, share in server.FAULTS.items():
        assert counts[fault] / DRAWN == pytest.approx(share, rel=0.15)
    failed = next(f"item {n}" for n in range(DRAWN) if server.answer(1, f"item {n}", 1) != server.OK)
    assert server.OK in [server.answer(1, failed, attempt) for attempt in (2, 3, 4)]


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


@pytest.mark.parametrize(
    ("others", "ratios", "shown"),
    [
        # a machine that is free is believed at once
        (0.0, [2.0, 1.0], "2.00"),
        (0.9, [2.0, 1.0], "1.00"),
        (0.9, [4.0, 3.0, 2.0, 1.0], "4.00"),
    ],
)
def test_what_a_busy_machine_may_have_slowed_is_measured_again(
    others: float, ratios: list[float], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(ratios)
    Table("rows", tries=3).measure(lambda: [Row("each", next(left), at_most(1.0), others=others)])
    assert capsys.readouterr().out.splitlines()[-1].split()[1] == shown


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
