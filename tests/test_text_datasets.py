"""The entries of longtext and quicktext: ids, paths, and the ground truth the specification counts."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.longtext.metric import match_count
from custom_datasets.dataset_cls.t2i.longtext import LongTextBench
from custom_datasets.dataset_cls.t2i.quicktext import QuickTextBench
from imageevalkit.cell import REPO, Cell
from imageevalkit.cell.items import items_of
from imageevalkit.errors import CellFailure

_FILES = "PenghaoYin/ImageEvalKit/85b5e1511b867688fa37edee304ee0adc953e941/benchmarks/LongText/benchmark_dir"
CATEGORIES = ["sign", "label", "print", "webpage", "slide", "poster", "caption", "dialogue"]


@pytest.fixture
def longtext(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LongTextBench:
    mirror = Path(os.environ.get("SHARED_MIRROR") or REPO.parent / "shared" / "mirror")
    if not (mirror / _FILES).is_dir():
        pytest.skip(f"LongText-Bench's prompts are not in {mirror} (set SHARED_MIRROR)")
    for path in (mirror / _FILES).iterdir():
        shutil.copyfile(path, tmp_path / path.name)
    monkeypatch.setattr(LongTextBench, "folder", tmp_path)
    return LongTextBench()


def test_longtext_is_the_whole_benchmark(longtext: LongTextBench) -> None:
    assert (longtext.dataset_name, longtext.dataset_task, len(longtext.data)) == ("longtext", "t2i", 1280)
    prompts = {(e["language"], e["prompt_id"]): e for e in longtext.data}
    assert Counter(language for language, _ in prompts) == {"en": 160, "zh": 160}
    ids = {*range(80), *range(100, 140), *range(160, 200)}
    assert {i for language, i in prompts if language == "zh"} == ids
    per_group = Counter((e["language"], e["category"], e["length"]) for e in prompts.values())
    assert per_group == {(g, c, n): 10 for g in ("en", "zh") for c in CATEGORIES for n in ("short", "long")}


def test_longtext_denominators_are_those_of_the_spec(longtext: LongTextBench) -> None:
    totals: Counter[str] = Counter()
    for entry in longtext.data:
        totals[entry["language"]] += match_count(entry["expected"], "", entry["language"]).total
    assert totals == {"en": 17052, "zh": 31776}


def test_longtext_paths_and_seeds(longtext: LongTextBench) -> None:
    items = items_of(longtext, Cell("m", "longtext"))
    assert len({item.path for item in items}) == 1280
    assert [(item.id, item.seed) for item in items[:4]] == [
        ("images/text_prompts/0000_1", 43),
        ("images/text_prompts_zh/0000_1", 43),
        ("images/text_prompts/0000_2", 44),
        ("images/text_prompts_zh/0000_2", 44),
    ]
    assert items[-1].id == "images/text_prompts_zh/0199_4"
    assert all(item.path.suffix == ".jpg" for item in items)
    # the official evaluator finds the prompt by the digits before the underscore
    assert all(int(item.path.name.split("_")[0]) == item.data["prompt_id"] for item in items)


def test_longtext_prompts_and_texts_belong_together(longtext: LongTextBench) -> None:
    for entry in longtext.data:
        chinese = any("\u4e00" <= c <= "\u9fa5" for c in entry["prompt"])
        assert chinese == (entry["language"] == "zh")


def test_missing_prompt_file_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LongTextBench, "folder", tmp_path)
    with pytest.raises(CellFailure) as failure:
        LongTextBench()
    text = str(failure.value)
    assert "\n" not in text
    assert str(tmp_path / "text_prompts.jsonl") in text
    assert "bash utils/prefetch.sh --ds_names longtext" in text


@pytest.mark.parametrize("damage", ["", '{"prompt": "cut'])
def test_damaged_prompt_file_is_named(longtext: LongTextBench, damage: str) -> None:
    path = longtext.folder / "text_prompts_zh.jsonl"
    kept = path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]
    path.write_text("".join(kept) + damage, encoding="utf-8")
    with pytest.raises(CellFailure, match=r"text_prompts_zh\.jsonl .*prefetch"):
        LongTextBench()


def test_quicktext_entries() -> None:
    dataset = QuickTextBench()
    assert (dataset.dataset_name, dataset.dataset_task) == ("quicktext", "t2i")
    items = items_of(dataset, Cell("m", "quicktext"))
    assert [item.id for item in items[:3]] == ["images/en/00", "images/zh/00", "images/en/01"]
    assert {item.seed for item in items} == {43}
    assert Counter(item.data["language"] for item in items) == {"en": 24, "zh": 24}
    assert Counter(item.data["category"] for item in items) == dict.fromkeys(CATEGORIES, 6)


def test_quicktext_asks_for_every_text_in_quotes() -> None:
    quotes = {"en": '"{}"', "zh": "“{}”"}
    seen = set()
    for line in QuickTextBench.path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for text in record["text"]:
            assert quotes[record["language"]].format(text) in record["prompt"]
        units = match_count(record["text"], "", record["language"]).total
        assert record["text_length"] == units
        assert record["length"] == ("long" if units > 16 else "short")
        seen.add(record["prompt"])
    assert len(seen) == 48


def test_quicktext_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(QuickTextBench().data) == 48
