"""Copies of the images to edit stay in the cell, and the report uses them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from imageevalkit.jobs.plan import COMPLETE
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.items import items_of
from imageevalkit.store.pictures import FOLDER, THUMBNAILS
from imageevalkit.store.records import last_records
from tests.support.generation import generate
from tests.support.site import Site, reported

CELL = Cell("m", "fake")


class Edits:
    """``lists`` are what the model is shown, each for an image."""

    dataset_name, dataset_task = "fake", "edit"

    def __init__(self, *lists: Sequence[Any]) -> None:
        self.data = [
            {"input_list": given, "seed": 0, "image_save_path": f"<MODEL_NAME>/fake/images/{n}.png"}
            for n, given in enumerate(lists)
        ]


class Turner:
    """Turns the first image upside down; it cannot do what is "impossible"."""

    def __init__(self) -> None:
        self.calls = 0

    def generate(self, given: Sequence[Any], seed: int = 42) -> Image.Image:
        self.calls += 1
        if "impossible" in given:
            raise RuntimeError("impossible")
        return next(part for part in given if not isinstance(part, str)).convert("RGB").rotate(180)


def paint(colour: str, size: tuple[int, int] = (60, 40)) -> Image.Image:
    """A picture without a file."""
    return Image.new("RGB", size, colour)


def saved(path: Path, image: Image.Image) -> Path:
    path.parent.mkdir(exist_ok=True)
    image.save(path)
    return path


def inputs_of(site: Site, item: str) -> list[dict[str, Any]]:
    """Returns the sources of an item in the site."""
    [row] = (row for row in site.prompts("fake")["rows"] if item in row["items"])
    found: list[dict[str, Any]] = row.get("inputs", [])
    return found


def colours(site: Site, item: str) -> list[tuple[int, ...] | None]:
    """The colour in the middle of each source of an item; None: it has no picture."""
    found: list[Any] = []
    for shown in inputs_of(site, item):
        if not shown["preview"]:
            found.append(None)
            continue
        with Image.open(io.BytesIO(site.picture(shown["preview"]))) as image:
            middle: Any = image.convert("RGB").getpixel((image.width // 2, image.height // 2))
            found.append(tuple(round(part, -2) for part in middle))
    return found


def test_each_distinct_image_is_copied_once_and_outlives_the_data(tmp_path: Path) -> None:
    file = saved(tmp_path / "data/big.jpg", paint("blue", (2048, 512)))
    opened = Image.open(file)
    pages = Edits(
        [opened, "a"], [Image.open(file), "b"], [paint("red"), "impossible", opened], ["c", paint("red")]
    )
    generate(Turner(), pages)
    names = {id: [one["sha256"] for one in record.inputs or ()] for id, record in last_records(CELL).items()}
    blue, red = names["images/0"][0], names["images/3"][0]
    assert names == {
        "images/0": [blue],
        "images/1": [blue],
        "images/2": [red, blue],  # failed, and shown all the same
        "images/3": [red],
    }
    assert {path.stem for path in (CELL.folder / FOLDER).iterdir()} == {blue, red}
    with Image.open(CELL.folder / FOLDER / f"{blue}.webp") as copy:
        assert copy.size == (1024, 256)
    shutil.rmtree(tmp_path / "data")
    site = reported()
    assert colours(site, "images/1") == [(0, 0, 300)]
    assert colours(site, "images/2") == [(300, 0, 0), (0, 0, 300)]
    sizes = []
    for shown in inputs_of(site, "images/2"):
        with Image.open(io.BytesIO(site.picture(shown["preview"]))) as image:
            sizes.append(image.size)
    assert sizes == [(60, 40), (192, 48)]
    pictures = list((site.page.parent / "pictures").glob("*/*.webp"))
    assert len(pictures) == 4, "two sources, and two images that were made of them"


def test_a_source_that_is_not_the_recorded_one_is_not_shown() -> None:
    generate(Turner(), Edits([paint("red"), "a"], [paint("lime"), "b"]))
    red = (last_records(CELL)["images/0"].inputs or [])[0]
    copy = CELL.folder / red["path"]
    shutil.copyfile(CELL.folder / (last_records(CELL)["images/1"].inputs or [])[0]["path"], copy)
    for thumbnail in ((300, 0, 0), None):  # of the recorded one, while there is one
        site = reported()
        assert colours(site, "images/0") == [thumbnail]
        assert "path" not in inputs_of(site, "images/0")[0]
        assert colours(site, "images/1") == [(0, 300, 0)]
        assert site.items("m", "fake")["images/0"]["status"] == "generated"
        shutil.rmtree(CELL.folder / THUMBNAILS)
        shutil.rmtree(output_root() / "report")


def test_sources_of_any_kind_and_none_costs_an_image(tmp_path: Path) -> None:
    file = saved(tmp_path / "data/a.ppm", paint("blue"))
    whole = saved(tmp_path / "data/a.png", Image.effect_noise((60, 40), 90)).read_bytes()
    torn = tmp_path / "data/torn.png"
    torn.write_bytes(whole[: len(whole) // 2])

    class Dreamer(Turner):
        def generate(self, given: Sequence[Any], seed: int = 42) -> Image.Image:
            return paint("lime")

    grey = Image.new("I;16", (60, 40), 0)
    edits = Edits([Image.open(file), "a"], [grey, "b"], [Image.open(torn), "c"])
    assert generate(Dreamer(), edits).state == COMPLETE
    site = reported()
    assert [colours(site, f"images/{n}") for n in range(3)] == [
        [(0, 0, 300)],
        [(0, 0, 0)],
        [None],
    ]


def test_a_damaged_copy_is_made_again() -> None:
    edits = Edits([paint("red"), "a"])
    generate(Turner(), edits)
    [copy] = (CELL.folder / FOLDER).iterdir()
    whole = copy.read_bytes()
    copy.write_bytes(whole[: len(whole) // 2])
    items_of(edits, CELL)[0].path.unlink()
    assert generate(Turner(), edits).state == COMPLETE
    assert copy.read_bytes() == whole
