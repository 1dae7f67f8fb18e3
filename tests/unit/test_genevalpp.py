"""GenEval++: the list of demands, verdicts in replies, and the official shares."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.genevalpp.benchmark import TAGS, GenEvalPlusPlus, checklist
from imageevalkit.assets import BenchmarkFiles
from imageevalkit.benchmark.contract import Answers, Rules, ScoredItem, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item

BENCHMARKS = {rules: GenEvalPlusPlus(Settings(rules=rules)) for rules in get_args(Rules)}
CLOCKS = {"class": "clock", "count": 3, "region": "left"}


def item(number: int = 1, tag: str = "counting", **more: Any) -> Item:
    data = {"number": number, "tag": tag, "prompt": " A photo of two cats\n", **more}
    path = Cell("m", "genevalpp").folder / f"images/{number}.png"
    return Item(f"images/{number}", path, 42, data["prompt"], None, data)


def verdict(reply: str, rules: Any) -> int | None:
    question = ask("verdict", "?")
    try:
        return BENCHMARKS[rules].parse(question, Answer(question, reply))
    except Unparsed:
        return None


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"include": [CLOCKS]}, "3 clocks located in the left part of the image."),
        (
            {"include": [{"class": "cat", "count": 1, "region": "right"}]},
            "1 cat located in the right part of the image.",
        ),
        (
            {"include": [{"class": "bench", "count": 1, "size": "larger", "region": "above"}]},
            "larger 1 bench located in the above part of the image.",
        ),
        (
            {"include": [{"class": "boat", "count": 3, "color": "white"}]},
            "white-colored 3 boats present in the image.",
        ),
        ({"exclude": [{"class": "clock", "count": 7}]}, "No more than 6 clocks should appear."),
    ],
)
def test_the_judge_gets_a_line_for_each_demand(row: dict[str, Any], line: str) -> None:
    assert checklist(row) == f"This image should contain:\n- {line}"


@pytest.mark.parametrize("rules", get_args(Rules))
def test_the_question(rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = GenEvalPlusPlus(Settings(rules=rules))
    key = "test_scripts/Eval-gpt-4.1-geneval++.py::SYSTEM_PROMPT"
    monkeypatch.setattr(BenchmarkFiles, "prompts", lambda files: {key: "Judge it."})
    shown = Picture(Path("1.png"), "0" * 64)
    [asked] = benchmark.questions(item(include=[CLOCKS]), shown, Answers({}))
    system, user = asked.messages
    assert system.parts == ("Judge it.",)
    text, picture = user.parts
    assert text == (
        "Instruction:\nA photo of two cats\n\nExpectation checklist:\nThis image should contain:\n"
        "- 3 clocks located in the left part of the image."
    )
    assert isinstance(picture, Picture) and picture.encoding and asked.sampling.temperature == 0
    is_official = rules == "official"
    assert picture.encoding.format == ("JPEG" if is_official else "PNG")
    assert asked.sampling.max_tokens == (200 if is_official else 1000)
    assert benchmark.judge == ("openai:gpt-4.1" if is_official else "openai:gpt-4.1-2025-04-14")


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [
        ('{"correct": 1, "reason": "yes"}', 1, 1),
        ('```json\n{"correct": 0}\n```', 0, 0),
        ('It is {"correct": true}.', 1, 1),
        ('{"correct": 1.0}', 1, 1),
        ('{"correct": "1"}', 0, 1),
        ('{"correct": "True"}', 0, 1),
        ('{"correct": 2}', 0, None),
        ('{"correct": null}', 0, None),
        ('{"reason": "no verdict"}', 0, None),
        ('{"correct": 1, "reason": "it is cut', None, None),
        ('{"correct": 1} and {"correct": 0}', None, None),
        ("Yes.", None, None),
        ("", None, None),
    ],
)
def test_the_verdict_in_a_reply(reply: str, official: int | None, corrected: int | None) -> None:
    assert (verdict(reply, "official"), verdict(reply, "corrected")) == (official, corrected)


def scored(counts: dict[str, tuple[int, int, int]], rules: Any) -> Scores:
    """Scores of tags, each with a number of right images, wrong ones and ones without a verdict."""
    found: list[ScoredItem] = []
    for tag, (right, wrong, none) in counts.items():
        for said in [1] * right + [0] * wrong + [None] * none:
            one, question = item(len(found) + 1, tag), Question("verdict", (), ask("verdict", "").sampling)
            reply = json.dumps({"correct": said}) if said is not None else "no"
            answers = Answers({"verdict": Answer(question, reply, value=said)} if said is not None else {})
            score = replace(BENCHMARKS[rules].score(one, answers), item=one.id) if said is not None else None
            found.append(
                ScoredItem(
                    one, one.path, answers, {"verdict": reply}, score, reason="" if score else "unparsed"
                )
            )
    return Scores(found)


def test_an_image_without_a_verdict_is_wrong_by_official_rules_only() -> None:
    official = BENCHMARKS["official"].metrics(scored({"counting": (34, 5, 1)}, "official"))
    assert official["overall_official"].value == 0.85
    corrected = BENCHMARKS["corrected"].metrics(scored({"counting": (34, 5, 1)}, "corrected"))
    assert corrected["overall"].value == pytest.approx(0.8718, abs=5e-5) and corrected["overall"].n == 39
    assert "overall_official" not in corrected


def test_the_shares_are_those_that_the_authors_print() -> None:
    right = (34, 25, 25, 30, 34, 31, 26)
    scores = scored({tag: (n, 40 - n, 0) for tag, n in zip(TAGS, right, strict=True)}, "official")
    metrics = BENCHMARKS["official"].metrics(scores)
    assert metrics["overall"].value == pytest.approx(0.732143, abs=5e-7)
    assert metrics["overall_official"].value == 0.7321
    assert metrics["accuracy"].value == pytest.approx(205 / 280)
    file = json.loads(BENCHMARKS["official"].official_files(scores)["Output.json"])
    assert [*file["tag_accuracy"].values()] == [0.85, 0.625, 0.625, 0.75, 0.85, 0.775, 0.65]
    assert file["overall_accuracy_all_samples"] == 0.7321
    assert file["overall_results"][0] == {
        "id": 1,
        "tag": "color_attr",
        "prompt": "A photo of two cats",
        "result": {"correct": 1},
    }


def test_shares_of_tags_are_rounded_before_their_mean() -> None:
    metrics = BENCHMARKS["official"].metrics(
        scored({"counting": (1, 2, 0), "color_attr": (2, 1, 0)}, "official")
    )
    assert metrics["overall_official"].value == 0.5
