"""Images made elsewhere: found in the official layout, copied byte for byte, never mixed with our own."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit.benchmark.image_files import Place
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.grids import Grid
from imageevalkit.extras.adopt.copies import adopt_cell, images_to_come
from imageevalkit.extras.adopt.sources import ImageFinder, find_images, read_filepaths
from imageevalkit.jobs.plan import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.records import last_records
from imageevalkit.store.states import survey_images
from tests.support.generation import FakeDataset, FakeModel, generate, items
from tests.support.pngs import png

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


@pytest.mark.parametrize("below", ["", "images"])
def test_bytes_are_copied_as_they_are_whatever_their_format(tmp_path: Path, below: str) -> None:
    source = made_elsewhere(tmp_path / "theirs" / below, 3, ".jpg")
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
        (b"", "no image of a known format"),
        (b"<html>not found</html>", "no image of a known format"),
        (saved("PNG")[:-20], "Truncated"),
        (saved("JPEG")[:-40], "Truncated"),
        (png(bytes(4 * 25), 8, 8), "the rows of the PNG are truncated or broken"),
        (saved("PPM"), "its format is PPM: only PNG, JPEG, WEBP, BMP, GIF, TIFF are opened"),
    ],
    ids=["empty", "text", "png-cut", "jpeg-cut", "half-of-the-rows", "another-format"],
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


def test_what_an_earlier_version_took_for_an_image_is_looked_into(tmp_path: Path) -> None:
    source = made_elsewhere(tmp_path / "theirs", 2)
    adopt(source, 2)
    copied = CELL.folder / "images/00001.png"
    for path in (source / "00001.png", copied):
        path.write_bytes(b"no image")
    record = last_records(CELL)["images/00001"].as_object()
    record |= {"image_sha256": hashlib.sha256(b"no image").hexdigest(), "size": None, "flat": None}
    with CELL.generation.open("a") as file:
        file.write(json.dumps(record) + "\n")
    assert "corrupt and not copied: 00001.png" in adopt(source, 2).message
    assert not copied.exists()


def test_of_two_files_of_one_name_none_is_taken(tmp_path: Path) -> None:
    source = made_elsewhere(tmp_path / "theirs", 3)
    (source / "00001.jpg").write_bytes(saved("JPEG"))
    outcome = adopt(source, 3)
    said = f"00001.png (the first: 2 files in {source} may be it (00001.jpg, 00001.png): leave one)"
    assert outcome == Outcome(INCOMPLETE, f"1 of 3 images are not available: {said}")


@pytest.mark.parametrize("count", [1, 3])
def test_the_suffix_of_another_format_is_told(tmp_path: Path, count: int) -> None:
    source = made_elsewhere(tmp_path / "theirs/images", 3)
    for path in sorted(source.iterdir())[:count]:
        path.rename(path.with_suffix(".avif"))
    said = f"there is {source / '00000.avif'}, but only PNG, JPEG, WebP, BMP, GIF and TIFF files are taken"
    if count == 3:
        with pytest.raises(CellFailure) as error:
            adopt(tmp_path / "theirs", 3)
        assert str(error.value) == said
    else:
        assert f"1 of 3 images are not available: 00000.png (the first: {said})" == adopt(source, 3).message


@pytest.mark.parametrize("name", ["0.png", "000.PNG", "0000000.jpg"])
def test_a_file_of_nearly_the_name_is_told_and_not_taken(tmp_path: Path, name: str) -> None:
    source = made_elsewhere(tmp_path / "theirs", 3)
    (source / "00000.png").rename(source / name)
    said = f"there is {source / name}, nearly 00000: rename it if it is the image"
    assert adopt(source, 3).message == f"1 of 3 images are not available: 00000.png (the first: {said})"
    (source / name).rename(source / "0-copy.png")
    assert ", nearly " not in adopt(source, 3).message, "another name says nothing"


def test_a_file_that_is_the_image_of_another_item_is_not_offered(tmp_path: Path) -> None:
    class Numbered(FakeDataset):
        def __init__(self) -> None:
            super().__init__(2)
            for entry, name in zip(self.data, ("1", "01"), strict=True):
                entry["image_save_path"] = f"<MODEL_NAME>/fake/images/{name}.png"

    Image.new("RGB", (8, 8)).save(tmp_path / "01.png")
    assert ", nearly " not in adopt(tmp_path, 2, Numbered()).message


def test_tif_is_tiff(tmp_path: Path) -> None:
    assert adopt(made_elsewhere(tmp_path / "theirs", 2, ".tif"), 2).state == COMPLETE


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


def test_relative_paths_are_relative_to_the_file_or_else_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "images.json"
    path.write_text('{"a": "x/0.png", "b": "/far/1.png"}')
    monkeypatch.chdir("/")
    assert read_filepaths(path) == {"a": Path("/x/0.png"), "b": Path("/far/1.png")}
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "0.png").touch()
    assert read_filepaths(path)["a"] == tmp_path / "x" / "0.png"


@pytest.mark.parametrize("text", ["[]", "{}", '{"a": 1}', '{"a": ""}', '{"a": ["x.png"]}', "{", "\udcff"])
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
        match=r"no image of fake is in .*: PNG, .* TIFF files are taken, named as in .*2 items .* with 00000\.png",
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


def test_the_folder_images_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    made_elsewhere(tmp_path / "elsewhere", 2)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/images").symlink_to(tmp_path / "elsewhere")
    assert adopt(tmp_path / "theirs", 2).state == COMPLETE


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
    assert last_records(CELL)["images/00001"].source == str(source / "00000.png")
    assert adopt(source, 2, WithList(2), overwrite=True).state == COMPLETE


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


def test_a_whole_grid_is_cut_anew_where_earlier_versions_cut_it_otherwise(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    picture = Image.new("RGB", (17, 8), "red")
    picture.paste("black", (8, 0, 17, 8))
    picture.save(sheet)
    wanted = items(FakeDataset(2))
    for is_whole, sizes in ((False, [8]), (True, [8, 9])):
        places = {item.id: Place(sheet, Grid(1, 2, is_whole), n) for n, item in enumerate(wanted)}
        coming = images_to_come(CELL, wanted, places).values()
        assert [one.sha256.partition(":")[0] for one in coming] == ["to come", "to come"]
        adopt_cell(CELL, wanted, tmp_path, places, ProgressWriter())
        made = [item.path for item in wanted if last_records(CELL)[item.id].status == "ok"]
        assert [Image.open(path).width for path in made] == sizes
    written = CELL.generation.read_bytes()
    adopt_cell(CELL, wanted, tmp_path, places, ProgressWriter())
    assert CELL.generation.read_bytes() == written, "nothing is new"
