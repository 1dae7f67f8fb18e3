"""Copies of the images to edit stay in the cell, and the report uses them."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit.jobs.plan import COMPLETE
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.items import items_of
from imageevalkit.store.pictures import FOLDER, THUMBNAILS
from imageevalkit.store.records import last_records
from tests.support.checkout import EDITS, add_benchmark, make_checkout, needs_driver_env, run_eval
from tests.support.generation import generate
from tests.support.site import Site, reported

CELL = Cell("m", "fake")


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path / "output"))
    return tmp_path / "output"


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


def inputs_of(site: Site, item: str, benchmark: str = "fake") -> list[dict[str, Any]]:
    """Returns the sources of an item in the site."""
    [row] = (row for row in site.prompts(benchmark)["rows"] if item in row["items"])
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


def rewrite(cell: Cell, change: Any) -> None:
    """The records of ``cell``, each as ``change`` makes it."""
    records = [json.loads(line) for line in cell.generation.read_text().splitlines()]
    cell.generation.write_text("".join(json.dumps(change(record)) + "\n" for record in records))


def without_inputs(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "inputs"}


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


def test_sources_of_several_models_are_on_a_page_once() -> None:
    for model in ("m", "n", "o"):
        generate(Turner(), Edits([paint("red"), "a"], [paint("lime"), "b"]), cell=Cell(model, "fake"))
    site = reported()
    assert [len(row["inputs"]) for row in site.prompts("fake")["rows"]] == [1, 1]
    assert [colours(site, f"images/{n}") for n in (0, 1)] == [[(300, 0, 0)], [(0, 300, 0)]]
    # an identical copy elsewhere does as well
    shutil.rmtree(CELL.folder / FOLDER)
    shutil.rmtree(CELL.folder / THUMBNAILS)
    site = reported()
    assert colours(site, "images/1") == [(0, 300, 0)]
    [shown] = inputs_of(site, "images/1")
    assert shown["path"].startswith("n/fake/")
    assert site.index["cells"][shown["cell"]]["model"] == "n"


@pytest.mark.parametrize("fault", ["gone", "another", "no image"])
def test_a_source_that_is_not_the_recorded_one_is_not_shown(fault: str) -> None:
    generate(Turner(), Edits([paint("red"), "a"], [paint("lime"), "b"]))
    red = (last_records(CELL)["images/0"].inputs or [])[0]
    copy = CELL.folder / red["path"]
    if fault == "gone":
        copy.unlink()
    elif fault == "another":
        shutil.copyfile(CELL.folder / (last_records(CELL)["images/1"].inputs or [])[0]["path"], copy)
    else:
        copy.write_bytes(b"no image")
    for thumbnail in ((300, 0, 0), None):  # of the recorded one, while there is one
        site = reported()
        assert colours(site, "images/0") == [thumbnail]
        assert "path" not in inputs_of(site, "images/0")[0]
        assert colours(site, "images/1") == [(0, 300, 0)]
        assert site.items("m", "fake")["images/0"]["status"] == "generated"
        shutil.rmtree(CELL.folder / THUMBNAILS)
        shutil.rmtree(output_root() / "report")


def test_a_file_that_changed_is_another_source(tmp_path: Path) -> None:
    file = saved(tmp_path / "data/a.png", paint("red"))
    generate(Turner(), Edits([Image.open(file), "a"]), cell=Cell("m", "fake"))
    saved(file, paint("blue"))
    generate(Turner(), Edits([Image.open(file), "a"]), cell=Cell("n", "fake"))
    site = reported()
    assert colours(site, "images/0") == [(300, 0, 0), (0, 0, 300)]
    assert [one["of"] for one in inputs_of(site, "images/0")] == ["m", "n"]


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


def test_an_image_is_kept_where_its_source_cannot_be() -> None:
    CELL.folder.mkdir(parents=True)
    (CELL.folder / FOLDER).write_text("in the way")
    assert generate(Turner(), Edits([paint("red"), "a"])).state == COMPLETE
    assert colours(reported(), "images/0") == [None]


def test_records_without_inputs_count_as_before() -> None:
    edits = Edits([paint("red"), "a"], [paint("lime"), "b"])
    generate(Turner(), edits)
    rewrite(CELL, without_inputs)
    shutil.rmtree(CELL.folder / FOLDER)
    model = Turner()
    assert generate(model, edits).state == COMPLETE
    assert model.calls == 0
    site = reported()
    assert [inputs_of(site, f"images/{n}") for n in (0, 1)] == [[], []]
    assert all("preview" in item for item in site.items("m", "fake").values())
    # what another model was shown of the same item is what it was shown
    generate(Turner(), Edits([paint("red"), "a"]), cell=Cell("n", "fake"))
    site = reported()
    assert colours(site, "images/0") == [(300, 0, 0)]
    assert inputs_of(site, "images/1") == []


@pytest.mark.parametrize("path", ["../../secret.webp", "/etc/passwd", "a\0b"])
def test_a_path_out_of_the_cell_is_not_followed(path: str, tmp_path: Path) -> None:
    generate(Turner(), Edits([paint("red"), "a"]))
    one = (last_records(CELL)["images/0"].inputs or [])[0]
    shutil.copyfile(CELL.folder / one["path"], output_root() / "secret.webp")
    rewrite(CELL, lambda record: {**record, "inputs": [{**one, "path": path}]})
    site = reported()
    assert colours(site, "images/0") == [None]
    assert "secret" not in json.dumps(inputs_of(site, "images/0"))


@needs_driver_env
def test_eval_sh_leaves_a_page_with_source_and_result(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    add_benchmark(checkout, "edits", "Edits", EDITS, task="edit")
    command = ["--model_names", "reference-identity", "--ds_names", "edits"]
    run = run_eval(checkout, *command)
    assert run.returncode == 0, run.stdout + run.stderr
    dataset = checkout / "infer/custom_datasets/dataset_cls/edit/edits.py"
    for is_there in (True, False):
        if not is_there:
            dataset.unlink()
            shutil.rmtree(checkout / "output/reference-identity/edits/.thumbnails")
            shutil.rmtree(checkout / "output/report")
            run_eval(checkout, *command, "--infer", "false")
        site = Site(checkout / "output/report/index.html")
        for i in range(3):
            [shown] = inputs_of(site, f"images/{i}", "edits")
            with Image.open(io.BytesIO(site.picture(shown["preview"]))) as image:
                assert image.size == (64 + 16 * i, 48)
        assert all("preview" in item for item in site.items("reference-identity", "edits").values())
    for i in range(3):
        with Image.open(checkout / f"output/reference-identity/edits/images/{i}.png") as image:
            assert image.getcolors() == [((64 + 16 * i) * 48, (40 * i, 90, 20))], "the image as it was"
