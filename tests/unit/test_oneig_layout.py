"""OneIG's images made elsewhere: three layouts, grids cut when they are adopted, and what cannot be told is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from imageevalkit.benchmark.image_files import Place
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.grids import Grid
from imageevalkit.extras.adopt import sources as adoption
from imageevalkit.extras.adopt.copies import adopt_cell
from imageevalkit.jobs.plan import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.records import last_records
from imageevalkit.store.states import survey_images
from tests.support.grid_images import CELL, PROMPTS, TinyOneIG, noise, same, write_official

SQUARE = Grid(2, 2)


def find(source: Path, dataset: TinyOneIG, limit: int | None = None) -> dict[str, Place]:
    return adoption.find_images(source, dataset.items(limit), dataset.data, dataset.find_images)


def adopt(source: Path, dataset: TinyOneIG, overwrite: bool = False) -> Outcome:
    found = find(source, dataset)
    return adopt_cell(CELL, dataset.items(), source, found, ProgressWriter(), overwrite)


def image(class_item: str, id: str, n: int) -> Path:
    return CELL.folder / f"images/{class_item}/{id}_{n}.png"


@pytest.mark.parametrize(("grid", "suffix"), [(SQUARE, ".png"), (Grid(1, 3), ".webp")], ids=str)
def test_every_cell_becomes_the_image_of_its_repetition(tmp_path: Path, grid: Grid, suffix: str) -> None:
    write_official(tmp_path / "images", grid, suffix)
    dataset = TinyOneIG(grid.cells, grid)
    assert adopt(tmp_path, dataset).state == COMPLETE
    for p, (class_item, id) in enumerate(PROMPTS):
        for n in range(grid.cells):
            with Image.open(image(class_item, id, n + 1)) as adopted:
                assert adopted.format == "PNG"
                assert same(adopted, noise(100 * p + n))
    record = last_records(CELL)[f"images/human/000_{grid.cells}"]
    source = tmp_path / f"images/human/m/000{suffix}"
    assert (record.source, record.cell, record.size) == (str(source), grid.cells - 1, (12, 8))
    states = survey_images(CELL, dataset.items()).states.values()
    assert {(state.status, state.flat, state.made_here) for state in states} == {("generated", False, False)}


def test_three_layouts(tmp_path: Path) -> None:
    dataset = TinyOneIG(4, SQUARE)
    wanted = {item.id for item in dataset.items()}
    write_official(tmp_path / "official", SQUARE)
    for p, (class_item, id) in enumerate(PROMPTS):
        folder = tmp_path / "plain" / class_item
        folder.mkdir(parents=True, exist_ok=True)
        noise(p).save(folder / f"{id}.jpg")
        for n in range(1, 5):
            (tmp_path / "ours/images" / class_item).mkdir(parents=True, exist_ok=True)
            noise(n).save(tmp_path / "ours/images" / class_item / f"{id}_{n}.JPEG", "JPEG")
    official, plain = (find(tmp_path / name, dataset) for name in ("official", "plain"))
    ours = find(tmp_path / "ours", TinyOneIG(4, None))
    assert set(official) == set(plain) == set(ours) == wanted
    assert find(tmp_path / "ours", dataset) == ours
    assert official["images/anime/001_3"] == Place(tmp_path / "official/anime/m/001.png", SQUARE, 2)
    assert plain["images/human/000_4"] == Place(tmp_path / "plain/human/000.jpg", SQUARE, 3)
    assert ours["images/human/000_4"] == Place(tmp_path / "ours/images/human/000_4.JPEG")


def test_a_grid_must_be_told(tmp_path: Path) -> None:
    write_official(tmp_path, SQUARE)
    with pytest.raises(CellFailure, match=r"each prompt, which has 4 images: .* --ds_kwargs \"grid='2,2'\"$"):
        find(tmp_path, TinyOneIG(4), limit=2)
    assert find(tmp_path, TinyOneIG(1))["images/anime/000_1"] == Place(
        tmp_path / "anime/m/000.png", Grid(1, 1), 0
    )


def test_several_files_for_one_prompt_are_ambiguous(tmp_path: Path) -> None:
    write_official(tmp_path, SQUARE)
    (tmp_path / "anime/m/001 (copy).png").write_bytes((tmp_path / "anime/m/001.png").read_bytes())
    assert adopt(tmp_path, TinyOneIG(4, SQUARE)).state == INCOMPLETE
    records = last_records(CELL)
    assert [item for item, r in records.items() if r.status == "failed"] == [
        f"images/anime/001_{n}" for n in range(1, 5)
    ]
    assert records["images/anime/001_1"].reason == (
        f"2 files in {tmp_path / 'anime/m'} may be it (001 (copy).png, 001.png): leave one"
    )


def test_black_cells_are_no_images(tmp_path: Path) -> None:
    write_official(tmp_path, SQUARE)
    path = tmp_path / "anime/m/000.png"
    SQUARE.combine([noise(0), None, noise(2), None]).save(path)
    outcome = adopt(tmp_path, TinyOneIG(4, SQUARE))
    assert (outcome.state, outcome.message) == (
        INCOMPLETE,
        "2 of 12 images are not available: anime/000_2.png, anime/000_4.png (the first: cell 2 of "
        f"{tmp_path / 'anime/m/000.png'} is black: the official padding for a missing image)",
    )
    states = survey_images(CELL, TinyOneIG().items()).states
    assert [states[f"images/anime/000_{n}"].status for n in (1, 2, 3, 4)] == ["generated", "failed"] * 2
    assert states["images/anime/000_4"].reason == (
        f"ItemFailed: cell 4 of {path} is black: the official padding for a missing image"
    )
    assert not image("anime", "000", 2).exists()


def test_what_is_unchanged_is_neither_decoded_nor_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_official(tmp_path, SQUARE)
    SQUARE.combine([noise(0), None, noise(2), noise(3)]).save(tmp_path / "anime/m/000.png")
    (tmp_path / "human/m/000.png").write_bytes(b"no image")
    dataset = TinyOneIG(4, SQUARE)
    first = adopt(tmp_path, dataset)
    before, times = CELL.generation.read_bytes(), _times()
    with monkeypatch.context() as patch:
        patch.setattr(Grid, "split", lambda *_: pytest.fail("an unchanged file was cut again"))
        assert adopt(tmp_path, dataset) == first
    assert (CELL.generation.read_bytes(), _times()) == (before, times)


def test_what_changed_is_noticed(tmp_path: Path) -> None:
    write_official(tmp_path, SQUARE)
    dataset = TinyOneIG(4, SQUARE)
    adopt(tmp_path, dataset)
    times = _times()
    SQUARE.combine([noise(50), None, noise(52), noise(53)]).save(tmp_path / "anime/m/000.png")
    image("human", "000", 3).unlink()
    (tmp_path / "anime/m/001.png").unlink()
    assert adopt(tmp_path, dataset).state == INCOMPLETE
    with Image.open(image("anime", "000", 3)) as changed, Image.open(image("human", "000", 3)) as again:
        assert same(changed, noise(52))
        assert same(again, noise(202))
    assert not image("anime", "000", 2).exists(), "a cell that is black now must not keep its old image"
    assert not image("anime", "001", 1).exists()
    unchanged = [image("human", "000", n) for n in (1, 2, 4)]
    assert all(_times()[path] == times[path] for path in unchanged)


def test_another_grid_is_other_settings(tmp_path: Path) -> None:
    write_official(tmp_path, SQUARE)
    adopt(tmp_path, TinyOneIG(4, SQUARE))
    with pytest.raises(
        CellFailure, match=r"holds the images of \S+ cut as grid=2,2; --overwrite replaces them"
    ):
        adopt(tmp_path, TinyOneIG(4, Grid(1, 4)))
    assert adopt(tmp_path, TinyOneIG(4, Grid(1, 4)), overwrite=True).state == COMPLETE
    with Image.open(image("anime", "000", 1)) as first:
        assert first.size == (6, 16)
    settings = [json.loads(line)["settings"] for line in CELL.fingerprints.read_text().splitlines()]
    assert settings == [
        {"images": "made elsewhere", "source": str(tmp_path), "grid": grid} for grid in ("2,2", "1,4")
    ]


def test_a_damaged_or_tiny_grid_costs_its_own_images_only(tmp_path: Path) -> None:
    write_official(tmp_path, SQUARE, ".webp")
    damaged, tiny = tmp_path / "anime/m/000.webp", tmp_path / "anime/m/001.webp"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    Image.new("RGB", (1, 9), "red").save(tiny)
    assert adopt(tmp_path, TinyOneIG(4, SQUARE)).state == INCOMPLETE
    states = survey_images(CELL, TinyOneIG().items()).states
    reason = states["images/anime/000_2"].reason
    assert f"{damaged} does not decode (" in reason and "\n" not in reason
    assert f"{tiny}: 1×9 px cannot be cut into 2 rows and 2 columns" in states["images/anime/001_4"].reason
    assert [states[f"images/human/000_{n}"].status for n in (1, 2, 3, 4)] == ["generated"] * 4


def _times() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in CELL.folder.rglob("*.png")}
