"""Files of cells as disks, editors and killed processes leave them: the report of all others is made, each is named."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imageevalkit.common.errors import ExitStatus
from imageevalkit.jobs.plan import Job, Plan, outcome_path
from imageevalkit.report.__main__ import make_report
from imageevalkit.report.collect import collect
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.results import Metric
from tests.support.cells import Made, write_cell
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
        (b'{"item": "caf\xe9", "status": "ok"}', "utf-8"),
        (DEEP, "it is nested too deep"),
    ],
    ids=["status", "utf-8", "depth"],
)
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


def test_files_and_folders_that_cannot_be_read_are_named(
    cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    puts: dict[Path, tuple[str, Callable[[Path], None]]] = {
        cell.generation: ("Is a directory", lambda path: path.mkdir()),
        cell.scores: ("Too many levels of symbolic links", lambda path: path.symlink_to(path.name)),
        cell.result: ("No such file or directory", lambda path: path.symlink_to("nowhere")),
    }
    for path, (says, put) in puts.items():
        data = path.read_bytes()
        path.unlink()
        put(path)
        [line] = [line for line in report(capsys) if str(path) in line]
        assert says in line
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(data)
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


def test_an_outcome_that_cannot_be_read_is_no_score_of_this_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = outcome_path(tmp_path / "run", Cell("bad", "text"), "evaluate")
    path.parent.mkdir(parents=True)
    path.write_text("")
    job = Job("evaluate:bad/text", "evaluate", ["e"], ["bad/text"], ["e.log"])
    lines = report(capsys, Plan(str(tmp_path / "run"), False, [job]))
    [line] = [line for line in lines if line.startswith("bad/text: ")]
    assert line.startswith("bad/text: failed in this run: its outcome file is unreadable")
