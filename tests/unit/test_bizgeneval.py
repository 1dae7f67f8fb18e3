"""BizGenEval: sizes, the question, verdicts in replies, scores and tables."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bizgeneval.benchmark import BizGenEval, BizGenEvalSettings, size_of
from imageevalkit import assets
from imageevalkit.assets import BenchmarkFiles, FileAsset
from imageevalkit.benchmark.contract import Answers, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.function_judge import items
from tests.support.mirror import shared_mirror

BENCHMARKS = {rules: BizGenEval(BizGenEvalSettings(rules=rules)) for rules in ("official", "corrected")}
RIGHT = {str(n): {"result": True} for n in range(1, 21)}


def item(number: int = 0, domain: str = "slides", dimension: str = "layout") -> Item:
    data = {
        "name": f"{domain}_{dimension}_{number}",
        "domain": domain,
        "dimension": dimension,
        "eval_tag": "layout",
        "prompt": "a page",
        "questions": [f"There is thing {n}." for n in range(1, 21)],
        "easy_qidxs": list(range(1, 11)),
        "hard_qidxs": list(range(11, 21)),
    }
    path = Cell("m", "bizgeneval").folder / f"images/{data['name']}.png"
    return Item(f"images/{data['name']}", path, 42, "a page", None, data)


def verdicts(reply: str, rules: str = "official") -> list[bool] | None:
    question = ask("statements", "?")
    try:
        return BENCHMARKS[rules].parse(question, Answer(question, reply))
    except Unparsed:
        return None


def wrong(reply: Any, rules: str = "official") -> list[int] | None:
    found = verdicts(reply if isinstance(reply, str) else json.dumps(reply), rules)
    return None if found is None else [n for n, one in enumerate(found, 1) if not one]


@pytest.mark.parametrize(
    ("document", "ratio", "stride", "most", "size"),
    [
        ("2400x1800", "4:3", 32, 2048 * 2048, (2368, 1760)),
        ("3200x2400", "4:3", 16, 2048 * 2048, (2352, 1776)),
        ("1600x1200", "4:3", 32, 2048 * 2048, (1600, 1216)),
        ("1440x1930", "3:4", 16, 2048 * 2048, (1440, 1936)),
        ("2022x1040", "16:9", 32, 2048 * 2048, (2016, 1024)),
        (None, "16:9", 32, 2048 * 2048, (2720, 1536)),
        (None, "2:3", 32, 2048 * 2048, (1664, 2496)),
        ("", "", 32, 2048 * 2048, (2048, 2048)),
        ("", "", 16, 1024 * 1024, (1024, 1024)),
    ],
)
def test_the_size_that_a_prompt_asks_for(
    document: str | None, ratio: str, stride: int, most: int, size: tuple[int, int]
) -> None:
    row = {"reference_image_wh": document, "aspect_ratio": ratio}
    assert size_of(row, BizGenEvalSettings(max_pixels=most, stride=stride)) == size


def test_all_prompts_and_the_models_own_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    [data] = (one for one in BizGenEval.assets if isinstance(one, FileAsset))
    file = assets.data_folder("bizgeneval") / data.path
    file.parent.mkdir(parents=True)
    file.symlink_to(shared_mirror() / data.source)
    made = items(BizGenEval())
    assert len(made) == 400 and len({(one.data["domain"], one.data["dimension"]) for one in made[:20]}) == 20
    assert sum(one.size == (2048, 2048) for one in made) >= 120
    own = items(BizGenEval(BizGenEvalSettings(max_pixels=0)))
    assert {one.size for one in own} == {None} and own[0].prompt_sha256 != made[0].prompt_sha256


@pytest.mark.parametrize(("judge", "extra"), [("", {"reasoning_effort": "minimal"}), ("openai:gpt-4.1", {})])
def test_the_question(judge: str, extra: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"LAYOUT_PROMPT_SYSTEM_V1": "Judge.", "LAYOUT_USER_TEMPLATE": "Check:\n{checklist}"}
    keyed = {f"evaluation/evaluate_prompt.py::{name}": text for name, text in texts.items()}
    monkeypatch.setattr(BenchmarkFiles, "prompts", lambda files: keyed)
    shown = Picture(Path("1.png"), "0" * 64)
    [asked] = BizGenEval(None, judge).questions(item(), shown, Answers({}))
    system, user = asked.messages
    text, picture = user.parts
    assert system.parts == ("Judge.",) and picture == shown
    assert isinstance(text, str)
    assert text.startswith("Check:\n1. There is thing 1.\n2. ") and text.endswith("\n20. There is thing 20.")
    assert (asked.sampling.temperature, asked.sampling.max_tokens, asked.sampling.extra) == (0.0, None, extra)


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [
        (RIGHT, [], []),
        (f"```json\n{json.dumps(RIGHT)}\n```", [], []),
        (f"Verdicts: {RIGHT}", [], []),  # a Python literal
        (RIGHT | {"3": {"result": "no"}, "4": {"result": "1"}}, [3], [3]),
        (RIGHT | {"2": {"result": 1}}, [2], []),
        (RIGHT | {"20": "true"}, [20], None),
        ({key: one for key, one in RIGHT.items() if key != "20"}, [20], None),
        (RIGHT | {"5": {"result": "maybe"}}, [5], None),
        ('{"7": ' + ", ".join('{"result": true, "reason": "a "b""}' for _ in range(20)), [], None),
        ([RIGHT], None, None),  # the official program stops at a list
        ("[1, 2]", None, None),
        ("{}", None, None),
        ("I cannot.", None, None),
    ],
)
def test_the_verdicts_in_a_reply(reply: Any, official: list[int] | None, corrected: list[int] | None) -> None:
    assert (wrong(reply), wrong(reply, "corrected")) == (official, corrected)


def scored(*errors: tuple[Item, set[int] | None]) -> Scores:
    """Scores of images, each with the numbers of its wrong statements; None: the reply has no verdicts."""
    found = list[ScoredItem]()
    for one, missed in errors:
        reply, answers, score = "I cannot.", Answers({}), None
        if missed is not None:
            right = [n not in missed for n in range(1, 21)]
            reply = json.dumps({str(n): {"result": verdict} for n, verdict in enumerate(right, 1)})
            asked: Question = ask("statements", "?")
            answers = Answers({"statements": Answer(asked, reply, value=right)})
            score = replace(BENCHMARKS["official"].score(one, answers), item=one.id)
        found.append(ScoredItem(one, one.path, answers, {"statements": reply}, score))
    return Scores(found)


@pytest.mark.parametrize(
    ("missed", "hard", "easy", "whole", "accuracy"),
    [
        ({1, 11, 12, 13}, 0.4, 0.8, 0.6, 0.8),
        ({1, 2, 3, 11, 12, 13, 14, 15, 16}, 0.0, 0.4, 0.1, 0.55),
        (set(range(1, 21)), 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_errors_cost_more_than_their_share(
    missed: set[int], hard: float, easy: float, whole: float, accuracy: float
) -> None:
    [score] = scored((item(), missed))
    expected = {"hard": hard, "easy": easy, "all": whole, "accuracy": accuracy}
    assert score.values == pytest.approx(expected)


def test_each_domain_weighs_the_same_and_a_reply_without_verdicts_is_20_errors_officially() -> None:
    four, nine = {1, 2, 3, 4}, set(range(1, 10))
    scores = scored(
        *((item(n), four) for n in range(3)),
        (item(3, "poster", "text"), nine),
        (item(4, "poster", "text"), None),
    )
    metrics = BENCHMARKS["official"].metrics(scores)
    assert metrics["all"].value == pytest.approx(35.0) and metrics["all"].n == 4
    assert metrics["hard"].value == 100 and metrics["hard_official"].value == pytest.approx(75.0)
    assert metrics["all/layout"].value == pytest.approx(60.0) and metrics[
        "all/dimensions"
    ].value == pytest.approx(35)
    assert "hard_official" not in BENCHMARKS["corrected"].metrics(scores)
    files = BENCHMARKS["official"].official_files(scores)
    rows = list(csv.reader(io.StringIO(files["summary_by_domain.csv"])))
    assert rows[0] == ["Split", "Slides", "Webpage", "Poster", "Chart", "Scientific Figure", "Average"]
    assert rows[3] == ["all", "0.6000", "", "0.1000", "", "", "0.3500"]
    assert json.loads(files["slides_layout_0.json"])["accuracy"] == 0.8 and "poster_text_4.json" not in files
