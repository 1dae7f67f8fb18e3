"""A benchmark of ours whose official program is run on the images."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest
from PIL import Image

from imageevalkit.benchmark.contract import Answers, Sample, ScoredItem, Scores
from imageevalkit.benchmark.shapes import OfficialScript
from imageevalkit.common.atomic import copy_file
from imageevalkit.common.errors import CellFailure
from imageevalkit.evaluate.scoring import evaluate_cell
from imageevalkit.jobs.plan import COMPLETE, EvaluateOrder
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.registry import BenchmarkDataset
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item, items_of
from imageevalkit.store.results import Metric, read_result

PROGRAM = """
import json, pathlib, sys
from PIL import Image

images, output = map(pathlib.Path, sys.argv[1:])
sizes = {path.relative_to(images).as_posix(): Image.open(path).width for path in sorted(images.rglob("*.png"))}
(output / "sizes.json").write_text(json.dumps(sizes))
(output / "metrics.json").write_text(json.dumps({"width": {"value": sum(sizes.values()) / len(sizes), "scale": 64}}))
"""


class Widths(OfficialScript):
    name = "widths"
    version = "1"
    headline = ("width",)
    code: Path

    @property
    def data(self) -> Path:
        return self.code

    def samples(self) -> Iterable[Sample]:
        return [Sample(f"images/deep/{n}.png", f"prompt {n}") for n in range(4)]

    def command(self, images: Path, output: Path) -> Sequence[str]:
        return [sys.executable, "program.py", str(images), str(output)]


@pytest.fixture
def benchmark(tmp_path: Path) -> Widths:
    (tmp_path / "program.py").write_text(PROGRAM)
    benchmark = Widths()
    benchmark.code = tmp_path
    return benchmark


@pytest.fixture
def scores(benchmark: Widths) -> Scores:
    """Returns the scores of a run over the first three images. One image is missing; the fourth is of an
    earlier run.
    """
    cell = Cell("model", "widths")
    scored = []
    for n, sample in enumerate(benchmark.samples()):
        path = cell.folder / sample.file
        path.parent.mkdir(parents=True, exist_ok=True)
        item = Item(f"images/deep/{n}", path, 42, sample.prompt, None, {})
        if n != 1:
            Image.new("RGB", (16 * (n + 1), 8)).save(path)
        made = path if path.exists() else None
        answers = Answers({})
        scored.append(ScoredItem(item, made, answers, {}, benchmark.score(item, answers) if made else None))
    return Scores(scored[:3])


def test_a_program_scores_the_images_of_the_run_alone(benchmark: Widths, scores: Scores) -> None:
    assert benchmark.metrics(scores) == {"width": Metric((16 + 48) / 2, 2, None, 64)}
    assert json.loads(benchmark.official_files(scores)["sizes.json"]) == {
        "images/deep/0.png": 16,
        "images/deep/2.png": 48,
    }


def test_a_program_that_changes_its_images_leaves_those_of_the_run_alone(
    benchmark: Widths, scores: Scores
) -> None:
    """Programs resize images in place, or remove what they have read."""
    folder = scores.items[0].item.folder
    before = {path: path.read_bytes() for path in folder.rglob("*.png")}
    (benchmark.code / "program.py").write_text(
        PROGRAM
        + """
for n, path in enumerate(sorted(images.rglob("*.png"))):
    path.write_bytes(b"") if n else path.unlink()
"""
    )
    benchmark.metrics(scores)
    assert len(before) == 3
    assert {path: path.read_bytes() for path in folder.rglob("*.png")} == before


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("raise SystemExit(5)", "its official program ended with status 5; the log has its output"),
        (PROGRAM.replace('"scale": 64', '"scale": 1'), "metric 'width': 32 is beyond its scale of 1"),
    ],
)
def test_a_program_that_fails_is_no_score(benchmark: Widths, scores: Scores, program: str, says: str) -> None:
    (benchmark.code / "program.py").write_text(program)
    with pytest.raises(CellFailure) as failure:
        benchmark.metrics(scores)
    assert says in str(failure.value)


def test_a_program_scores_where_nobody_may_be_asked(benchmark: Widths) -> None:
    cell = Cell("model", "widths")
    items = items_of(BenchmarkDataset(benchmark), cell)
    for item in items:
        item.path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 8)).save(item.path)
    outcome = evaluate_cell(cell, benchmark, items, ProgressWriter(), EvaluateOrder(ask=False))
    assert outcome.state == COMPLETE
    assert read_result(cell.result).metrics["width"].value == 32


def test_a_copy_shares_its_blocks_where_the_file_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "image").write_bytes(b"pixels")

    def clone(target: BinaryIO, request: int, source: int) -> None:
        assert request == 0x40049409, "FICLONE of linux/fs.h"
        target.write(b"shares: " + os.pread(source, 99, 0))

    monkeypatch.setattr(fcntl, "ioctl", clone)
    copy_file(tmp_path / "image", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"shares: pixels"
