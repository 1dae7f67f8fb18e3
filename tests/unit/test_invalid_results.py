"""One bad value in the files of one result: that result is left out with one line, and all others are reported."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
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
BAD: list[Any] = [[], {"a": []}, "text", 1e308, -1e308, 10**400, -1, -0.5, True, None, "half \ud83d"]
NOISE = {"of": 9, "repeated": 9, "changed": 1, "interval": [0.1, 0.2], "standard_errors": {"accuracy": 0.01}}
SETTINGS = {"task": "t2i", "model_path": "org/model", "kwargs.steps": 4, "host": "api.example.com"}


@pytest.fixture
def output() -> Path:
    return output_root()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value in a JSON value is."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def changed(value: Any, path: tuple[Any, ...], bad: Any) -> Any:
    if not path:
        return bad
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], bad)
    return copy


def write(cell: Cell) -> None:
    """A result whose files have a value in each field that a reader looks at."""
    write_scored(cell, VALUES, more={"noise": NOISE})
    raw = json.loads(cell.result.read_text())
    raw["metrics"]["accuracy"]["shares"] = {"odd": 0.5, "even": 0.5}
    raw["provenance"] |= {"model_settings": [SETTINGS], "generation_usd": 0.5, "judge_usd": 0.25}
    cell.result.write_text(json.dumps(raw))
    scores = [json.loads(line) for line in cell.scores.read_text().splitlines()]
    for n, one in enumerate(scores):
        total, weight = one["parts"]["accuracy"][0]
        one["parts"] = {"accuracy": [[total, weight, "odd" if n % 2 else "even", f"cluster {n}"]]}
        one |= {
            "keys": {"kind": "a"},
            "detail": {"read": "x"},
            "points": [{"values": {"met": 1}, "keys": {}}],
        }
    cell.scores.write_text("".join(f"{json.dumps(one)}\n" for one in scores))
    made = [json.loads(line) for line in cell.generation.read_text().splitlines()]
    more = {"seed": 1, "size": [64, 48], "seconds": 1.5, "attempts": 1, "price": 0.1, "tokens": {"input": 5}}
    cell.generation.write_text("".join(f"{json.dumps({**one, **more})}\n" for one in made))
    said = {"item": "p/00", "question": "q", "status": "ok", "raw": "yes", "parsed": "yes", "usd": 0.1}
    cell.judgements.write_text(f"{json.dumps(said)}\n")


def write_all() -> int:
    """Two good results, and for each place in the files two with bad values there; how many these are."""
    write(Cell("good", "text"))
    write(Cell("better", "text"))
    cell, count = Cell("good", "text"), 0
    for name in ("result.json", "scores.jsonl", "generation.jsonl", "judgements.jsonl"):
        first, _, rest = (cell.folder / name).read_text().partition("\n")
        for path in places(json.loads(first)):
            for bad in (BAD[count % len(BAD)], BAD[(count + 5) % len(BAD)]):
                count += 1
                other = Cell(f"bad{count}", "text")
                other.folder.mkdir(parents=True)
                for one in ("result.json", "scores.jsonl", "generation.jsonl", "judgements.jsonl"):
                    (other.folder / one).write_bytes((cell.folder / one).read_bytes())
                (other.folder / name).write_text(
                    f"{json.dumps(changed(json.loads(first), path, bad))}\n{rest}"
                )
    return count


@pytest.mark.slow
def test_no_bad_value_breaks_a_report_or_what_is_published(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = write_all()
    assert main([]) == ExitStatus.FAILED
    printed = capsys.readouterr().out
    with (output / "leaderboard.csv").open(newline="") as file:
        shown = {row["model"] for row in csv.DictReader(file)}
    assert {"good", "better"} <= shown
    left_out = {cell.model for cell in collect() if cell.is_invalid}
    assert shown.isdisjoint(left_out) and len(shown | left_out) >= count
    for model in left_out:
        [line] = {one for one in printed.splitlines() if f"/{model}/text/" in one and "is left out" in one}
        assert re.search(r"is not readable: .*: its result is left out; evaluate the model again", line)
    lines = list[str]()
    assert publish(tmp_path / "published", lines.append) == ExitStatus.FAILED
    assert (tmp_path / "published/leaderboard.csv").is_file()
    # --compare and --gate read the same
    assert {one.cell.model for one in read_all(output_root(), lines.append)[1]} == shown
    with pytest.raises(UserError, match=f"{min(left_out)}/text/.* is not readable: .* remove the file"):
        find_sides((min(left_out), "good"), tmp_path, lines.append)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("metrics.accuracy.n", -3, "'metrics.accuracy.n' is -3"),
        ("metrics.accuracy.n", 10**400, "'metrics.accuracy.n' is 1000"),
        ("metrics.accuracy.value", 1e308, "'metrics.accuracy.value' is 1e+308"),
        ("metrics.accuracy.scale", 0, "'metrics.accuracy.scale' is 0"),
        ("metrics.accuracy.interval", [0.5, 0.25], "'metrics.accuracy.interval' is [0.5, 0.25]"),
        ("coverage.judged", 10**400, "'coverage.judged' is 1000"),
        ("coverage.refused", -1, "'coverage.refused' is -1"),
        ("provenance.generation_usd", 10**400, "'provenance.generation_usd' is 1000"),
        ("provenance.time", 5, "'provenance.time' is 5"),
    ],
)
def test_the_line_names_the_field(field: str, value: Any, said: str) -> None:
    cell = write_scored(Cell("a", "text"), VALUES)
    raw = (
        changed(json.loads(cell.result.read_text()), tuple(field.split(".")), value)
        if field != ("provenance.generation_usd")
        else json.loads(cell.result.read_text()) | {"provenance": {"generation_usd": value}}
    )
    cell.result.write_text(json.dumps(raw))
    [report] = collect()
    assert report.is_invalid and said in report.problem


@pytest.mark.parametrize("part", [[0.5, 1.0, ["group"]], [1e308, 1.0], [0.5, 10**400], [0.5, -1.0], "x"])
def test_a_bad_part_of_an_item_is_named(part: Any) -> None:
    cell = write_scored(Cell("a", "text"), VALUES)
    lines = [json.loads(line) for line in cell.scores.read_text().splitlines()]
    lines[3]["parts"]["accuracy"] = [part]
    cell.scores.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    [report] = collect()
    assert report.is_invalid
    assert "a/text/scores.jsonl is not readable: 'p/03.parts.accuracy' is" in report.problem


@pytest.mark.parametrize("value", [1e308, 10**400, {"value": 0.5, "n": 10**400}, {"value": 0.5, "n": -1}])
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
