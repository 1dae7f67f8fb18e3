"""Images made elsewhere: found in the official layout, copied byte for byte, never mixed with our own."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit.benchmark.image_files import Place
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.grids import Grid
from imageevalkit.extras.adopt.copies import adopt_cell, images_to_come
from imageevalkit.extras.adopt.sources import ImageFinder, find_images
from imageevalkit.jobs.plan import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.records import last_records
from imageevalkit.store.states import survey_images
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
    own = dataset.find_images if isinstance(dataset, ImageFinder) else None
    found = find_images(source, wanted, dataset.data, own)
    return adopt_cell(CELL, wanted, source, found, ProgressWriter(), overwrite)


def test_bytes_are_copied_as_they_are_whatever_their_format(tmp_path: Path) -> None:
    source = made_elsewhere(tmp_path / "theirs/images", 3, ".jpg")
    assert adopt(tmp_path / "theirs", 3).state == COMPLETE
    images = sorted((CELL.folder / "images").iterdir())
    assert [path.name for path in images] == ["00000.png", "00001.png", "00002.png"]
    assert [path.read_bytes() for path in images] == [p.read_bytes() for p in sorted(source.iterdir())]
    states = survey_images(CELL, items(FakeDataset(3))).states
    assert [(state.status, state.made_here) for state in states.values()] == [("generated", False)] * 3
    record = last_records(CELL)["images/00002"]
    assert (record.size, record.seed) == ((8, 10), None)
    assert record.source == str(source / "00002.jpg")


def test_a_second_time_copies_only_what_changed(tmp_path: Path) -> None:
    source = made_elsewhere(tmp_path / "theirs", 3)
    adopt(source, 3)
    thumbnails = {path.stem for path in (CELL.folder / ".thumbnails").iterdir()}
    assert thumbnails == {record.image_sha256 for record in last_records(CELL).values()}
    before = CELL.generation.read_text()
    adopt(source, 3)
    assert CELL.generation.read_text() == before
    Image.new("RGB", (9, 9), "blue").save(source / "00001.png")
    (source / "00002.png").unlink()
    assert adopt(source, 3).state == INCOMPLETE
    assert (CELL.folder / "images/00001.png").read_bytes() == (source / "00001.png").read_bytes()
    assert not (CELL.folder / "images/00002.png").exists(), "an image that is gone must not be scored"
    statuses = [state.status for state in survey_images(CELL, items(FakeDataset(3))).states.values()]
    assert statuses == ["generated", "generated", "failed"]


def saved(format: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, format)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"<html>not found</html>", "no image of a known format"),
        (saved("PNG")[:-20], "Truncated"),
        (saved("PPM"), "its format is PPM: only PNG, JPEG, WEBP, BMP, GIF, TIFF are opened"),
    ],
    ids=["text", "png-cut", "another-format"],
)
def test_a_file_that_is_no_whole_image_is_named_and_corrupt_and_all_others_are_taken(
    tmp_path: Path, data: bytes, says: str
) -> None:
    source = made_elsewhere(tmp_path / "theirs", 4)
    bad = source / "00001.png"
    bad.write_bytes(data)
    (source / "00003.png").unlink()
    logged: list[str] = []

    def again() -> Outcome:
        wanted = items(FakeDataset(4))
        found = find_images(source, wanted, FakeDataset(4).data)
        return adopt_cell(CELL, wanted, source, found, ProgressWriter(), log=logged.append)

    first = again()
    assert first.state == INCOMPLETE
    assert "1 of 4 images are not available: 00003.png (the first: there is no image of it" in first.message
    told = f"1 of 4 images are corrupt and not copied: 00001.png (the first: {bad} does not decode ("
    assert told in first.message and says in first.message.split(told)[1]
    assert any(line.startswith(f"corrupt: images/00001: {bad} does not decode (") for line in logged)
    assert not (CELL.folder / "images/00001.png").exists()
    record = last_records(CELL)["images/00001"]
    assert (record.status, record.attempts, record.source) == ("failed", 0, str(bad))
    states = survey_images(CELL, items(FakeDataset(4))).states
    assert [one.status for one in states.values()] == ["generated", "corrupt", "generated", "failed"]
    assert says in states["images/00001"].reason

    before = CELL.generation.read_text()
    assert again() == first
    assert CELL.generation.read_text() == before, "an unchanged file is not looked into again"
    found = find_images(source, items(FakeDataset(4)), FakeDataset(4).data)
    planned = images_to_come(CELL, items(FakeDataset(4)), found)
    assert list(planned) == ["images/00000", "images/00002"], "nothing will be asked about it"

    bad.write_bytes(saved("PNG"))
    assert "corrupt" not in again().message
    states = survey_images(CELL, items(FakeDataset(4))).states
    assert [one.status for one in states.values()] == ["generated"] * 3 + ["failed"]


def test_of_two_files_of_one_name_none_is_taken(tmp_path: Path) -> None:
    source = made_elsewhere(tmp_path / "theirs", 3)
    (source / "00001.jpg").write_bytes(saved("JPEG"))
    outcome = adopt(source, 3)
    said = f"00001.png (the first: 2 files in {source} may be it (00001.jpg, 00001.png): leave one)"
    assert outcome == Outcome(INCOMPLETE, f"1 of 3 images are not available: {said}")


def test_a_json_of_paths_by_prompt_is_taken_for_every_benchmark(tmp_path: Path) -> None:
    source = made_elsewhere(tmp_path / "theirs", 2)
    listed = tmp_path / "paths.json"
    listed.write_text(json.dumps({"prompt 0": "theirs/00001.png", "prompt 1": "gone.png", "other": "x.png"}))
    outcome = adopt(listed, 3)
    assert outcome.state == INCOMPLETE
    assert f"{Path.cwd() / 'gone.png'}, named in {listed}, is not there" in outcome.message
    records = last_records(CELL)
    assert records["images/00000"].source == str(source / "00001.png")
    assert records["images/00002"].reason == f"there is no image of it in {listed}"
    listed.write_text(json.dumps({"a prompt of nobody": "theirs/00001.png"}))
    with pytest.raises(CellFailure, match=f"no prompt of fake is in {listed}"):
        adopt(listed, 3)


def test_a_json_cannot_name_several_images_of_a_prompt(tmp_path: Path) -> None:
    dataset = FakeDataset(3)
    for entry in dataset.data[:2]:
        entry["prompt"] = "a cat"
    made_elsewhere(tmp_path, 3)
    listed = tmp_path / "paths.json"
    listed.write_text(json.dumps({"a cat": "00000.png", "prompt 2": "00002.png"}))
    reason = f"{listed} names one image for a prompt that 2 images are made of: give a folder in the official layout"
    said = f"2 of 3 images are not available: 00000.png, 00001.png (the first: {reason})"
    assert adopt(listed, 3, dataset).message == said


@pytest.mark.parametrize("text", ['{"a": 1}', "{", "\udcff"])
def test_what_is_no_map_of_images_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "images.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CellFailure, match=r"images\.json is no JSON") as error:
        adopt(path, 2)
    assert "\n" not in str(error.value)


def test_a_folder_with_nothing_of_the_benchmark_is_named(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"")
    with pytest.raises(
        CellFailure,
        match=r"no image of fake is in .*: rename the files; the items of this run are 00000, 00001$",
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


def test_what_was_cut_out_of_a_grid_before_is_known_until_the_grid_changes(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    picture = Image.new("RGB", (16, 8), "red")
    picture.paste("black", (8, 0, 16, 8))
    picture.save(sheet)
    wanted = items(FakeDataset(2))
    found: dict[str, Place] = {item.id: Place(sheet, Grid(1, 2), n) for n, item in enumerate(wanted)}
    assert len(images_to_come(CELL, wanted, found)) == 2, "not looked into yet"
    adopt_cell(CELL, wanted, tmp_path, found, ProgressWriter())
    [known] = images_to_come(CELL, wanted, found).values()
    assert known.sha256 == last_records(CELL)[wanted[0].id].image_sha256
    picture.paste("blue", (8, 0, 16, 8))
    picture.save(sheet)
    assert len(images_to_come(CELL, wanted, found)) == 2
