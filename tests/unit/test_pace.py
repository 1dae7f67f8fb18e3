"""The way of a job's progress to its launcher: which cells are under way, how fast, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imageevalkit.jobs import progress as progress_module
from imageevalkit.jobs.progress import PaceReader, Progress, ProgressReader, ProgressWriter

Report = Callable[..., None]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job.jsonl"


@pytest.fixture
def report(file: Path) -> Report:
    writer = ProgressWriter(file)

    def reporting(cell: str, done: int, total: int = 10, **more: float | None) -> None:
        writer.report(Progress(cell, "generate", done, total, **more), force=True)  # type: ignore[arg-type]

    return reporting


def test_a_busy_cell_does_not_hide_another(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
    writer = ProgressWriter(file)
    for done in range(20):
        writer.report(Progress("m/busy", "generate", done, 20))
        writer.report(Progress("m/calm", "generate", done // 10, 20))
        clock[0] += 0.125
    lines = file.read_text().splitlines()
    assert [sum(cell in line for line in lines) for cell in ("m/busy", "m/calm")] == [5, 2], (
        "what changed, of each"
    )
    assert {cell: p.done for cell, p in ProgressReader(file).read().items()} == {"m/busy": 16, "m/calm": 1}


def test_each_cell_has_its_own_rate(file: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(progress_module.time, "time", lambda: clock[0])
    reader = PaceReader(file)
    for second in range(6):
        report("m/slow", second, 100)
        report("m/fast", 5 * second, 100)
        reader.read()
        clock[0] += 1
    rates = {pace.progress.cell: (pace.rate, pace.eta) for pace in reader.read()}
    assert rates["m/slow"] == (pytest.approx(1), pytest.approx(94))
    assert rates["m/fast"] == (pytest.approx(5), pytest.approx(14))


def test_money_of_all_cells_adds_up_and_never_falls(file: Path, report: Report) -> None:
    reader = PaceReader(file)
    report("m/free", 1)
    reader.read()
    assert (reader.spent, reader.max_cost) == (None, None)
    report("m/a", 10, cost=1.25, max_cost=5.0)
    report("m/b", 2, cost=0.5, max_cost=5.0)
    reader.read()
    assert (reader.spent, reader.max_cost) == (1.75, 5.0)
    reader.start_attempt()
    report("m/b", 0, cost=0.0, max_cost=5.0)
    reader.read()
    assert reader.spent == 1.75
    report("m/c", 1, cost=0.25, max_cost=5.0)
    reader.start_attempt()
    assert reader.spent == 2.0, "the last words of an attempt that died"
    report("m/b", 4, cost=1.0, max_cost=5.0)
    reader.read()
    assert reader.spent == 2.5


def test_a_torn_line_and_lines_of_an_older_writer_are_understood(file: Path) -> None:
    file.write_text(
        '{"cell": "m/a", "stage": "generate", "done": 1, "total": 2, "time": 1.0}\n{"cell": "m/b", "st'
    )
    (pace,) = PaceReader(file).read()
    assert pace.progress.cost is None and pace.progress.done == 1
    assert time.time() > pace.progress.time
