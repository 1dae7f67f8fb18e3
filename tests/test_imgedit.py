"""ImgEdit-Bench: what is asked, the grades in a reply, and the scores."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.imgedit.benchmark import ImgEdit, ImgEditSettings
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.cell import Cell
from imageevalkit.cell.items import Item
from tests.support.function_judge import items
from tests.support.mirror import official_source, shared_mirror

_KIT = ("PenghaoYin/ImageEvalKit", "85b5e1511b867688fa37edee304ee0adc953e941")
_STEP3 = "benchmarks/imgedit/step3_get_avgscore.py"
GRADE_NAMES = ("Prompt Compliance", "Visual Naturalness", "Physical & Detail Integrity")
PROMPT = "\n".join(["Grade it.", *(f"{name}: A number from 1 to 5." for name in GRADE_NAMES)])


def question(text: str = PROMPT) -> Question:
    return ask("grades", text)


def grade(reply: str, rules: Any = "official") -> float | None:
    """The score of an edit with such a reply; None: it has none."""
    benchmark = ImgEdit(ImgEditSettings(rules=rules))
    try:
        value = benchmark.parse(question(), Answer(question(), reply))
    except Unparsed:
        return None
    return benchmark.score(
        item("1", "add"), Answers({"grades": Answer(question(), reply, value=value)})
    ).values["grade"]


def item(key: str, kind: str) -> Item:
    path = Cell("m", "imgedit").folder / f"images/{key}.png"
    return Item(f"images/{key}", path, 42, None, None, {"key": key, "type": kind, "prompt": "Paint it red."})


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [
        ("Prompt Compliance: 5\nVisual Naturalness: 4\nPhysical & Detail Integrity: 4", 4.33, 13 / 3),
        ("Prompt Compliance: 3\nVisual Naturalness: 4/5\nPhysical & Detail Integrity: 2", 2.5, None),
        ("Prompt Compliance: 4.\nVisual Naturalness: 4", 4.0, None),
        ("- Prompt Compliance: 4", 4.0, None),
        ("**Prompt Compliance:** 5", None, None),
        ("Prompt Compliance: **4**", None, None),
        ("Prompt Compliance:5", None, None),
        ("Prompt Compliance: 7\nVisual Naturalness: 10", 8.5, None),
        ("Brief reasoning: text: more\nPrompt Compliance: 2", 2.0, None),
        ("Prompt Compliance: \u00b2", None, None),
        ("", None, None),
    ],
)
def test_the_score_of_an_edit(reply: str, official: float | None, corrected: float | None) -> None:
    assert (grade(reply), grade(reply, "corrected")) == (official, corrected)


def official_program() -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "official"}
    exec(compile(official_source(*_KIT, _STEP3), "official", "exec"), space)
    return space


def test_grades_are_read_as_the_official_program_reads_them() -> None:
    theirs = official_program()["extract_scores_and_average"]
    draw, read = random.Random(2), 0
    pieces = ["A: ", "5", "4", "12", ": ", ":", "\n", " ", "- B: ", "x", "\r", "0", "\x0b", "3.", "\u0663"]
    for _ in range(100_000):
        reply = "".join(draw.choice(pieces) for _ in range(draw.randint(0, 9)))
        assert grade(reply) == theirs(reply), repr(reply)
        read += grade(reply) is not None
    assert read > 5_000


def scored(benchmark: ImgEdit, replies: list[tuple[str, str]]) -> Scores:
    """Of edits of such types with such replies."""
    found = []
    for n, (kind, reply) in enumerate(replies):
        made, score, answers = item(str(n), kind), None, Answers({})
        try:
            value = benchmark.parse(question(), Answer(question(), reply))
            answers = Answers({"grades": Answer(question(), reply, value=value)})
            score = benchmark.score(made, answers).of_item(made.id)
        except Unparsed:
            pass
        status = "judged" if score else "unparsed"
        found.append(ScoredItem(made, made.path, answers, {"grades": reply}, score, status=status))
    return Scores(found)


GRADES = [
    ("add", "a: 5\nb: 4\nc: 4"),
    ("add", "a: 1\nb: 1\nc: 1"),
    ("add", "a: 3\nb: 4/5\nc: 2"),
    ("style", "a: 5\nb: 5\nc: 5"),
    ("style", "a: 5\nb: 5\nc: 4"),
    ("style", "no grade"),
]


def test_types_are_rounded_and_so_is_their_mean() -> None:
    metrics = ImgEdit().metrics(scored(ImgEdit(), GRADES))
    assert {name: metrics[name].value for name in ("add", "style", "overall")} == {
        "add": 2.61,
        "style": 4.83,
        "overall": 3.72,
    }
    assert metrics["overall_official"].value is None  # of so few edits
    assert metrics["overall_unrounded"].value == pytest.approx((7.83 / 3 + 9.67 / 2) / 2)
    assert metrics["style"].n == 2


def test_the_official_files_are_those_that_the_official_program_makes() -> None:
    import json

    files = ImgEdit().official_files(scored(ImgEdit(), GRADES))
    program = official_program()
    replies = json.loads(files["imgedit_bench.json"])
    meta = {str(n): {"edit_type": kind} for n, (kind, _) in enumerate(GRADES)}
    theirs = program["compute_edit_type_averages"](program["compute_averages"](replies), meta)
    assert json.loads(files["result.json"]) == theirs


def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official files, and a stand-in for the one image that the mirror lacks."""
    mirror = shared_mirror()
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    for asset in ImgEdit.files().local:
        target = tmp_path / "imgedit/data" / asset.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (mirror / asset.source).exists():
            target.symlink_to(mirror / asset.source)
        else:
            Image.new("RGB", (64, 64), "grey").save(target)


def test_a_judge_sees_the_instruction_the_source_and_the_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data(tmp_path, monkeypatch)
    benchmark = ImgEdit()
    made = items(benchmark)
    assert len(made) == 737
    [first] = [one for one in made if one.data["key"] == "1082"]
    [asked] = benchmark.questions(first, Picture(first.path, "ab" * 32), Answers({}))
    [message] = asked.messages
    text, source, edit = message.parts
    assert isinstance(text, str) and "Change the tortoise's shell texture to a smooth surface." in text
    assert isinstance(source, Picture) and source.path.name == "000342021.jpg"
    assert isinstance(edit, Picture) and edit.path == first.path
    assert {source.media_type, edit.media_type} == {"image/png"}
    assert (asked.sampling.max_tokens, asked.sampling.temperature) == (None, None)
    original = items(ImgEdit(ImgEditSettings(edition="original")))
    differ = {
        a.data["key"] for a, b in zip(made, original, strict=True) if a.data["prompt"] != b.data["prompt"]
    }
    assert len(differ) == 57
    # the names of the grades are in every official prompt
    from benchmarks.imgedit.benchmark import _NAMED

    assert all(len(_NAMED.findall(text)) == 3 for text in benchmark.prompts.values())
