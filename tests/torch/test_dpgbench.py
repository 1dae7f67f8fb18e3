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
from imageevalkit.jobs.plan import COMPLETE
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.function_judge import items, scores_of
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
    made = [item_of(*key) for key in said]
    left = {item.id: iter(words) for item, words in zip(made, said.values(), strict=True)}
    return scores_of(benchmark, made, lambda asked: json.dumps(next(left[asked.item])))


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


def test_a_missing_image_is_no_score_of_its_prompt_officially(benchmark: Any, tmp_path: Path) -> None:
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
    table = tmp_path / "dpgbench/data/dpgbench.csv"
    table.write_text(table.read_text(encoding="utf-8").replace(",2,", ",two,"), encoding="utf-8")
    with pytest.raises(CellFailure, match=r"dpgbench\.csv is invalid"):
        DPGBench()._of(item_of("p1", 0))


def test_a_judge_is_asked_for_a_word_and_mplug_must_say_yes_alone(benchmark: Any) -> None:
    made, judged = benchmark([*HEADER, *EXAMPLE]), benchmark([*HEADER, *EXAMPLE], judge="openai:gpt-4o")
    asked = measure("question/1", "?")
    for text, mplug, judge in (("yes", 1, 1), ("no", 0, 0), ("Yes it is.", 0, 1)):
        assert made.parse(asked, Answer(asked, f'"{text}"')) == mplug
        assert judged.parse(asked, Answer(asked, text)) == judge
    with pytest.raises(Unparsed):
        judged.parse(asked, Answer(asked, "maybe"))


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
    for n in range(20):
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


def test_any_first_prompts_are_of_all_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the mirror has the prompts, and no table of questions
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    (tmp_path / "dpgbench/data").mkdir(parents=True)
    file = "benchmarks/dpgbench/eval_prompts/dpgbench_prompts.json"
    shutil.copy(shared_mirror() / "/".join(KIT) / file, tmp_path / "dpgbench/data")
    first = items(DPGBench(), limit=160)
    sources = [re.sub(r"\d+$", "", one.data["prompt_id"]) for one in first[::4]]
    assert len({*sources}) == 12 and 9 <= sources.count("partiprompts") <= 15
    assert [one.seed for one in first[:4]] == [42, 43, 44, 45]
    assert [one.path.name for one in first[:4]] == ["0.png", "1.png", "2.png", "3.png"]
