"""The official combined files of a cell: lossless, black where an image is missing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.oneig import grids
from benchmarks.oneig.grids import write_grids
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError
from imageevalkit.common.grids import Grid, is_black
from tests.support.generation import generate
from tests.support.grid_images import CELL, PROMPTS, NoiseModel, TinyOneIG, noise, same

GRIDS = [Grid(2, 2), Grid(1, 4)]


def make(dataset: TinyOneIG | None = None, model: NoiseModel | None = None, limit: int | None = None) -> None:
    dataset = dataset or TinyOneIG()
    dataset.data = dataset.data[:limit]
    generate(model or NoiseModel(), dataset, cell=CELL)


def write(out: Path, grid: Grid | None = None, dataset: TinyOneIG | None = None) -> ExitStatus:
    return write_grids(CELL, (dataset or TinyOneIG()).items(), grid, out, CELL.model)


def opened(path: Path) -> Image.Image:
    image = Image.open(path)
    image.load()
    return image


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_files_hold_the_very_pixels_in_the_official_layout(tmp_path: Path, grid: Grid) -> None:
    make()
    assert write(tmp_path, grid) == ExitStatus.COMPLETE
    assert sorted(path for path in (tmp_path / "images").rglob("*") if path.is_file()) == [
        tmp_path / f"images/{class_item}/m/{id}.webp" for class_item, id in PROMPTS
    ]
    for class_item, id in PROMPTS:
        whole = opened(tmp_path / f"images/{class_item}/m/{id}.webp")
        assert whole.format == "WEBP"
        assert whole.size == (12 * grid.cols, 8 * grid.rows)
        for n, cell in enumerate(grid.split(whole), 1):
            assert same(cell, opened(CELL.folder / f"images/{class_item}/{id}_{n}.png"))


def test_a_prompt_without_any_image_is_all_black_and_one_not_begun_has_no_file(tmp_path: Path) -> None:
    make(model=NoiseModel(refused=[("anime 000", seed) for seed in (43, 44, 45, 46)]), limit=2)
    assert write(tmp_path) == ExitStatus.INCOMPLETE
    black, begun = (opened(tmp_path / f"images/anime/m/{id}.webp") for id in ("000", "001"))
    assert black.size == (2048, 2048) and is_black(black)
    assert [is_black(cell) for cell in Grid(2, 2).split(begun)] == [False, True, True, True]
    assert not (tmp_path / "images/human").exists()


def test_only_what_changed_is_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make()
    write(tmp_path)
    files = sorted((tmp_path / "images").rglob("*.webp"))
    # the exact time of now: that of a file just written is a clock tick old
    now = time.time()
    for path in files:
        os.utime(path, (now, now))
    time.sleep(0.02)
    old = files[0].stat().st_mtime
    capsys.readouterr()
    assert write(tmp_path) == ExitStatus.COMPLETE
    assert [path.stat().st_mtime for path in files] == [old] * 3
    assert f"0 grids of 2,2 written to {tmp_path / 'images'}, 3 were up to date" in capsys.readouterr().out
    # the record, the image, and the layout each make a file out of date
    (CELL.folder / "images/anime/001_2.png").unlink()
    make(model=NoiseModel(refused=[("anime 001", 44)]))
    os.utime(CELL.folder / "images/human/000_1.png")
    assert write(tmp_path) == ExitStatus.INCOMPLETE
    assert [path.stat().st_mtime == old for path in files] == [True, False, False]
    assert is_black(Grid(2, 2).split(opened(files[1]))[1])
    write(tmp_path, Grid(1, 4))
    assert [opened(path).size for path in files] == [(48, 8)] * 3


def test_a_damaged_image_is_an_error_and_leaves_no_old_file(tmp_path: Path) -> None:
    make()
    write(tmp_path)
    noise(7).save(CELL.folder / "images/anime/000_3.png")
    with pytest.raises(
        CellFailure, match=r"no .*anime/m/000\.webp: 000_3\.png: the file was changed or truncated since"
    ):
        write(tmp_path)
    assert not (tmp_path / "images/anime/m/000.webp").exists()
    assert (tmp_path / "images/human/m/000.webp").exists()


def test_the_default_is_as_square_as_the_number_of_images_allows(tmp_path: Path) -> None:
    squares = {n: str(Grid.nearest_square(n)) for n in (1, 2, 3, 4, 6, 9, 12)}
    assert squares == {1: "1,1", 2: "1,2", 3: "1,3", 4: "2,2", 6: "2,3", 9: "3,3", 12: "3,4"}
    make(TinyOneIG(2))
    write(tmp_path, None, TinyOneIG(2))
    assert opened(tmp_path / "images/anime/m/000.webp").size == (24, 8)
    with pytest.raises(UserError, match="--grid 1,1 has 1 cells, but a prompt has 2 images"):
        write(tmp_path, Grid(1, 1), TinyOneIG(2))


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(grids, "load_dataset", lambda *_: TinyOneIG())
    make()

    def run(*words: str) -> ExitStatus:
        monkeypatch.setattr("sys.argv", ["grids", *words])
        return grids.main()

    assert run("--model_name", "m", "--grid", "1,4") == ExitStatus.COMPLETE
    folder = CELL.folder / "official_grids/images"
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == [
        f"3 grids of 1,4 written to {folder}",
        "the official scripts read these as --image_grid 4,1",
    ]
    assert (folder / "human/m/000.webp").exists()
    with pytest.raises(
        CellFailure, match=r"mm/oneig has no images \(did you mean 'm'\?\): generate them with bash"
    ):
        run("--model_name", "mm")
    with pytest.raises(UserError, match="grid 'wide' is not rows,cols"):
        run("--model_name", "m", "--grid", "wide")
