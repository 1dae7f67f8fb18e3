"""WiseEdit: the grade in a reply, what the judge sees, and both ways to average."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks.wiseedit.benchmark import (
    GRADES,
    SUBSETS,
    TASKS,
    WiseEdit,
    WiseEditSettings,
    _percent,
    references,
)
from imageevalkit.assets import BenchmarkFiles
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, ask
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file
from imageevalkit.judges.api import sent_picture
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support import wiseedit_data
from tests.support.function_judge import items, write_images

OFFICIAL, CORRECTED = WiseEdit(), WiseEdit(WiseEditSettings(rules="corrected"))
SINGLE = WiseEdit(WiseEditSettings(report="single"))
Language = Literal["en", "cn"]


def read(benchmark: WiseEdit, reply: str) -> int | None:
    question = ask("DP", "?")
    try:
        return benchmark.parse(question, Answer(question, reply))
    except Unparsed:
        return None


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [
        ('{"score": 8, "reason": "x"}', 8, 8),
        ('{ "reason": 1. Detect … 4. Decision, "score": 7 }', 7, 7),
        ('{"reason": "ok", "score": 6,}', 6, 6),
        ('{"score": 8.5}', 8, 8),
        ('{"score": 0}', None, None),
        ('{"score": 11}', None, None),
        ('{"consistency_score": 7}', 7, 7),
        ('{"score": null} score: 5', 5, 5),
        ("Score: 7/10", 7, 7),
        ("10 out of 10", 10, 10),
        ("score: 12", None, None),
        ("**score**: 6", 6, None),
        ("Two of the 3 objects moved. Overall good.", 3, None),
        ("", None, None),
    ],
)
def test_the_grade_in_a_reply(reply: str, official: int | None, corrected: int | None) -> None:
    assert (read(OFFICIAL, reply), read(CORRECTED, reply)) == (official, corrected)


@pytest.mark.parametrize(
    ("cell", "paths"),
    [
        ("", []),
        ("a.png", ["a.png"]),
        ('["a.png", " b.png"]', ["a.png", "b.png"]),
        ('"a.png"', ["a.png"]),
        ("a.png | b.png|", ["a.png", "b.png"]),
        ("a.png;b.png", ["a.png", "b.png"]),
    ],
)
def test_the_references_of_a_case(cell: str, paths: list[str]) -> None:
    assert references(cell) == paths


def one(subset: str, key: str, language: Language, grades: tuple[int, ...]) -> ScoredItem:
    """A result with such grades; 0: the judge's replies have none."""
    path = Cell("m", "wiseedit").folder / f"images/{subset}/{language}/{key}.png"
    data = {"subset": subset, "task": SUBSETS[subset], "key": key, "language": language}
    item = Item(f"images/{subset}/{language}/{key}", path, 42, None, None, data)
    answers = {}
    for name, grade in zip(TASKS[SUBSETS[subset]], grades, strict=True):
        if grade:
            question = ask(name, "?")
            answers[name] = Answer(question, str(grade), value=grade)
    score = replace(OFFICIAL.score(item, Answers(answers)), item=item.id) if all(grades) else None
    return ScoredItem(item, path, Answers(answers), {}, score)


