"""DPG-Bench: the questions of a prompt, what depends on what, the categories; beside the official program."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from benchmarks.dpgbench.benchmark import DPGBench
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.extras.adopt.copies import adopt_cell
from imageevalkit.extras.adopt.sources import find_images
from imageevalkit.jobs.plan import COMPLETE, INCOMPLETE
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.function_judge import items
from tests.support.grid_images import noise, same
from tests.support.mirror import KIT, official_source, shared_mirror

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
                table.writerow([name, "a prompt", "", number, parents, "", "", kind, f"{kind} {number}?"])
        return DPGBench(Settings(rules=rules), judge)

    return make


def item_of(prompt: str, repetition: int) -> Item:
    id, data = f"images/{prompt}/{repetition}", {"prompt_id": prompt, "repetition": repetition}
    return Item(id, Cell("m", "dpgbench").folder / f"{id}.png", 42, "a prompt", None, data)


def scored(benchmark: DPGBench, said: Mapping[tuple[str, int], Sequence[str]]) -> Scores:
    """Returns scored images, by prompt and repetition, with such answers to all questions."""
    found = []
    for (name, repetition), words in said.items():
        item = item_of(name, repetition)
        asked = list(benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({})))
        answers = {}
        for question, word in zip(asked, words, strict=True):
            answer = Answer(question, json.dumps(word))
            answers[question.name] = Answer(question, answer.text, value=benchmark.parse(question, answer))
        replies = {one: answer.text or "" for one, answer in answers.items()}
        score = benchmark.score(item, Answers(answers)).of_item(item.id)
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
    names = {name.removeprefix("l2/") for name in metrics if name.startswith("l2/")}
    assert names == {"entity - whole", "attribute - color", "relation - spatial", "global -"}
    assert metrics["l2/relation - spatial"].value == 0
    corrected = benchmark(EXAMPLE, "corrected")
    metrics = corrected.metrics(scored(corrected, example()))
    assert {metrics[f"l1_raw/{name}"].value for name in ("entity", "attribute", "relation", "global")} == {75}
    after_a_no = {"entity": 75, "attribute": 50, "relation": 25, "global": 75}
    assert {name: metrics[f"l1/{name}"].value for name in after_a_no} == after_a_no
    assert metrics["overall"].value == 56.25 and "overall_official" not in metrics
    assert (made.official_headline, corrected.official_headline) == (("overall_official",), ())


def test_the_order_of_the_file_counts_officially(benchmark: Any) -> None:
    rows: Rows = [("p1", 1, "2", "a - b (x)"), ("p1", 2, "3", "a - b (y)"), ("p1", 3, "0", "a - b (z)")]
    said = {("p1", 0): ["yes", "yes", "no"]}
    for rules, expected in (("official", 1 / 3), ("corrected", 0.0)):
        made = benchmark([*HEADER, *rows] if rules == "official" else rows, rules)
        [score] = scored(made, said)
        assert score.values["score"] == pytest.approx(expected)


def test_a_prompt_at_which_the_official_program_fails_is_left_out(benchmark: Any) -> None:
    """With two of four images, the program looks up a first question that it never stored."""
    rows: Rows = [
        *HEADER,
        ("partiprompts97", 2, "0", "a - b (x)"),
        ("partiprompts97", 3, "2,1", "a - b (y)"),
        *EXAMPLE,
    ]
    said = {("partiprompts97", n): [("no", "yes")[n % 2], "yes"] for n in range(4)} | example()
    made = benchmark(rows)
    scores = scored(made, said)
    assert [dict(one.values) for one in scores[:4]] == [{"score": 0}, {}, {"score": 0}, {}]
    metrics = made.metrics(scores)
    for name in ("overall", "overall_official"):
        assert (metrics[name].value, metrics[name].n) == (56.25, 4)
    assert "l1/a" not in metrics
    assert made.notes(scores) == [
        "no image of partiprompts97 counts, because the official program fails there (rules=corrected counts them)"
    ]
    assert made.notes(scored(made, example())) == ()
    corrected = benchmark(rows, "corrected")
    said = {key: ["yes", *words] if len(words) == 2 else words for key, words in said.items()}
    scores = scored(corrected, said)
    assert corrected.metrics(scores)["overall"].n == 8 and not corrected.notes(scores)


def test_rows_apart_and_a_parent_that_is_not_there(benchmark: Any) -> None:
    rows: Rows = [
        ("p1", 1, "0", "a - b (x)"),
        ("p2", 1, "7", "a - b (x)"),
        ("p1", 2, "0", "a - b (y)"),
    ]
    official, corrected = benchmark([*HEADER, *rows]), benchmark(rows, "corrected")
    assert [len(official._of(item_of("p1", 0))), len(corrected._of(item_of("p1", 0)))] == [1, 2]
    said = {("p2", n): ["yes"] for n in range(4)}
    assert official.metrics(scored(official, said))["overall"].value is None
    assert corrected.metrics(scored(corrected, said))["overall"].value == 100


def test_a_missing_image_is_no_score_of_its_prompt_officially(benchmark: Any) -> None:
    made = benchmark([*HEADER, *EXAMPLE, *(("p2", *row[1:]) for row in EXAMPLE)])
    said = example() | {("p2", n): words("yes yes yes yes") for n in range(3)}
    scores = scored(made, said)
    scores.items = [*scores.items, ScoredItem(item_of("p2", 3), None, Answers({}), {}, None)]
    metrics = made.metrics(scores)
    assert (metrics["overall_official"].value, metrics["overall_official"].n) == (56.25, 4)
    assert metrics["overall"].value == pytest.approx((56.25 * 4 + 300) / 7)
    assert metrics["l1/relation"].value == 0  # of p1 alone
    with pytest.raises(CellFailure, match=r"dpgbench\.csv has no questions about prompt p3"):
        list(made.questions(item_of("p3", 0), Picture(Path("x"), "ab" * 32), Answers({})))


def test_a_table_of_questions_that_is_none_is_told_in_a_line(benchmark: Any, tmp_path: Path) -> None:
    made = benchmark([*HEADER, *EXAMPLE])
    table = tmp_path / "dpgbench/data/dpgbench.csv"
    text = table.read_text(encoding="utf-8")
    table.write_text(f"\ufeff{text}", encoding="utf-8")  # as a spreadsheet writes it
    assert len(made._of(item_of("p1", 0))) == 4
    for wrong in (text.replace("item_id", "item"), text.replace(",2,", ",two,"), text.replace("tuple", "x")):
        table.write_text(wrong, encoding="utf-8")
        with pytest.raises(CellFailure, match=r"dpgbench\.csv is invalid") as caught:
            DPGBench()._of(item_of("p1", 0))
        assert "\n" not in str(caught.value)


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


def test_a_judge_may_think_before_its_word(benchmark: Any) -> None:
    judged = benchmark([*HEADER, *EXAMPLE], judge="openai:gpt-4o")
    for asked in judged.questions(item_of("p1", 0), Picture(Path("0.png"), "ab" * 32), Answers({})):
        assert (asked.sampling.max_tokens, asked.sampling.temperature) == (2048, 0.0)


def program(file: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "official"}
    exec(compile(official_source(*KIT, f"benchmarks/dpgbench/{file}"), file, "exec"), space)
    return space


def write_cells(folder: Path, names: Sequence[str]) -> None:
    """Four images of each prompt, whose first pixel tells which they are."""
    for n, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for repetition in range(4):
            Image.new("RGB", (6, 4), (n % 256, n // 256, 1 + repetition)).save(
                folder / name / f"{repetition}.png"
            )


def scorer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the official program that scores, which asks ``accelerate`` for nothing but one process."""
    pytest.importorskip("pandas")
    for name, parts in (
        ("accelerate", {"Accelerator": one_process}),
        ("accelerate.utils", {"gather_object": lambda values: values}),
    ):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**parts))
    return program("step2_compute_dpg_bench.py")


