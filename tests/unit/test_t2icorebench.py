"""T2I-CoReBench: how replies are read, what the judge sees, the averages, and the official program's files."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.t2icorebench.benchmark import DIMENSIONS, CoReBench, CoReBenchSettings
from imageevalkit.benchmark.contract import Answers, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.common.errors import CellFailure
from imageevalkit.store.results import Score
from tests.support.corebench_data import TEMPLATE, use_data
from tests.support.function_judge import evaluate, items, scores_of, use_function_judge, write_images
from tests.support.official_programs import request_to

INSTRUCT, THINKING = (f"vllm:Qwen/Qwen3-VL-30B-A3B-{kind}" for kind in ("Instruct", "Thinking"))
CORRECTED, NEW = CoReBenchSettings(rules="corrected"), CoReBenchSettings(edition=2026)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_data(tmp_path, monkeypatch)


def read(reply: str, judge: str = "", settings: CoReBenchSettings | None = None, attempt: int = 0) -> Any:
    question = ask("question/0", "?", data=attempt)
    try:
        return CoReBench(settings, judge).parse(question, Answer(question, reply))
    except Unparsed:
        return None


@pytest.mark.parametrize(
    ("reply", "gemini", "qwen", "by_corrected_rules"),
    [
        *((one, 1, 1, 1) for one in ("yes", '"yes"', "yes.", "**yes**", " yes\n")),
        *((one, 1, 1, None) for one in ("no, yes", "yes and no", "It shows no dog, so yes.")),
        *((one, 0, 0, 0) for one in ("no", "**no**")),
        ("No.", 0, "", 0),
        ("Yes", 1, "", 1),
        ("yes_no", "", "", None),
        ("_yes_", "", "", 1),
        *((one, "", "", None) for one in ("not visible", "none", "1", "cannot tell")),
        ("I see no cat.</think>\n\nyes", 1, 1, 1),
        ("I think yes.</think>\n\nno", 1, 0, 0),
        ("I think yes.</think>no", 1, 1, 0),
        ("", None, "", None),
    ],
)
def test_yes_no_and_what_does_not_count(reply: str, gemini: Any, qwen: Any, by_corrected_rules: Any) -> None:
    found = (read(reply), read(reply, INSTRUCT), read(reply, settings=CORRECTED))
    assert found == (gemini, qwen, by_corrected_rules)
    assert read(reply, INSTRUCT, CORRECTED) == by_corrected_rules


def test_thoughts_that_are_cut_off() -> None:
    cut = "The prompt asks for a cat; yes, there is"
    assert (read(cut, THINKING), read(cut, THINKING, NEW), read(cut, THINKING, CORRECTED)) == (1, None, None)
    assert [read(cut, THINKING, NEW, attempt) for attempt in (1, 2)] == [None, ""]
    assert read(cut, "vllm:Qwen/Qwen3.5-9B", NEW) is None
    assert read(cut, INSTRUCT, NEW) == 1
    assert [read("", attempt=attempt) for attempt in range(3)] == [None, None, ""]


def test_every_prompt_has_four_images_and_its_own_questions(data: None) -> None:
    old, new = ([*CoReBench(settings).samples()] for settings in (None, NEW))
    counts = Counter((one.data["dimension"], one.seed) for one in old)
    assert counts == {(dimension, seed): 90 for dimension in DIMENSIONS for seed in range(4)}
    assert [one.file for one in old[11:13]] == ["images/R-RR/R-RR-001-0.png", "images/C-MI/C-MI-001-1.png"]
    asked, asked_now = (
        {(one.data["prompt_id"], two["question"]) for one in some for two in one.data["record"]["Checklist"]}
        for some in (old, new)
    )
    assert len(asked) == 13_536
    assert {name for name, _ in asked ^ asked_now} == {"R-HR-001"}
    assert len({one.prompt for one in old} & {one.prompt for one in new}) == 1079


def test_the_judge_sees_the_image_first(data: None) -> None:
    [item] = items(CoReBench(), 1)
    write_images([item])

    def asked(settings: CoReBenchSettings | None, judge: str, attempt: int = 0) -> list[Question]:
        attempts = {f"question/{number}": attempt for number in range(60)}
        return [
            *CoReBench(settings, judge).questions(item, Picture(item.path, "ab" * 32), Answers({}, attempts))
        ]

    assert len(asked(None, "")) == len(item.data["record"]["Checklist"])
    request = request_to("gemini-2.5-flash", asked(None, "")[0])
    assert (request.keys(), request["temperature"]) == ({"model", "messages", "temperature"}, 0.0)
    [message] = request["messages"]
    words = f'Prompt: "{item.prompt}"\nQuestion: "Is there a cutting board in the image?"'
    assert [one.get("text") for one in message["content"]] == [None, f"{TEMPLATE}\n{words}"]
    local = request_to("qwen", asked(None, INSTRUCT)[0])
    assert [one["role"] for one in local["messages"]] == ["system", "user"]
    assert local["messages"][0]["content"] == TEMPLATE
    assert [one.get("text") for one in local["messages"][1]["content"]] == [None, words]
    sampling = {key: local[key] for key in ("temperature", "repetition_penalty", "max_tokens")}
    assert sampling == {"temperature": 0.0, "repetition_penalty": 1.05, "max_tokens": 8192}
    rounds = [asked(NEW, THINKING, attempt)[0].sampling.max_tokens for attempt in range(3)]
    assert rounds == [512, 2048, 8192]


@pytest.mark.parametrize(
    ("replies", "judge", "values", "calls"),
    [  # by official and then by corrected rules: the value, and the calls with the first question
        (["yes", "no", '"yes"', "cannot tell"], "", (2 / 3, None), (1, 0)),
        (["Yes", "no", "yes", "No"], INSTRUCT, (0.5, 0.5), (1, 0)),
        (["Yes", "no", "Yes", "no"], INSTRUCT, (0.0, 0.5), (1, 0)),
        (["cannot tell", "none"], "", (None, None), (1, 2)),
        (["", "yes"], "", (1.0, None), (3, 0)),
        (["", "yes"], INSTRUCT, (1.0, None), (1, 2)),
    ],
)
def test_the_score_of_an_image(
    data: None, monkeypatch: pytest.MonkeyPatch, replies: list[str], judge: str, values: Any, calls: Any
) -> None:
    [item] = items(CoReBench(), 1)
    write_images([item])
    record = item.data["record"]
    record = {**record, "Checklist": record["Checklist"][: len(replies)]}
    short = replace(item, data={**item.data, "record": record})
    for settings, expected, count in zip((None, CORRECTED), values, calls, strict=True):
        asked = use_function_judge(lambda one: replies[int(one.name.partition("/")[2])], monkeypatch)
        try:
            _, result = evaluate(CoReBench(settings, judge), [short])
            value = result.metrics["C-MI"].value
        except (CellFailure, KeyError):
            value = None
        assert value == (None if expected is None else pytest.approx(100 * expected))
        assert [one.name for one in asked].count("question/0") == count


def metrics(*found: tuple[str, list[int], float]) -> dict[str, float | None]:
    """The metrics of images, each with its dimension, answers and score."""
    scores = Scores([])
    for number, (dimension, answers, value) in enumerate(found):
        marks = [Score({"yes": one}, {"tags": ["content", "layout"][: 1 + one]}) for one in answers]
        keys = {"dimension": dimension, "prompt_id": str(number)}
        scores.append(Score({"score": value} if answers else {}, keys, points=marks))
    return {name: metric.value for name, metric in CoReBench().metrics(scores).items()}


def test_worked_examples_of_averages() -> None:
    three = metrics(("C-MI", [1, 1, 0], 0.6667), ("C-MI", [1, 0], 0.5), ("C-MI", [], 0))
    assert three["C-MI"] == pytest.approx(58.335)
    assert (three["overall"], three["tag/content"], three["tag/layout"]) == (None, 60.0, 100.0)
    rows = (  # composition, reasoning and overall of an example, and of Qwen-Image as published
        ([50] * 4 + [20] * 8, (50.0, 20.0, 30.0)),
        ([81.4, 79.6, 65.6, 85.5, 41.1, 32.2, 48.2, 75.1, 56.5, 53.3, 61.9, 26.4], (78.0, 49.3, 58.9)),
    )
    for values, expected in rows:
        whole = metrics(*((name, [1], value / 100) for name, value in zip(DIMENSIONS, values, strict=True)))
        found = [whole[one] for one in ("composition", "reasoning", "overall")]
        assert found == [pytest.approx(one, abs=0.05) for one in expected]
    two = metrics(("C-MA", [1] * 10, 1.0), ("C-MA", [0] * 40, 0.0))
    assert (two["C-MA"], two["questions/C-MA"], two["questions"]) == (50.0, 20.0, 20.0)


def test_official_files_and_the_note(data: None) -> None:
    made = items(CoReBench(), 13)
    scores = scores_of(CoReBench(), made, lambda one: "maybe" if one.name == "question/1" else "Yes.")
    assert CoReBench().notes(scores)[0].startswith("13 of ")
    files = CoReBench().official_files(scores)
    content = json.loads(files["m/C-MI-Gemini_2_5_Flash.json"])
    first = content["C-MI-001-0"]
    assert (len(files), [*content]) == (12, ["C-MI-001-0", "C-MI-001-1", "mean_score"])
    assert [*first] == [*made[0].data["record"], "image_score"]
    assert [one["score"] for one in first["Checklist"][:3]] == [1, "", 1]
    assert (first["image_score"], content["mean_score"]) == (1.0, 1.0)
    assert "m/R-LR-Qwen3_VL_30B_A3B_Instruct.json" in CoReBench(judge=INSTRUCT).official_files(scores)
