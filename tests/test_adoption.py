"""Images made elsewhere: found in the official layout, copied byte for byte, never mixed with our own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit.adoption.adopt import adopt_cell
from imageevalkit.adoption.finding import find_images
from imageevalkit.adoption.found import Found, Piece
from imageevalkit.cell import Cell
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.forecast import pictures_elsewhere
from imageevalkit.evaluation.survey import survey_images
from imageevalkit.generation.records import last_records
from imageevalkit.grids import Grid
from imageevalkit.items import Item
from imageevalkit.jobs import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.progress import ProgressWriter
from tests.support.checkout import make_checkout, run_eval
from tests.support.generation import FakeDataset, FakeModel, generate, items

CELL = Cell("m", "fake")


def made_elsewhere(folder: Path, count: int, suffix: str = ".png") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        Image.new("RGB", (8, 8 + n), "red").save(folder / f"{n:05d}{suffix}")
    return folder


def adopt(source: Path, n: int, dataset: Any = None, overwrite: bool = False) -> Outcome:
    dataset = dataset or FakeDataset(n)
    wanted = items(dataset)
    found = find_images(source, wanted, dataset)
    return adopt_cell(CELL, wanted, source, found, ProgressWriter(), overwrite)


@pytest.mark.parametrize("below", ["", "images"])
def test_bytes_are_copied_as_they_are_whatever_their_format(tmp_path: Path, below: str) -> None:
    source = made_elsewhere(tmp_path / "theirs" / below, 3, ".jpg")
    assert adopt(tmp_path / "theirs", 3).state == COMPLETE
    images = sorted((CELL.folder / "images").iterdir())
    assert [path.name for path in images] == ["00000.png", "00001.png", "00002.png"]
    assert [path.read_bytes() for path in images] == [p.read_bytes() for p in sorted(source.iterdir())]
    states = survey_images(CELL, items(FakeDataset(3)))
    assert [(state.status, state.made_here) for state in states.values()] == [("generated", False)] * 3
    record = last_records(CELL)["images/00002"]
    assert (record["size"], record["seed"]) == ([8, 10], None)
    assert record["source"] == str(source / "00002.jpg")


def test_a_second_time_copies_only_what_changed(tmp_path: Path) -> None:
    source = made_elsewhere(tmp_path / "theirs", 3)
    adopt(source, 3)
    before = CELL.generation.read_text()
    adopt(source, 3)
    assert CELL.generation.read_text() == before
    Image.new("RGB", (9, 9), "blue").save(source / "00001.png")
    (source / "00002.png").unlink()
    assert adopt(source, 3).state == INCOMPLETE
    assert (CELL.folder / "images/00001.png").read_bytes() == (source / "00001.png").read_bytes()
    assert not (CELL.folder / "images/00002.png").exists(), "an image that is gone must not be scored"
    statuses = [state.status for state in survey_images(CELL, items(FakeDataset(3))).values()]
    assert statuses == ["generated", "generated", "failed"]


def test_a_damaged_image_is_taken_and_counted_as_corrupt(tmp_path: Path) -> None:
    source = made_elsewhere(tmp_path / "theirs", 2)
    (source / "00001.png").write_bytes((source / "00001.png").read_bytes()[:-20])
    adopt(source, 2)
    statuses = [state.status for state in survey_images(CELL, items(FakeDataset(2))).values()]
    assert statuses == ["generated", "corrupt"]


def test_a_folder_with_nothing_of_the_benchmark_is_named(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"")
    with pytest.raises(
        CellFailure, match=r"no image of fake is in .*the 2 items of this run begin with 00000\.png"
    ):
        adopt(tmp_path, 2)


def test_images_of_the_toolkit_are_never_replaced(tmp_path: Path) -> None:
    generate(FakeModel(), FakeDataset(2))
    before = [path.read_bytes() for path in sorted((CELL.folder / "images").iterdir())]
    with pytest.raises(CellFailure, match="generated here"):
        adopt(made_elsewhere(tmp_path / "theirs", 2), 2)
    assert [path.read_bytes() for path in sorted((CELL.folder / "images").iterdir())] == before


def test_images_of_two_sources_are_never_one_score(tmp_path: Path) -> None:
    first = made_elsewhere(tmp_path / "first", 4)
    adopt(first, 4)
    second = made_elsewhere(tmp_path / "second", 2, ".jpg")
    with pytest.raises(CellFailure, match=rf"holds the images of {first}; --overwrite replaces them"):
        adopt(second, 2)
    assert adopt(second, 2, overwrite=True).state == COMPLETE
    with pytest.raises(CellFailure, match="2 different settings"):
        survey_images(CELL, items(FakeDataset(4)))


def test_images_put_there_by_hand_are_not_replaced_unasked(tmp_path: Path) -> None:
    made_elsewhere(CELL.folder / "images", 3)
    before = [path.read_bytes() for path in sorted((CELL.folder / "images").iterdir())]
    theirs = made_elsewhere(tmp_path / "theirs", 2, ".jpg")
    with pytest.raises(CellFailure, match="3 images that were put there by hand"):
        adopt(theirs, 3)
    assert [path.read_bytes() for path in sorted((CELL.folder / "images").iterdir())] == before


def test_one_stray_file_does_not_hide_the_folder_beside_it(tmp_path: Path) -> None:
    made_elsewhere(tmp_path, 1)
    made_elsewhere(tmp_path / "images", 3)
    assert adopt(tmp_path, 3).state == COMPLETE


def test_a_dataset_may_know_a_layout_of_its_own(tmp_path: Path) -> None:
    class WithList(FakeDataset):
        def find_images(self, source: Path, wanted: Sequence[Item]) -> dict[str, Path] | None:
            if source.suffix != ".json":
                return None
            paths = json.loads(source.read_text())
            return {item.id: Path(paths[item.prompt]) for item in wanted if item.prompt in paths}

    source = made_elsewhere(tmp_path / "theirs", 2)
    listed = tmp_path / "paths.json"
    listed.write_text(json.dumps({"prompt 1": str(source / "00000.png")}))
    assert adopt(listed, 2, WithList(2)).state == INCOMPLETE
    assert last_records(CELL)["images/00001"]["source"] == str(source / "00000.png")
    assert adopt(source, 2, WithList(2), overwrite=True).state == COMPLETE


def test_a_plan_asks_about_the_images_that_are_in_the_folder(tmp_path: Path) -> None:
    checkout, theirs = make_checkout(tmp_path / "kit"), tmp_path / "theirs/en"
    theirs.mkdir(parents=True)
    for n in range(3):
        Image.new("RGB", (64, 64), (n, n, n)).save(theirs / f"{n:02d}.png")
    words = ("--images", str(theirs.parent), "--model_names", "a", "--ds_names", "quicktext")

    def planned() -> str:
        return run_eval(checkout, *words, "--dry_run").stdout

    assert "a/quicktext: 3 of 3 questions to ask of ppocr-v4" in planned()
    assert run_eval(checkout, *words).returncode == 3
    assert "a/quicktext: 0 of 3 questions to ask of ppocr-v4" in planned()
    Image.new("RGB", (64, 64), "red").save(theirs / "00.png")
    (theirs / "02.png").unlink()
    assert "a/quicktext: 1 of 2 questions to ask of ppocr-v4" in planned()
    (theirs / "01.png").write_bytes(b"no image")
    assert "a/quicktext: 1 of 1 questions to ask of ppocr-v4" in planned()
    assert run_eval(checkout, *words, "--overwrite").returncode == 3
    assert "a/quicktext: 0 of 1 questions to ask of ppocr-v4" in planned()


def test_what_was_cut_out_of_a_grid_before_is_known_until_the_grid_changes(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    picture = Image.new("RGB", (16, 8), "red")
    picture.paste("black", (8, 0, 16, 8))
    picture.save(sheet)
    wanted = items(FakeDataset(2))
    found: dict[str, Found] = {item.id: Piece(sheet, Grid(1, 2), n) for n, item in enumerate(wanted)}
    assert len(pictures_elsewhere(CELL, wanted, found)) == 2, "not looked into yet"
    adopt_cell(CELL, wanted, tmp_path, found, ProgressWriter())
    [known] = pictures_elsewhere(CELL, wanted, found).values()
    assert known.sha256 == last_records(CELL)[wanted[0].id]["image_sha256"]
    picture.paste("blue", (8, 0, 16, 8))
    picture.save(sheet)
    assert len(pictures_elsewhere(CELL, wanted, found)) == 2


def test_through_eval_sh_from_another_folder(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "kit")
    theirs = tmp_path / "theirs"
    for language in ("en", "zh"):
        (theirs / language).mkdir(parents=True)
        for n in range(24):
            Image.new("RGB", (64, 64), "white").save(theirs / language / f"{n:02d}.png")
    words = ("--ds_names", "quicktext", "--limit", "4")
    whose = run_eval(checkout, "--images", str(theirs), "--model_names", "a;b", *words)
    assert whose.returncode == 1
    assert "en/00.png is in no folder of its model: with several models in --model_names" in whose.stdout
    assert not list((checkout / "output").glob("[ab]/*/images")), "one model's images are not the other's"
    shutil.rmtree(checkout / "output")
    absent = run_eval(checkout, "--images", str(tmp_path / "no"), "--model_names", "a", *words)
    assert absent.returncode == 2
    assert f"--images: there is no {tmp_path / 'no'}" in absent.stderr
    planned = run_eval(checkout, "--images", str(theirs), "--model_names", "a", *words, "--dry_run")
    assert f"a/quicktext: 4 of 4 images are in {theirs}" in planned.stdout
    assert not (checkout / "output").exists()
    empty = run_eval(checkout, "--images", str(tmp_path), "--model_names", "a", *words, "--dry_run")
    assert empty.returncode == 1
    assert "no image of quicktext is in" in empty.stdout
    run = run_eval(checkout, "--images", str(theirs), "--model_names", "a", *words)
    assert run.returncode == 0, run.stderr
    result = json.loads((checkout / "output/a/quicktext/result.json").read_text())
    assert result["coverage"]["judged"] == 4
    for model in ("b", "org/c"):
        shutil.copytree(theirs, tmp_path / "several" / model)
    both = run_eval(checkout, "--images", str(tmp_path / "several"), "--model_names", "b;org/c", *words)
    assert both.returncode == 0, both.stderr
    records = (checkout / "output/org/c/quicktext/generation.jsonl").read_text().splitlines()
    assert {json.loads(line)["source"] for line in records} <= {
        str(path) for path in (tmp_path / "several/org/c").rglob("*.png")
    }
    assert "4 images were made elsewhere: nothing says how" in result["notes"]
    assert result["provenance"]["model_settings"] == [{"images": "made elsewhere", "source": str(theirs)}]