def scores(**cases: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Scores:
    """Scores of the cases of each subset, each with its grades in Chinese and in English."""
    languages: tuple[Language, Language] = ("cn", "en")
    return Scores(
        [
            one(subset, str(n), language, grades)
            for subset, pairs in cases.items()
            for n, pair in enumerate(pairs)
            for language, grades in zip(languages, pair, strict=True)
        ]
    )


AWARENESS: Any = [
    ((8, 7, 9, 6), (9, 8, 9, 7)),
    ((10, 10, 10, 10), (0, 10, 10, 10)),
    ((4, 5, 6, 3), (5, 5, 7, 4)),
]
INTERPRETATION: Any = [((7, 7, 8, 6), (7, 8, 8, 7)), ((9, 9, 9, 9), (10, 9, 9, 10))]
IMAGINATION: Any = [((6, 7, 8, 5), (6, 6, 8, 6)), ((5, 7, 9, 4), (5, 8, 9, 4))]
THREE: Any = {"Awareness_1": AWARENESS, "Interpretation_1": INTERPRETATION, "Imagination_1": IMAGINATION}


def test_a_case_without_a_grade_counts_in_neither_language_officially() -> None:
    found = SINGLE.metrics(scores(**THREE))
    values = {name: found[f"{name}_official"].value for name in ("cn/awareness", "en/awareness")}
    assert values == pytest.approx({"cn/awareness": 55.575, "en/awareness": 63.9})
    assert found["cn/interpretation_official"].value == pytest.approx(77.775)
    assert found["en/imagination_official"].value == pytest.approx(61.1)
    assert found["cn/basic_official"].value == pytest.approx(64.358, abs=5e-4)
    assert found["en/basic_official"].value == pytest.approx(69.433, abs=5e-4)
    # all others count the Chinese result of that case too
    assert found["cn/awareness/DP"].n == 3 and found["en/awareness/DP"].n == 2
    assert found["cn/awareness/DP"].value == pytest.approx((700 + 900 + 300) / 27)


def test_the_complex_score_is_of_both_languages_and_needs_all_subsets() -> None:
    case: Any = [((6, 5, 8, 6, 7), (6, 6, 8, 6, 7))]
    found = OFFICIAL.metrics(scores(WiseEdit_Complex_2=case))
    assert found["complex_official"].value is None, "other subsets have no image"
    rest = {subset: [((1,) * len(TASKS[task]),) * 2] for subset, task in SUBSETS.items() if task != "complex"}
    whole: Any = {**rest, **{f"WiseEdit_Complex_{n}": case for n in (2, 3, 4)}}
    found = OFFICIAL.metrics(scores(**whole))
    assert found["complex_official"].value == pytest.approx(61.14)
    assert found["en/complex_official"].value == pytest.approx(62.26)
    assert "complex_official" not in CORRECTED.metrics(scores(**whole))


def test_the_tables_have_0_for_a_missing_grade() -> None:
    files = OFFICIAL.official_files(scores(Awareness_1=AWARENESS))
    rows = list(csv.DictReader(io.StringIO(files["score_Awareness_1.csv"])))
    assert [row["DP_score_en"] for row in rows] == ["9", "0", "5"]
    assert {row["CF_score_cn"] for row in rows} == {""} and rows[0]["KF_score_cn"] == "6"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wiseedit_data.write(tmp_path / "hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def test_each_case_is_an_english_and_a_chinese_edit(data: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = items(OFFICIAL)
    assert len(made) == 2440 and {item.data["subset"] for item in made[:22]} == {*SUBSETS}
    assert [item.texts for item in made[:2]] == [["Change thing 1."], ["修改第1个。"]]
    assert {item.data["subset"] for item in items(SINGLE)} == {
        "Awareness_1",
        "Interpretation_1",
        "Imagination_1",
    }
    five = next(item for item in made if item.data["subset"] == "Imagination_5")
    assert len(five.inputs) == 5
    monkeypatch.setattr("benchmarks.wiseedit.benchmark._CASES", 1221)
    with pytest.raises(CellFailure, match="hold 1220 cases, not 1221"):
        items(OFFICIAL)


@pytest.mark.parametrize("benchmark", [OFFICIAL, CORRECTED])
def test_the_judge_sees_inputs_result_hint_and_references(
    benchmark: WiseEdit, data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [line.split()[1] for line in _listed() if "::" in line]
    texts = {key: key.split("::")[1] for key in keys} | {keys[-1]: "Hint: {hint}"}
    monkeypatch.setattr(BenchmarkFiles, "prompts", lambda files: texts)
    made = items(benchmark)
    item = next(
        one for one in made if one.data["subset"] == "WiseEdit_Complex_2" and one.data["language"] == "cn"
    )
    write_images([item])
    result = Picture(item.path, sha256_file(item.path), pixels=benchmark.pixels)
    asked = {question.name: question for question in benchmark.questions(item, result, Answers({}))}
    assert [*asked] == [*GRADES]
    parts = asked["KF"].messages[0].parts
    words = [part for part in parts if isinstance(part, str)]
    assert words == [
        "prompt_knowledge_fidelity_multi\n\nEditing instruction: Change thing 1.",
        *("Input image #1:", "Input image #2:", "Edited image:", "Hint: It shows 1."),
        *("Reference image:", "Reference image:"),
    ]
    assert len(asked["DP"].pictures) == 3 and len(asked["KF"].pictures) == 5
    assert asked["VQ"].messages[0].parts[:2] == ("prompt_visual_quality", "Image:")
    alone = next(one for one in made if one.data["subset"] == "Awareness_1")
    first = next(iter(benchmark.questions(alone, result, Answers({}))))
    assert first.text.startswith("prompt_detail_preserving_single\n\n") and "Input image:" in first.text
    assert {sent_picture(picture)[1] for picture in asked["KF"].pictures} == {"image/jpeg"}
    assert asked["KF"].sampling.max_tokens == 1000
    assert asked["KF"].sampling.temperature == (None if benchmark is OFFICIAL else 0.0)


def _listed() -> list[str]:
    return (OFFICIAL.folder / "assets.txt").read_text().splitlines()


def test_ties_are_rounded_as_the_official_program_rounds_them() -> None:
    for count in range(1, 60):
        for total in range(count, 10 * count + 1):
            value = (total - count) / 9 * 100 / count
            assert _percent(value, count) == round((total / count - 1) / 9 * 100, 1)