def test_a_grid_is_cut_as_the_official_program_cuts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A black cell is the image of a safety filter, and a folder beside the grid is what is left of its making."""
    grid = noise(1, (7, 5))
    grid.paste("black", (3, 2, 7, 5))
    write_cells(tmp_path, ["p1"])
    grid.save(tmp_path / "p1.png")
    made, cell = [item_of("p1", n) for n in range(4)], Cell("m", "dpgbench")
    found = find_images(tmp_path, made, [], DPGBench().find_images)
    outcome = adopt_cell(cell, made, tmp_path, found, ProgressWriter())
    assert (outcome.state, outcome.message) == (COMPLETE, f"4 images of {tmp_path}")
    ours = [Image.open(item.path) for item in made]
    boxes = ((0, 0, 3, 2), (3, 0, 7, 2), (0, 2, 3, 5), (3, 2, 7, 5))
    assert all(same(one, grid.crop(box)) for one, box in zip(ours, boxes, strict=True))

    theirs = list[Image.Image]()

    def answer(image: Image.Image, question: str) -> str:
        theirs.append(image)
        return "yes"

    judge = SimpleNamespace(vqa=answer)
    asked = {"p1": {"qid2tuple": {1: "a"}, "qid2question": {1: "?"}, "qid2dependency": {1: [0]}}}
    options = SimpleNamespace(pic_num=4, res_path=str(tmp_path / "r.txt"))
    scorer(monkeypatch)["compute_dpg_one_sample"](options, asked, str(tmp_path / "p1.png"), judge, None)
    assert all(same(*pair) for pair in zip(ours, theirs, strict=True))


def test_our_files_are_those_of_the_official_program_on_the_official_grids(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    space = scorer(monkeypatch)
    draw = random.Random(8)
    rows = [
        *HEADER,
        ("partiprompts97", 2, "0", "global - (x)"),
        ("partiprompts97", 3, "2, 1", "other - count (y)"),
    ]
    kinds = ["entity - whole", "attribute - color", "relation - spatial", "global -", "other - text"]
    for n in range(60):
        count = draw.randint(1, 8)
        for number in range(1, count + 1):
            # now and then of one that comes later, or of itself
            parents = ",".join(map(str, draw.sample(range(count + 1), min(count, draw.randint(1, 2)))))
            rows.append((f"item{n}", number, parents, f"{draw.choice(kinds)} (x)"))
    made = benchmark(rows)
    names = [*made._propositions]
    said = {
        (name, n): [draw.choice(["yes", "yes", "no", "yes it is"]) for _ in made._propositions[name]]
        for name in names
        for n in range(4)
    }
    theirs = tmp_path / "theirs/images"
    write_cells(theirs, names)
    program("post_process.py")["process_all_directories"](str(theirs))
    assert sorted(path.name for path in theirs.iterdir()) == sorted(f"{name}.png" for name in names)

    def answer(picture: Image.Image, question: str) -> str:
        low, high, repetition = picture.convert("RGB").getpixel((0, 0))  # type: ignore[misc]
        name = names[low + 256 * high]
        texts = [proposition.question for proposition in made._propositions[name].values()]
        return said[name, repetition - 1][texts.index(question)]

    space |= {"MPLUG": lambda path, device: SimpleNamespace(vqa=answer), "tqdm": iter}
    monkeypatch.setattr(space["time"], "sleep", lambda seconds: None)
    table = tmp_path / "dpgbench/data/dpgbench.csv"
    options = {"image_root_path": theirs, "csv": table, "res_path": tmp_path / "r.txt", "pic_num": 4}
    monkeypatch.setattr(
        sys, "argv", ["x", *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
    )
    space["main"]()
    assert "Failed filename: partiprompts97.png" in capsys.readouterr().out

    write_cells(Cell("m", "dpgbench").folder / "images", names)
    scores = scored(made, said)
    ours = made.official_files(scores)
    assert fields(ours["dpgbench.txt"]) == fields((tmp_path / "r.txt").read_text())
    # an image of its own is in the place of a cell; of the prompt that fails they have some lines
    questions = re.compile(r"(?:/\d)?\.png, \(.*?\), ")
    details = [questions.sub(" ", line) for line in ours["dpgbench_detail.txt"].splitlines()]
    whole = [line for line in details if "partiprompts97" not in line]
    expected = (tmp_path / "r_detail.txt").read_text().splitlines()
    of_theirs = [questions.sub(" ", line) for line in expected if "partiprompts97" not in line]
    assert sorted(last(line) for line in whole) == sorted(last(line) for line in of_theirs)


def one_process() -> SimpleNamespace:
    return SimpleNamespace(
        is_main_process=True,
        device="cpu",
        num_processes=1,
        process_index=0,
        prepare=lambda model: model,
        wait_for_everyone=lambda: None,
    )


def last(path: str) -> str:
    return path.rpartition("/")[2]


def fields(text: str) -> dict[str, Any]:
    """The lines of a result by what begins each, numbers as such; those with paths of their own without these."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        first, *numbers = line.split(", ")
        key, _, value = line.partition(": ")
        if numbers:
            found[last(first)] = [round(float(number), 9) for number in numbers]
        elif key in ("Model", "Image path", "Save results to"):
            found[key] = bool(value)
        else:
            found[key] = round(float(value), 9) if value else ""
    return found


