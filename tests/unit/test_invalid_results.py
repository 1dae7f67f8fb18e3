"""One bad value in the files of one result: that result is left out with one line, and all others are reported."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any
from zipfile import ZIP_LZMA, ZipFile

import pytest

from benchmarks.quicktext.benchmark import QuickText
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError
from imageevalkit.extras.compare.sides import find_sides
from imageevalkit.extras.publish.folder import publish
from imageevalkit.report.__main__ import main
from imageevalkit.report.collect import collect
from imageevalkit.report.reading import read_all
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.results import read_metrics
from tests.support.cells import write_scored

VALUES = {f"p/{n:02}": n / 16 for n in range(12)}


def damage(cell: Cell, field: str, value: Any) -> None:
    """Gives a field of the cell's result another value."""
    raw = inner = json.loads(cell.result.read_text())
    *outer, last = field.split(".")
    for name in outer:
        inner = inner[name]
    inner[last] = value
    cell.result.write_text(json.dumps(raw))


def test_a_bad_value_leaves_its_result_alone_out_of_a_report_and_of_what_is_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ("good", "better", "bad"):
        write_scored(Cell(model, "text"), VALUES)
    damage(Cell("bad", "text"), "metrics.accuracy.n", -3)
    assert main([]) == ExitStatus.FAILED
    [line] = {one for one in capsys.readouterr().out.splitlines() if "is left out" in one}
    assert re.search(
        r"/bad/text/.* is not readable: .*: its result is left out; evaluate the model again", line
    )
    with (output_root() / "leaderboard.csv").open(newline="") as file:
        assert {row["model"] for row in csv.DictReader(file)} == {"good", "better"}
    lines = list[str]()
    assert publish(tmp_path / "published", lines.append) == ExitStatus.FAILED
    assert (tmp_path / "published/leaderboard.csv").is_file()
    # --compare and --gate read the same
    assert {one.cell.model for one in read_all(output_root(), lines.append)[1]} == {"good", "better"}
    with pytest.raises(UserError, match=r"bad/text/.* is not readable: .* remove the file"):
        find_sides(("bad", "good"), tmp_path, lines.append)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("metrics.accuracy.n", 10**400, "'metrics.accuracy.n' is 1000"),
        ("metrics.accuracy.value", 1e308, "'metrics.accuracy.value' is 1e+308"),
        ("metrics.accuracy.interval", [0.5, 0.25], "'metrics.accuracy.interval' is [0.5, 0.25]"),
    ],
)
def test_the_line_names_the_field(field: str, value: Any, said: str) -> None:
    cell = write_scored(Cell("a", "text"), VALUES)
    damage(cell, field, value)
    [report] = collect()
    assert report.is_invalid and said in report.problem


@pytest.mark.parametrize("part", [[0.5, 1.0, ["group"]], [1e308, 1.0], [0.5, -1.0]])
def test_a_bad_part_of_an_item_is_named(part: Any) -> None:
    cell = write_scored(Cell("a", "text"), VALUES)
    lines = [json.loads(line) for line in cell.scores.read_text().splitlines()]
    lines[3]["parts"]["accuracy"] = [part]
    cell.scores.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    [report] = collect()
    assert report.is_invalid
    assert "a/text/scores.jsonl is not readable: 'p/03.parts.accuracy' is" in report.problem


@pytest.mark.parametrize("value", [1e308, {"value": 0.5, "n": 10**400}])
def test_the_metrics_of_a_script_are_checked_when_they_are_read(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"accuracy": value}))
    with pytest.raises(CellFailure, match="metric 'accuracy'"):
        read_metrics(path, 12)


def test_a_damaged_member_of_a_baseline_is_one_line(tmp_path: Path) -> None:
    write_scored(Cell("a", "text"), VALUES)
    path = tmp_path / "baseline.zip"
    with ZipFile(path, "w", ZIP_LZMA) as file:
        file.write(Cell("a", "text").result, "a/text/result.json")
        start = file.infolist()[0].header_offset + 30 + len("a/text/result.json")
    data = bytearray(path.read_bytes())
    data[start + 9 : start + 40] = b"\xff" * 31
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"baseline\.zip cannot be read"):
        read_all(path, lambda line: None)


def test_files_with_a_byte_order_mark_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = write_scored(Cell("a", "text"), VALUES)
    for path in (cell.result, cell.scores, cell.generation):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    [report] = collect(pytest.fail)
    assert report.result and len(report.result.metrics["accuracy"].parts) == 12 and report.recorded == 12
    monkeypatch.setattr(QuickText, "folder", tmp_path)
    (tmp_path / "a.json").write_text('["a"]', encoding="utf-8-sig")
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n', encoding="utf-8-sig")
    assert (QuickText().read_json("a.json"), QuickText().read_jsonl("a.jsonl")) == (["a"], [{"a": 1}])
    metrics = tmp_path / "metrics.json"
    metrics.write_bytes(b"\xef\xbb\xbf" + b'{"accuracy": 0.5}')
    assert read_metrics(metrics, 12)["accuracy"].value == 0.5
