"""Files of cells as disks, editors and killed processes leave them: the report of all others is made, each is named."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.common.errors import ExitStatus
from imageevalkit.jobs.plan import Job, Plan, outcome_path
from imageevalkit.report.__main__ import make_report
from imageevalkit.report.collect import collect
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.results import Metric
from tests.support.cells import QWEN, Made, write_cell
from tests.support.checkout import REPO, environ
from tests.support.site import Site

ITEMS = [Made(f"images/p/{n:04}", f"prompt {n}", value=0.5) for n in range(3)]
NO_UTF8 = os.fsdecode(b"caf\xe9")
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(autouse=True)
def cell() -> Cell:
    """A cell to damage, with a good one beside it."""
    metrics = {"accuracy": Metric(0.5, 3, (0.4, 0.6))}
    write_cell("good", "text", ITEMS, metrics)
    return write_cell("bad", "text", ITEMS, metrics)


def report(capsys: pytest.CaptureFixture[str], plan: Plan | None = None) -> list[str]:
    """The lines that the report prints, which has the good cell in every file whatever else there is; its status says
    whether a result is left out."""
    capsys.readouterr()
    status = make_report(plan)
    assert (status == ExitStatus.FAILED) == any(one.is_invalid for one in collect())
    with (output_root() / "leaderboard.csv").open(newline="") as file:
        assert ("good", "0.5") in {(row["model"], row["value"]) for row in csv.DictReader(file)}
    assert "| good |" in (output_root() / "leaderboard.md").read_text()
    assert '"name":"good"' in (output_root() / "report.html").read_text()
    return capsys.readouterr().out.splitlines()


def second_line(path: Path, text: str | bytes) -> None:
    lines = path.read_bytes().splitlines()
    path.write_bytes(
        b"\n".join([lines[0], text.encode() if isinstance(text, str) else text, *lines[2:], b""])
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"item": "images/p/0001"}', "'status' is missing"),
        ('{"item": "images/p/0001", "status": "ok", "price": NaN}', "'price' is NaN"),
        ('{"item": "images/p/0001", "seed": ' + "7" * 5000 + "}", "digits"),
        (b'{"item": "caf\xe9", "status": "ok"}', "utf-8"),
        ('{"item": "images/p/0001", "sta', "Unterminated string"),
        ("7", "it is no JSON object"),
        (DEEP, "it is nested too deep"),
        ('{"item": "images/p/0001", "status": "ok", "extra": ' + "[" * 500 + "]" * 500 + "}", "nested too deep"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_line_that_is_no_record_is_named_and_is_as_if_it_was_not_there(
    cell: Cell, text: str | bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    second_line(cell.generation, text)
    [line] = [line for line in report(capsys) if "generation.jsonl" in line]
    assert line.startswith(f"{cell.generation}:2: not a record: ") and says in line
    assert "Unreadable files" in (output_root() / "leaderboard.md").read_text()
    site = Site(output_root() / "report/index.html")
    assert [one for one in site.index["unreadable"] if "generation.jsonl" in one] == [line]
    item = site.items("bad", "text")["images/p/0001"]
    assert "preview" in item and item["values"], "the score and the image of the item are shown all the same"


def test_a_file_that_cannot_be_read_is_named(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    puts: dict[str, Callable[[Path], None]] = {
        "Is a directory": lambda path: path.mkdir(),
        "Too many levels of symbolic links": lambda path: path.symlink_to(path.name),
        "No such file or directory": lambda path: path.symlink_to("nowhere"),
    }
    names = ("generation.jsonl", "scores.jsonl", "result.json")
    for turn in range(3):
        for name, (says, put) in zip(names, [*puts.items()][turn:] + [*puts.items()][:turn], strict=True):
            path = cell.folder / name
            data = path.read_bytes()
            path.unlink()
            put(path)
            lines = [line for line in report(capsys) if str(path) in line]
            assert len(lines) == 1 and says in lines[0]
            path.rmdir() if path.is_dir() else path.unlink()
            path.write_bytes(data)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("schema", "imageevalkit.result/2", "schema is"),
        ("metrics", {"accuracy": {"value": 10**400, "n": 3}}, "'metrics.accuracy.value'"),
        ("provenance", json.loads("[" * 200 + "]" * 200), "nested too deep"),
    ],
)
def test_a_result_of_another_shape_is_named(
    cell: Cell, field: str, value: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads(cell.result.read_text())
    cell.result.write_text(json.dumps({**raw, field: value}))
    [line] = [line for line in report(capsys) if "result.json" in line]
    assert line.startswith(f"bad/text: {cell.result} is not readable: ") and says in line


def test_many_bad_lines_are_named_in_few(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    cell.scores.write_text("{}\n" * 100)
    told = [line.removeprefix(str(cell.scores)) for line in report(capsys) if "scores.jsonl" in line]
    assert told[0] == ":1: not a record: 'item' is missing"
    assert told[4:] == [":5: not a record: 'item' is missing", ": 95 more lines are no records"]


def test_folders_that_cannot_be_looked_into_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    root = output_root()
    (root / "loop").symlink_to("loop")
    (root / "away").symlink_to("/no/such/disk")
    (root / NO_UTF8 / "text").mkdir(parents=True)
    (root / "good" / NO_UTF8).mkdir()
    (root / "a file").write_text("left by somebody")
    lines = report(capsys)
    assert f"{root}/loop cannot be read: Too many levels of symbolic links" in lines
    assert f"{root}/away cannot be read: No such file or directory" in lines
    for folder in (root, root / "good"):
        assert f"{folder}/caf\\udce9 is left out: its name is not UTF-8; rename it" in lines
    assert not [line for line in lines if "a file" in line]


def test_a_cell_whose_name_is_no_utf8_stops_no_report(cell: Cell) -> None:
    cell.folder.parent.rename(output_root() / NO_UTF8)
    run = subprocess.run(
        [sys.executable, "-m", "imageevalkit.report"],
        env=environ(REPO, IMAGEEVALKIT_OUTPUT=str(output_root()), LC_ALL="POSIX"),
        capture_output=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, b"")
    named = [line for line in run.stdout.decode().splitlines() if "caf\\udce9" in line]
    assert len(named) == 1 and named[0].endswith("is left out: its name is not UTF-8; rename it")
    assert b"good" in run.stdout
    assert "| good |" in (output_root() / "leaderboard.md").read_text()


@pytest.mark.parametrize("text", ["", DEEP, '{"state": "complete"}'])
def test_an_outcome_that_cannot_be_read_is_no_score_of_this_run(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = outcome_path(tmp_path / "run", Cell("bad", "text"), "evaluate")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    job = Job("evaluate:bad/text", "evaluate", ["e"], ["bad/text"], ["e.log"])
    lines = report(capsys, Plan(str(tmp_path / "run"), False, [job]))
    [line] = [line for line in lines if line.startswith("bad/text: ")]
    assert line.startswith("bad/text: failed in this run: its outcome file is unreadable")


def test_no_damage_at_all_hides_the_good_cell(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    write_cell("bad", "text", ITEMS, {"accuracy": Metric(0.25, 3)}, evaluator=QWEN)
    files = {path: path.read_bytes() for path in (cell.generation, cell.scores, cell.result)}
    # a fixed seed: a failure can be repeated
    draw = random.Random(17)
    for _ in range(40):
        for path, data in files.items():
            path.write_bytes(_damaged(data, draw))
        report(capsys)


_ODD: list[Any] = [
    *(None, True, -1, 0, 3.5, 10**400, float("nan"), "", "\ud83d", "\x1b[2J", "a\0b", "../x", "x" * 5000),
    *("1" * 5000, f"images/{'y' * 300}", [], [1], ["a"], [[[]]], {}, {"a": {"b": [None]}}, {"class": 1}),
]


def _damaged(data: bytes, draw: random.Random) -> bytes:
    """``data`` with some bytes, the end, or values of its JSON changed, or as it is."""
    kind = draw.choice(["whole", "bytes", "cut", "values", "values", "values"])
    if kind == "bytes":
        changed = bytearray(data)
        for _ in range(draw.randint(1, 8)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)
    if kind == "cut":
        return data[: draw.randrange(len(data))]
    if kind == "whole":
        return data
    lines = data.splitlines() if data.count(b"\n{") else [data]
    at = draw.randrange(len(lines))
    lines[at] = json.dumps(_changed(json.loads(lines[at]), draw)).encode()
    return b"\n".join(lines)


def _changed(value: Any, draw: random.Random) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.8:
        name = draw.choice(list(value))
        return (
            {**value, name: _changed(value[name], draw)} if draw.random() < 0.8 else {**value, "": 0, name: 0}
        )
    return draw.choice(_ODD)
