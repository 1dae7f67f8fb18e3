"""The entries of WISE's three benchmarks: order, paths, and the facts of the official data."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.wise.categories import LEGACY, VERIFIED, category_of
from custom_datasets.dataset_cls.t2i.wise import WiseBench
from custom_datasets.interleave import spread
from custom_datasets.load_dataset import load_dataset
from imageevalkit import assets
from imageevalkit.cell import Cell
from imageevalkit.cell.items import items_of
from imageevalkit.errors import CellFailure
from tests.support.mirror import shared_mirror
from tests.support.wise import DATASETS, write_data

LABELS = {  # the Category text of each category in all official files but for one entry
    "culture": "Cultural knowledge",
    "time": "time",
    "space": "Space",
    "biology": "Biology",
    "physics": "Physical Knowledge",
    "chemistry": "Chemistry",
}
SUBCATEGORIES = {"wise": 27, "wise-verified": 26}


@pytest.fixture(params=list(DATASETS))
def dataset(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WiseBench:
    """Each benchmark on data of our own."""
    write_data(tmp_path, request.param)
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    return load_dataset(request.param)


@pytest.fixture(params=list(DATASETS))
def official(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WiseBench:
    """Each benchmark on the official data."""
    wanted = [asset for asset in assets.local_assets(request.param) if isinstance(asset, assets.FileAsset)]
    mirror = shared_mirror()
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    folder = assets.data_folder(request.param)
    folder.mkdir(parents=True)
    for asset in wanted:
        if not (mirror / asset.source).is_file():
            pytest.skip(f"WISE is not in {mirror}")
        shutil.copyfile(mirror / asset.source, folder / asset.path)
    return load_dataset(request.param)


def test_entries(dataset: WiseBench) -> None:
    assert (dataset.dataset_name, dataset.dataset_task) == (dataset.name, "t2i")
    items = items_of(dataset, Cell("m", dataset.name))
    assert sorted(item.data["prompt_id"] for item in items) == list(range(1, 1001))
    for item in items:
        prompt_id = item.data["prompt_id"]
        assert item.id == f"images/{prompt_id}" and item.path.suffix == ".png"
        assert item.seed == 42
        assert item.prompt == f"prompt {prompt_id}"
        assert item.data["explanation"] == f"it means {prompt_id}"
        assert item.data["category"] == category_of(prompt_id, dataset.categories).name


def test_any_first_items_stand_for_all(dataset: WiseBench) -> None:
    assert len({entry["category"] for entry in dataset.data[:7]}) == 6
    of_category: Counter[str] = Counter()
    for n, entry in enumerate(dataset.data, start=1):
        of_category[entry["category"]] += 1
        for category in dataset.categories:
            assert abs(of_category[category.name] - n * len(category.ids) / 1000) < 2
    assert len({entry["subcategory"] for entry in dataset.data[:50]}) == 30


def test_spread() -> None:
    assert "".join(spread(["aaaa", "bb", "c"])) == "abacaba"
    assert spread([]) == spread([[], []]) == []


def test_official_ids_categories_and_paths(official: WiseBench) -> None:
    assert len(official.data) == 1000
    by_id = {entry["prompt_id"]: entry for entry in official.data}
    assert sorted(by_id) == list(range(1, 1001))
    counts = Counter(entry["category"] for entry in official.data)
    assert counts == {category.name: len(category.ids) for category in official.categories}
    weights = {category.name: category.weight for category in official.categories}
    assert weights == {name: pytest.approx(n / 1000) for name, n in counts.items()}
    expected = SUBCATEGORIES.get(official.name)
    if expected:
        assert len({entry["subcategory"] for entry in official.data}) == expected
        # a label belongs to one category
        assert len({(entry["category"], entry["subcategory"]) for entry in official.data}) == expected


def test_official_labels_agree_with_the_ids(official: WiseBench) -> None:
    odd = []
    for path in assets.data_folder(official.name).iterdir():
        for record in json.loads(path.read_bytes()):
            if record["Category"] != LABELS[category_of(record["prompt_id"], official.categories).name]:
                odd.append((record["prompt_id"], record["Category"]))
    assert odd == ([(748, "Ecology")] if official.name == "wise-rewrite" else [])


@pytest.fixture
def editions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, dict[str, str]]]:
    """The official entries of all three by prompt id."""
    mirror = shared_mirror() / "PKU-YuanGroup" / "WISE"
    if not mirror.is_dir():
        pytest.skip(f"WISE is not in {mirror.parent.parent}")
    wanted = {name: assets.local_assets(name) for name in DATASETS}
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    found = {}
    for name, files in wanted.items():
        assets.data_folder(name).mkdir(parents=True)
        for asset in files:
            if isinstance(asset, assets.FileAsset):
                shutil.copyfile(shared_mirror() / asset.source, assets.data_folder(name) / asset.path)
        found[name] = {entry["prompt_id"]: entry for entry in load_dataset(name).data}
    return found


def test_the_editions_are_not_one_another(editions: dict[str, dict[int, dict[str, str]]]) -> None:
    legacy, verified, rewrite = editions["wise"], editions["wise-verified"], editions["wise-rewrite"]
    assert sum(legacy[i]["prompt"] != verified[i]["prompt"] for i in legacy) == 668
    texts = {entry["prompt"] for entry in legacy.values()} & {entry["prompt"] for entry in verified.values()}
    assert len(texts) == 513
    assert all(legacy[i]["prompt"] != rewrite[i]["prompt"] for i in legacy)
    assert [i for i in legacy if legacy[i]["explanation"] != rewrite[i]["explanation"]] in (
        [287, 442],
        [442, 287],
    )
    assert rewrite[985]["subcategory"] == "Colloids/Tyndall Effect"
    assert rewrite[748]["category"] == "biology"
    assert len({rewrite[i]["prompt"] for i in range(1, 401)}) == 377
    assert verified[401]["prompt"] == "The Sydney Opera House when London has just passed midnight."
    assert verified[401]["subcategory"] == "Horizontal time"


def test_weights_are_whole() -> None:
    for categories in (LEGACY, VERIFIED):
        assert sum(category.weight for category in categories) == pytest.approx(1)
        assert [i for category in categories for i in category.ids] == list(range(1, 1001))
    with pytest.raises(ValueError, match="1001"):
        category_of(1001, LEGACY)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("[{", "is no JSON"),
        ("{}", "is no list of prompts"),
        ("[]", "holds 0 prompts, not those with the ids 1 to 400"),
        ('[{"prompt_id": "1"}]', "no whole number as prompt_id in entry 0"),
        (
            '[{"prompt_id": 1, "Prompt": "x", "Explanation": ""}]',
            "no text Explanation in the entry of prompt 1",
        ),
    ],
)
def test_wrong_data_file_is_one_line(
    content: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path, "wise-verified")
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    path = tmp_path / "wise_verified" / "data" / "cultural_common_sense_verified.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(CellFailure) as caught:
        load_dataset("wise-verified")
    message = str(caught.value)
    assert says in message and str(path) in message and "\n" not in message
    assert message.endswith("bash utils/prefetch.sh --ds_names wise-verified")
