"""DPG-Bench: the questions of a prompt, what depends on what, the categories; beside the official program."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.dpgbench.benchmark import DPGBench
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, measure
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from tests.support.mirror import official_source

_KIT = ("PenghaoYin/ImageEvalKit", "85b5e1511b867688fa37edee304ee0adc953e941")
_COLUMNS = [
    "item_id",
    "text",
    "keywords",
    "proposition_id",
    "dependency",
    "category_broad",
    "category_detailed",
    "tuple",
    "question_natural_language",
]
Rows = Sequence[tuple[str, int, str, str]]
"""Prompt, number, parents, tuple."""
HEADER: Rows = [("partiprompts97", 1, "0", "entity - whole (first)")]
EXAMPLE: Rows = [
    ("p1", 1, "0", "entity - whole (dog)"),
    ("p1", 2, "1", "attribute - color (dog, red)"),
    ("p1", 3, "2", "relation - spatial (dog, mat, on)"),
    ("p1", 4, "0", "global - (photo)"),
]
SAID = ["yes no yes yes", "no yes yes yes", "yes yes yes yes", "yes|yes|no|yes it is"]


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a benchmark whose questions are such rows."""
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)

    def make(rows: Rows, rules: Any = "official", judge: str = "") -> DPGBench:
        folder = tmp_path / "dpgbench/data"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "dpgbench.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(_COLUMNS)
            for name, number, parents, kind in rows:
                table.writerow([name, "a prompt", "", number, parents, "", "", kind, f"{kind}?"])
        return DPGBench(Settings(rules=rules), judge)

    return make


def scored(benchmark: DPGBench, said: Mapping[tuple[str, int], Sequence[str]]) -> Scores:
    """Of images, by prompt and repetition, with such answers to all questions."""
    found = []
    for (name, repetition), words in said.items():
        id = f"images/{name}/{repetition}"
        data = {"prompt_id": name, "repetition": repetition}
        item = Item(id, Cell("m", "dpgbench").folder / f"{id}.png", 42, "a prompt", None, data)
        asked = list(benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({})))
        answers = {}
        for question, word in zip(asked, words, strict=True):
            import json

            answer = Answer(question, json.dumps(word))
            answers[question.name] = Answer(question, answer.text, value=benchmark.parse(question, answer))
        replies = {one: answer.text or "" for one, answer in answers.items()}
        score = benchmark.score(item, Answers(answers)).of_item(id)
        found.append(ScoredItem(item, item.path, Answers(answers), replies, score))
    return Scores(found)


def words(text: str) -> list[str]:
    return text.split("|") if "|" in text else text.split()


def example() -> dict[tuple[str, int], list[str]]:
    return {("p1", n): words(text) for n, text in enumerate(SAID)}


def test_what_depends_on_a_no_is_a_no(benchmark: Any) -> None:
    made = benchmark([*HEADER, *EXAMPLE])
    scores = scored(made, example())
    assert [one.values["score"] for one in scores] == [0.5, 0.25, 1.0, 0.5]
    metrics = made.metrics(scores)
    assert metrics["overall"].value == metrics["overall_official"].value == 56.25
    # officially of the last image alone, whatever it depends on
    official = {name: metrics[f"l1/{name}"].value for name in ("entity", "attribute", "relation", "global")}
    assert official == {"entity": 100, "attribute": 100, "relation": 0, "global": 0}
    assert {"l2/entity - whole", "l2/global -"} <= metrics.keys()
    corrected = benchmark(EXAMPLE, "corrected")
    metrics = corrected.metrics(scored(corrected, example()))
    assert {metrics[f"l1_raw/{name}"].value for name in ("entity", "attribute", "relation", "global")} == {75}
    assert metrics["overall"].value == 56.25 and "overall_official" not in metrics


def test_the_order_of_the_file_counts_officially(benchmark: Any) -> None:
    rows: Rows = [("p1", 1, "2", "a - b (x)"), ("p1", 2, "3", "a - b (y)"), ("p1", 3, "0", "a - b (z)")]
    said = {("p1", 0): ["yes", "yes", "no"]}
    for rules, expected in (("official", 1 / 3), ("corrected", 0.0)):
        made = benchmark([*HEADER, *rows] if rules == "official" else rows, rules)
        [score] = scored(made, said)
        assert score.values["score"] == pytest.approx(expected)