def use_prompts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official prompts alone: the mirror has no table of questions."""
    monkeypatch.setattr(assets, "BENCHMARKS", folder)
    file = "benchmarks/dpgbench/eval_prompts/dpgbench_prompts.json"
    (folder / "dpgbench/data").mkdir(parents=True)
    shutil.copy(shared_mirror() / "/".join(KIT) / file, folder / "dpgbench/data")


def test_official_grids_are_adopted_as_four_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_prompts(tmp_path, monkeypatch)
    made = [one for one in items(DPGBench()) if one.data["prompt_id"] in ("226", "vrd1", "vrd2")]
    assert len(made) == 12
    theirs, cell = tmp_path / "theirs", Cell("m", "dpgbench")
    write_cells(theirs / "images", ["226", "vrd1", "vrd2"])
    program("post_process.py")["process_all_directories"](str(theirs / "images"))
    cells = tmp_path / "cells"
    write_cells(cells, ["226", "vrd1", "vrd2"])
    # one that the official program has left as it was
    (theirs / "images/vrd2.png").unlink()
    (theirs / "images/vrd2").mkdir()
    for n in (0, 2):
        (cells / f"vrd2/{n}.png").rename(theirs / f"images/vrd2/{n}.png")
    for source in (theirs, theirs / "images"):
        found = find_images(source, made, [], DPGBench().find_images)
        assert found.keys() == {one.id for one in made} - {"images/vrd2/1", "images/vrd2/3"}
    outcome = adopt_cell(cell, made, theirs, found, ProgressWriter())
    assert outcome.state == INCOMPLETE and "2 of 12 images are not available" in outcome.message
    for name in ("226/0", "226/1", "226/2", "226/3", "vrd1/2"):
        with Image.open(cell.folder / f"images/{name}.png") as ours, Image.open(cells / f"{name}.png") as one:
            assert (ours.size, ours.tobytes()) == (one.size, one.tobytes())
    assert DPGBench().find_images(tmp_path / "nothing", made) is None


def test_any_first_prompts_are_of_all_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_prompts(tmp_path, monkeypatch)
    first = items(DPGBench(), limit=160)
    sources = [re.sub(r"\d+$", "", one.data["prompt_id"]) for one in first[::4]]
    assert len({*sources}) == 12 and 9 <= sources.count("partiprompts") <= 15
    assert [one.seed for one in first[:4]] == [42, 43, 44, 45]
    assert [one.path.name for one in first[:4]] == ["0.png", "1.png", "2.png", "3.png"]
