"""The yardstick of perf/api_generation.py and the draws of its server."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from perf import draws
from perf.makespan import job_lengths, makespan
from perf.server_process import REPO, AnsweredRequest

DRAWN = 20_000


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
    drawn = sorted(draws.latency(1, f"item {n}", 1) for n in range(DRAWN))
    assert drawn[DRAWN // 2] == pytest.approx(draws.MEDIAN, rel=0.03)
    assert drawn[DRAWN * 99 // 100] == pytest.approx(draws.P99, rel=0.08)
    assert draws.latency(1, "item 0", 1) == draws.latency(1, "item 0", 1)
    others = [draws.latency(2, "item 0", 1), draws.latency(1, "item 0", 2), draws.latency(1, "item 1", 1)]
    assert draws.latency(1, "item 0", 1) not in others


def test_faults_have_their_shares_and_a_retry_may_fare_better() -> None:
    counts = Counter(draws.answer(1, f"item {n}", 1) for n in range(DRAWN))
    assert counts.keys() == {draws.OK, *draws.FAULTS}
    for fault, share in draws.FAULTS.items():
        assert counts[fault] / DRAWN == pytest.approx(share, rel=0.15)
    failed = next(f"item {n}" for n in range(DRAWN) if draws.answer(1, f"item {n}", 1) != draws.OK)
    assert draws.OK in [draws.answer(1, failed, attempt) for attempt in (2, 3, 4)]


def test_job_length_is_all_requests_up_to_the_first_image() -> None:
    log = [
        AnsweredRequest("a", 1, 1.0, "500", 0.0),
        AnsweredRequest("b", 1, 9.0, "ok", 0.0),
        AnsweredRequest("a", 2, 2.0, "ok", 0.0),
        # an image that was paid twice must not lengthen the yardstick
        AnsweredRequest("a", 3, 4.0, "ok", 0.0),
    ]
    assert job_lengths(["a", "b", "never sent"], log) == [3.0, 9.0, 0.0]


def test_images_that_leave_none_to_time_are_refused() -> None:
    command = [sys.executable, "perf/local_generation.py", "--images", "4"]
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--images 4: those after the first batch of 4 are timed" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("api_judging", ["--items=3", "--workers=2", "--quick"]),
        ("api_generation", ["--items=4", "--workers=2", "--images=small", "--faults=off"]),
    ],
)
def test_a_program_measures_the_tree_as_it_is(program: str, options: list[str]) -> None:
    """Its status says whether a limit was kept, which depends on the machine; its row, that all items were served."""
    ended = subprocess.run(
        [sys.executable, f"perf/{program}.py", *options],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    row = ended.stdout.splitlines()[-1]
    assert not [fault for fault in ("exit status", "judged", "lost", "twice", "as sent") if fault in row], row
