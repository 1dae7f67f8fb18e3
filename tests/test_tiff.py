"""TIIF-Bench: what is asked, how replies are read, the tables; beside the authors' published judgements."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tiff.benchmark import GROUPS, TYPES, Tiff, TiffSettings
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Metric
from tests.support.function_judge import items
from tests.support.mirror import official_source, use_official_data

# right answers and questions of the published judgements of sd35, testmini, by type: short; long
_PUBLISHED = """
2d_spatial_relation 21/24 23/24
3d_spatial_relation 18/24 19/24
action+2d 28/36 29/36
action+3d 33/39 31/39
action+color 22/26 21/26
action+texture 23/29 22/29
color+2d 19/20 19/20
color+3d 13/20 14/20
color+texture 22/25 19/25
comparison 19/24 23/24
comparison+2d 10/16 12/16
comparison+3d 8/16 7/16
comparison+color 18/21 14/21
comparison+texture 8/20 9/20
differentiation 21/25 18/25
differentiation+2d 10/16 7/16
differentiation+3d 8/17 10/17
differentiation+color 17/21 17/21
differentiation+texture 8/20 13/20
negation 14/24 17/24
negation+2d 10/16 12/16
negation+3d 11/17 12/17
negation+color 12/18 10/18
negation+texture 12/18 12/18
numeracy 34/48 28/48
numeracy+2d 18/27 16/27
numeracy+3d 22/32 22/32
numeracy+color 32/40 26/40
numeracy+texture 33/44 23/44
real_world 174/268 179/268
shape+2d 9/20 11/20
shape+3d 14/20 12/20
shape+color 36/50 39/50
shape+texture 32/50 33/50
style 22/30 19/30
text 157/221 95/221
texture+2d 18/21 15/21
texture+3d 12/18 16/18
texture+color 24/25 22/25
"""


def scored(benchmark: Tiff, kind: str, wording: str, right: int, count: int, n: int = 0) -> ScoredItem:
    """An image about which ``right`` of ``count`` questions were answered as expected."""
    questions = [f"{kind} {number}?" for number in range(count)]
    data = {"type": kind, "wording": wording, "row": n, "questions": questions, "expected": ["yes"] * count}
    id = f"{kind}_prompts/{wording}_description/{n}"
    item = Item(id, Cell("m", "tiff").folder / f"{id}.png", 42, "a prompt", None, data)
    said = ["yes"] * right + ["no"] * (count - right)
    answer = Answer(ask("questions", "?"), "\n".join(said), value=said)
    answers = Answers({"questions": answer})
    return ScoredItem(
        item, item.path, answers, {"questions": answer.text or ""}, benchmark.score(item, answers).of_item(id)
    )


def published(benchmark: Tiff) -> Scores:
    rows = [line.split() for line in _PUBLISHED.split("\n") if line]
    return Scores(
        [
            scored(benchmark, kind, wording, *map(int, cell.split("/")))
            for kind, *cells in rows
            for wording, cell in zip(("short", "long"), cells, strict=True)
        ]
    )


def shown(metrics: dict[str, Metric], names: Sequence[str]) -> list[str]:
    return [f"{metrics[name].value:.4f}" for name in names]


def test_published_judgements_give_the_published_table() -> None:
    metrics = Tiff().metrics(published(Tiff()))
    names = [*GROUPS, "basic", "advanced"]
    assert len(TYPES) == 39
    assert shown(metrics, [f"short/{name}" for name in names]) == [
        "0.8000",
        "0.8123",
        "0.7308",
        "0.7391",
        "0.6687",
        "0.6059",
        "0.7104",
        "0.7333",
        "0.6493",
        "0.7810",
        "0.6751",
    ]
    assert shown(metrics, [f"long/{name}" for name in names]) == [
        "0.7700",
        "0.8376",
        "0.7425",
        "0.7462",
        "0.6214",
        "0.6186",
        "0.4299",
        "0.6333",
        "0.6679",
        "0.7834",
        "0.6520",
    ]
    assert shown(metrics, ["short", "long", "mean_accuracy"]) == ["0.7166", "0.6742", "0.7000"]


def test_a_type_is_a_mean_over_questions_and_a_group_one_over_types() -> None:
    benchmark = Tiff()
    metrics = benchmark.metrics(
        Scores(
            [
                scored(benchmark, "numeracy", "short", 7, 8),
                scored(benchmark, "numeracy", "short", 1, 2, 1),
                scored(benchmark, "negation", "short", 20, 24),
                scored(benchmark, "differentiation", "short", 24, 25),
                scored(benchmark, "comparison", "short", 22, 24),
            ]
        )
    )
    assert shown(metrics, ["short/type/numeracy", "short/reasoning"]) == ["0.8000", "0.8775"]
    # accuracies with 4 decimals go into a mean officially
    exact = Tiff(TiffSettings(rules="corrected"))
    both = [
        one.metrics(Scores([scored(one, "negation", "short", 20, 24)]))["short/reasoning"].value
        for one in (benchmark, exact)
    ]
    assert both == [0.8333, 20 / 24]


def question(count: int) -> Question:
    return ask("questions", "?", data=count)


def test_replies_are_read_as_the_official_function_reads_them() -> None:
    source = official_source(
        "A113N-W3I/TIIF-Bench", "3aae7504d2546516eaec2fea82fde9ae445dfea3", "eval/eval_with_vlm.py"
    )
    begin, end = source.index("class OutputFormatError"), source.index("def main(")
    space: dict[str, Any] = {"re": re}
    exec(compile(source[begin:end], "official", "exec"), space)
    draw, pieces = (
        random.Random(1),
        [
            "yes",
            "No",
            "YES,",
            "nope",
            "1. yes",
            " no.",
            "**Yes**",
            "\n",
            "\n\n",
            "\t",
            "yes\r",
            "because",
            ": ",
            "noé",
        ],
    )
    read = 0
    for _ in range(100_000):
        reply = "".join(draw.choice(pieces) for _ in range(draw.randint(0, 8)))
        count = draw.randint(1, 4)
        try:
            theirs = space["extract_yes_no"](reply, ["?"] * count)
        except space["OutputFormatError"]:
            theirs = None
        try:
            ours = Tiff().parse(question(count), Answer(question(count), reply))
        except Unparsed:
            ours = None
        assert ours == theirs, repr(reply)
        read += ours is not None
    assert read > 1000


def test_the_template_is_drawn_by_item_and_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("tiff", tmp_path, monkeypatch)
    benchmark = Tiff()
    made = items(benchmark)
    assert len(made) == 554

    def text(item: Item, attempt: int = 0) -> str:
        [one] = benchmark.questions(item, Picture(item.path, "ab" * 32), Answers({}, {"questions": attempt}))
        assert one.sampling.temperature == 1.0 and one.sampling.max_tokens is None
        assert [message.role for message in one.messages] == ["system", "user"]
        return one.text

    # the same draw whenever it is asked for, another with the attempt and the item
    assert text(made[0]) == text(made[0])
    first_lines = {text(made[0], n).split("\n")[2] for n in range(20)}
    assert len(first_lines) == 3
    assert len({text(one).split("\n")[2] for one in made[:20]}) == 3
    # every question of the row is in it, without its blanks
    assert all(asked.strip() in text(made[3]) for asked in made[3].data["questions"])


def test_both_splits_have_all_prompts_and_never_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_official_data("tiff", tmp_path, monkeypatch)
    mini, whole = items(Tiff()), items(Tiff(TiffSettings(split="test")))
    assert (len(mini), len(whole)) == (554, 5076)
    assert sum(len(one.data["questions"]) for one in mini) == 2892
    assert not {one.id for one in mini} & {one.id for one in whole}
    assert {one.seed for one in mini} == {42}
    assert len(items(Tiff(TiffSettings(wording="long")))) == 277


def test_there_is_an_official_file_for_each_image() -> None:
    files = Tiff().official_files(published(Tiff()))
    assert len(files) == 78
    record = json.loads(files["comparison+2d/long/0.json"])
    assert (record["attribute"], record["desc"], record["line_idx"]) == (
        "comparison+2d",
        "long_description",
        0,
    )
    right = [said == due for said, due in zip(record["model_pred"], record["gt_answers"], strict=True)]
    assert (sum(right), len(right)) == (12, 16)
