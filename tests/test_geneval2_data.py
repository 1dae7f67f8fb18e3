"""GenEval 2's real data: what the specification counts, and the order in which images are made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from custom_datasets.dataset_cls.t2i.geneval2 import GenEval2
from imageevalkit import judge_prompts
from imageevalkit.adoption.places import Missing, find_images
from imageevalkit.assets import check
from imageevalkit.errors import CellFailure
from tests.support.geneval2 import items, use_benchmarks, use_real_data

# atomicity: atoms by skill (count, object, attribute, position, verb)
SKILLS = {
    3: (142, 142, 77, 5, 1),
    4: (205, 205, 83, 42, 4),
    5: (225, 225, 115, 47, 9),
    6: (261, 261, 128, 85, 4),
    7: (292, 292, 142, 84, 12),
    8: (300, 300, 178, 107, 17),
    9: (300, 300, 227, 141, 15),
    10: (300, 300, 264, 151, 24),
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GenEval2:
    use_real_data(tmp_path, monkeypatch)
    return GenEval2()


def test_data_and_prompts_are_those_of_the_asset_list(data: GenEval2) -> None:
    assert check("geneval2", hashes=True) == []
    prompts = judge_prompts.load("geneval2")
    assert prompts["evaluation.py::soft_tifa"] == prompts["evaluation.py::tifa"]
    assert all(text.count("{}") == 1 for text in prompts.values())


def test_facts_of_the_spec(data: GenEval2) -> None:
    entries = data.data
    assert len({entry["prompt"] for entry in entries}) == 800
    assert Counter(len(entry["vqa_list"]) for entry in entries) == {
        3: 59,
        4: 21,
        5: 101,
        6: 105,
        7: 75,
        8: 113,
        9: 128,
        10: 143,
        11: 55,
    }
    surplus = Counter(len(entry["vqa_list"]) - entry["atom_count"] for entry in entries)
    assert surplus == {0: 246, 1: 330, 2: 190, 3: 34}
    for atomicity, expected in SKILLS.items():
        skills = Counter(s for entry in entries if entry["atom_count"] == atomicity for s in entry["skills"])
        names = ("count", "object", "attribute", "position", "verb")
        assert tuple(skills[name] for name in names) == expected
    answers = Counter(answer for entry in entries for _, answer in entry["vqa_list"])
    assert answers == {
        "Yes": 3987,
        "one": 812,
        "two": 179,
        "three": 237,
        "four": 204,
        "five": 205,
        "six": 204,
        "seven": 184,
    }
    assert answers.total() == 6012


def test_questions_of_a_prompt_differ_and_count_questions_are_known_by_their_start(data: GenEval2) -> None:
    for entry in data.data:
        questions = [question for question, _ in entry["vqa_list"]]
        assert len(set(questions)) == len(questions) == len(entry["skills"])
        for question, skill in zip(questions, entry["skills"], strict=True):
            assert question.startswith("How many") == (skill == "count")
        assert not set('{}"') & set(entry["prompt"])


def test_images_are_named_after_the_line_of_the_data_file(data: GenEval2) -> None:
    made = items(data)
    lines = (data.folder / "geneval2_data.jsonl").read_text(encoding="utf-8").splitlines()
    for item in made:
        assert item.path.name == f"{item.data['index']:03d}.png"
        assert f'"prompt": "{item.prompt}"' in lines[item.data["index"]]
    assert sorted(item.data["index"] for item in made) == [*range(800)]
    assert {item.seed for item in made} == {42}


@pytest.mark.parametrize("limit", [8, 16, 50, 100])
def test_the_first_items_cover_every_atomicity(data: GenEval2, limit: int) -> None:
    counts = Counter(entry["atom_count"] for entry in data.data[:limit])
    assert set(counts) == {*range(3, 11)}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert [entry["index"] for entry in data.data[:9]] == [0, 100, 200, 300, 400, 500, 600, 700, 1]


def test_missing_data_is_one_line_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_benchmarks(tmp_path, monkeypatch)
    with pytest.raises(CellFailure, match=r"geneval2_data\.jsonl .*prefetch\.sh --ds_names geneval2"):
        GenEval2()


def test_images_named_by_prompt_are_found(
    data: GenEval2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = items(data, limit=3)
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "elsewhere" / "images.json"
    paths = {made[0].prompt: "a/0.png", made[1].prompt: str(tmp_path / "1.png"), made[2].prompt: "gone.png"}
    source.parent.mkdir()
    source.write_text(json.dumps({**paths, "a prompt of another benchmark": "a/0.png"}))
    lost = find_images(source, made, data.data)
    assert lost == {
        item.id: Missing(f"{tmp_path / paths[item.data['prompt']]}, named in {source}, is not there")
        for item in made
    }
    (tmp_path / "a").mkdir()
    for here in (tmp_path / "a" / "0.png", tmp_path / "1.png"):
        here.touch()
    assert find_images(source, made, data.data) == {
        made[0].id: tmp_path / "a/0.png",
        made[1].id: tmp_path / "1.png",
        made[2].id: lost[made[2].id],
    }
    source.write_text("[]")
    with pytest.raises(CellFailure, match="no JSON object of image paths"):
        find_images(source, made, data.data)
