"""T2I-ReasonBench: the two stages of a judge's work, the grades, the tables; beside the official programs."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.t2ireasonbench.benchmark import DIMENSIONS, T2IReasonBench, T2IReasonBenchSettings
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from tests.support.function_judge import items
from tests.support.mirror import official_source, use_official_data

_KIT = ("PenghaoYin/ImageEvalKit", "85b5e1511b867688fa37edee304ee0adc953e941")


def question(name: str, dimension: str = "entity", count: int = 2) -> Question:
    data = (DIMENSIONS[dimension].braces, count)
    return Question(name, (Message("user", ("?",)),), Sampling(1000), data=data)


def grades(
    reply: str, dimension: str = "entity", rules: Any = "official", count: int = 2
) -> list[float] | None:
    asked = question("main", dimension, count)
    try:
        found: list[float] = T2IReasonBench(T2IReasonBenchSettings(rules=rules)).parse(
            asked, Answer(asked, reply)
        )
        return found
    except Unparsed:
        return None


INNER = '{"reason": ["a {x} b"], "score": [1, 0.5]}'
BEHIND = '{"reason": ["a"], "score": [1, 0.5]} Note {ok}'


@pytest.mark.parametrize(
    ("reply", "entity", "textual", "corrected"),
    [
        (INNER, None, [1, 0.5], [1, 0.5]),
        (BEHIND, [1, 0.5], None, [1, 0.5]),
        ('{"score": [1, 0.5, 0]}', [1, 0.5, 0], [1, 0.5, 0], None),
        ('{"score": [1, 0.7]}', [1, 0.7], [1, 0.7], None),
        ('{"score": ["1", "0"]}', [1, 0], [1, 0], [1, 0]),
        ('{"score": []}', None, None, None),
        ('{"score": null}', None, None, None),
        ('{"reason": []}', None, None, None),
        ("no JSON", None, None, None),
    ],
)
def test_the_grades_in_a_reply(reply: str, entity: Any, textual: Any, corrected: Any) -> None:
    assert grades(reply) == entity
    assert grades(reply, "textual") == textual
    assert grades(reply, rules="corrected") == corrected


@pytest.mark.parametrize("program", ["entity", "textual_image"])
def test_replies_are_read_as_the_official_function_reads_them(program: str) -> None:
    source = official_source(*_KIT, f"benchmarks/T2I-ReasonBench/evaluation/Qwen2.5-VL/eval_{program}.py")
    begin, end = source.index("def extract_json"), source.index("def ask_qw")
    space: dict[str, Any] = {"re": re, "json": json, "print": lambda *words: None}
    exec(compile(source[begin:end], "official", "exec"), space)
    dimension = {"entity": "entity", "textual_image": "textual"}[program]
    draw, read = random.Random(4), 0
    pieces = [
        "{",
        "}",
        '"score"',
        '"reason"',
        ": ",
        "[1, 0.5]",
        '["a"]',
        ", ",
        "[0]",
        "x",
        "\n",
        "{}",
        '["1"]',
        "[null]",
    ]
    for _ in range(100_000):
        if draw.random() < 0.5:
            reply = "".join(draw.choice(pieces) for _ in range(draw.randint(1, 9)))
        else:
            reply = f'{draw.choice(pieces)}{{"reason": ["a"], "score": {draw.choice(pieces[5:])}}}{draw.choice(pieces)}'
        try:
            theirs = [float(x) for x in space["extract_json"](reply)["score"]] or None
        except Exception:
            theirs = None
        assert grades(reply, dimension) == theirs, reply
        read += theirs is not None
    assert read > 5_000


def scored(benchmark: T2IReasonBench, dimension: str, n: int, **lists: list[float]) -> ScoredItem:
    """An image with such grades."""
    file = DIMENSIONS[dimension].file
    blocks = {name: {f"q{k}": "?" for k in range(1, len(found) + 1)} for name, found in lists.items()}
    data = {"dimension": dimension, "id": n, "tag": "Food", "blocks": blocks}
    item = Item(
        f"{file}/{n:04d}", Cell("m", "t2ireasonbench").folder / f"{file}/{n:04d}.png", 42, "p", None, data
    )
    said = {"description": Answer(question("description"), "a cup", value="a cup")}
    for name, found in lists.items():
        text = json.dumps({"score": found})
        said[name] = Answer(question(name), text, value=[float(one) for one in found])
    answers = Answers(said)
    replies = {name: answer.text or "" for name, answer in said.items()}
    return ScoredItem(item, item.path, answers, replies, benchmark.score(item, answers).of_item(item.id))


def entity() -> Scores:
    benchmark = T2IReasonBench()
    return Scores(
        [
            scored(benchmark, "entity", 1, main=[1, 0.5], details=[1, 1, 0], quality=[0.5, 1, 1]),
            scored(benchmark, "entity", 2, main=[1], details=[0.5, 0.5], quality=[1, 1, 1]),
        ]
    )


def test_a_dimension_is_the_mean_of_its_images() -> None:
    metrics = T2IReasonBench().metrics(entity())
    assert (metrics["entity/accuracy"].value, metrics["entity/quality"].value) == (78.75, 91.67)
    assert metrics["accuracy"].value is None  # until the four have a score


def test_the_official_function_gives_our_scores_for_our_table(tmp_path: Path) -> None:
    source = official_source(*_KIT, "benchmarks/T2I-ReasonBench/evaluation/Qwen2.5-VL/eval_entity.py")
    begin, end = source.index("def model_score"), source.index('if __name__ == "__main__"')
    space: dict[str, Any] = {"csv": csv, "print": lambda *words: None}
    exec(compile(source[begin:end], "official", "exec"), space)
    [(name, text)] = T2IReasonBench().official_files(entity()).items()
    assert name == "csv_result/entity_reasoning/m.csv"
    rows = list(csv.reader(io.StringIO(text)))
    header = re.search(r'writerow\((\["id".*?\])\)', source)
    assert header and rows[0] == json.loads(header[1])
    table = tmp_path / "m.csv"
    # without our last line, which is what the function adds
    table.write_bytes("\r\n".join(text.split("\r\n")[:-2]).encode() + b"\r\n")
    space["model_score"](table)
    assert (
        table.read_text(encoding="utf-8").replace("\n", "\r\n") == text.replace("\r\r", "\r")
        or list(csv.reader(table.open(encoding="utf-8", newline=""))) == rows
    )


def test_the_second_stage_quotes_what_was_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("t2ireasonbench", tmp_path, monkeypatch)
    benchmark = T2IReasonBench()
    made = items(benchmark)
    assert len(made) == 800 and {one.seed for one in made} == {42}
    [item] = [one for one in made if one.id == "entity_reasoning/0015"]
    picture = Picture(item.path, "ab" * 32)
    [first] = benchmark.questions(item, picture, Answers({}))
    assert first.messages[0].parts[0] is picture
    told = Answers({"description": Answer(first, "Two birds.", value="Two birds.")})
    _, *later = benchmark.questions(item, picture, told)
    assert [one.name for one in later] == ["main", "details", "quality"]
    for one in later:
        roles = [message.role for message in one.messages]
        assert roles == ["user", "assistant", "user"] and one.messages[1].parts == ("Two birds.",)
        # as Python prints a dict, criteria that are dicts themselves too
        assert str(item.data["blocks"][one.name]) in one.text
    calls = sum(1 + len(DIMENSIONS[one.data["dimension"]].blocks) for one in made)
    assert calls == 2800
    assert benchmark.pixels.limits == (200704, 1003520)
    assert T2IReasonBench(T2IReasonBenchSettings(pixels="original")).pixels.limits is None