def test_a_prompt_whose_first_question_is_skipped_is_left_out(benchmark: Any) -> None:
    rows: Rows = [*HEADER, ("partiprompts97", 2, "1", "a - b (x)"), *EXAMPLE]
    said = {("partiprompts97", n): ["yes"] for n in range(4)} | example()
    made = benchmark(rows)
    scores = scored(made, said)
    assert [dict(one.values) for one in scores[:4]] == [{}] * 4
    metrics = made.metrics(scores)
    assert (metrics["overall"].value, metrics["overall"].n) == (56.25, 4)
    corrected = benchmark(rows, "corrected")
    said = {("partiprompts97", n): ["yes", "yes"] for n in range(4)} | example()
    assert corrected.metrics(scored(corrected, said))["overall"].n == 8


def test_a_judge_is_asked_for_a_word_and_mplug_must_say_yes_alone(benchmark: Any) -> None:
    made, judged = benchmark([*HEADER, *EXAMPLE]), benchmark([*HEADER, *EXAMPLE], judge="openai:gpt-4o")
    asked = measure("question/1", "?")
    for text, mplug, judge in (
        ("yes", 1, 1),
        ("no", 0, 0),
        ("yes it is", 0, 1),
        ("Yes.", 0, 1),
        ("maybe", 0, None),
    ):
        assert made.parse(asked, Answer(asked, f'"{text}"')) == mplug
        if judge is None:
            with pytest.raises(Unparsed):
                judged.parse(asked, Answer(asked, text))
        else:
            assert judged.parse(asked, Answer(asked, text)) == judge


def test_scores_are_those_of_the_official_functions(benchmark: Any, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    image = pytest.importorskip("PIL.Image")
    source = official_source(*_KIT, "benchmarks/dpgbench/step2_compute_dpg_bench.py")
    begin, end = source.index("def prepare_dpg_data"), source.index("def main()")
    import os.path as osp

    space: dict[str, Any] = {"pd": pd, "defaultdict": defaultdict, "Image": image, "osp": osp}
    exec(compile(source[begin:end], "official", "exec"), space)
    draw = random.Random(8)
    rows = [
        *HEADER,
        ("partiprompts97", 2, "0", "global - (x)"),
        ("partiprompts97", 3, "2, 1", "other - count (y)"),
    ]
    for n in range(40):
        for number in range(1, draw.randint(2, 9)):
            parents = ",".join(map(str, draw.sample(range(number), min(number, draw.randint(1, 2)))))
            kind = draw.choice(
                ["entity - whole", "attribute - color", "relation - spatial", "global -", "other - text"]
            )
            rows.append((f"item{n}", number, parents, f"{kind} (x)"))
    made = benchmark(rows)
    args = SimpleNamespace(
        csv=tmp_path / "dpgbench/data/dpgbench.csv", pic_num=4, res_path=str(tmp_path / "r.txt")
    )
    questions = space["prepare_dpg_data"](args)
    said: dict[tuple[str, int], list[str]] = {}
    theirs, categories = [], defaultdict(list)
    for name, facts in questions.items():
        count = len(facts["qid2question"])
        replies = [[draw.choice(["yes", "yes", "no", "yes it is"]) for _ in range(count)] for _ in range(4)]
        said |= {(name, n): one for n, one in enumerate(replies)}
        flat = iter([word for one in replies for word in one])
        path = tmp_path / f"{name}.png"
        image.new("RGB", (4, 4)).save(path)
        vqa = SimpleNamespace(vqa=lambda picture, question, flat=flat: next(flat))
        try:
            score, tuples, raw = space["compute_dpg_one_sample"](args, questions, str(path), vqa, None)
        except KeyError:
            continue
        theirs.append(score)
        for number, kind in tuples.items():
            categories[kind.split("(")[0].strip()].append(raw[number])
    metrics = made.metrics(scored(made, said))
    assert metrics["overall_official"].value == pytest.approx(100 * sum(theirs) / len(theirs))
    for kind, values in categories.items():
        assert metrics[f"l2/{kind}"].value == pytest.approx(100 * sum(values) / len(values))
    assert {name.removeprefix("l2/") for name in metrics if name.startswith("l2/")} == categories.keys()
