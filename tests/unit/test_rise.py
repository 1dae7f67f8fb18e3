"""RISEBench: how replies are read, what the judge sees, the scores of an edit, and the table of a run."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from PIL import Image

from benchmarks.rise.benchmark import GRADES, Rise, RiseSettings, numbers_in
from imageevalkit import assets
from imageevalkit.benchmark.contract import Answers, Rules, ScoredItem, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, ask
from imageevalkit.common.images import sha256_file
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support import rise_data
from tests.support.function_judge import items
from tests.support.official_programs import request_to, run_program

RISE = ("PhoenixZ810/RISEBench", "5f226519b25c005bb32fb83864bbd1845ab85c23")
BENCHMARKS = {rules: Rise(RiseSettings(rules=rules)) for rules in get_args(Rules)}
FAILED = "Failed to obtain answer via API. "


def read(reply: str, rules: Any = "official", is_logical: bool = False) -> list[int] | None:
    question = ask("reasoning", "?", data=is_logical)
    try:
        return BENCHMARKS[rules].parse(question, Answer(question, reply))
    except Unparsed:
        return None


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [
        ("**Final Score:** **4**", [4], 4),
        ("**Final Score:** **X**\nwhere it is …\n**Final Score:** **4**", [4], 4),
        ("Final Scores: 4", [4], 4),
        ("Final Score: 4/5", [4], 4),
        ("Final Score: 2, 3", [2, 3], 2),
        ("### Final Score\n\n**3**", [3], 3),
        ("Final Score: 1\nand then\nFinal Score: 5", [1], 1),
        ("Final Score: 4\n1. because", [4, 1], 4),
        ("FINAL SCORE: 10", [10], None),
        ("Final Score: 4.5", [4], None),
        ("Score: 4", [], 4),
        ("Score 1: bad. Score 5: good.", [], None),
        *((f"**Final Score{one} 4", [], 4) for one in (" (1-5):**", " is", " =")),
        (FAILED, [], None),
        ("", [], None),
    ],
)
def test_the_grade_of_a_reply(reply: str, official: list[int], corrected: int | None) -> None:
    assert numbers_in(reply) == official
    assert read(reply) == (official if len(official) == 1 else None)
    assert read(reply, is_logical=True) == (official or None)
    assert read(reply, "corrected") == (corrected and [corrected])
    assert read(reply, "corrected", is_logical=True) == ([1] if corrected == 1 else None)


def test_replies_are_read_as_the_official_program_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = run_program(*RISE, "gpt_eval.py", monkeypatch)["extract"]
    draw, seen = random.Random(4), 0
    pieces = [
        "Final Score",
        "final scores",
        "**",
        ":",
        " ",
        "\n",
        "4",
        "10",
        ",",
        "X",
        "Final ",
        "Score",
        "/5",
    ]
    for _ in range(3_000):
        reply = "".join(draw.choice(pieces) for _ in range(draw.randint(0, 9)))
        assert numbers_in(reply) == (theirs(reply) or []), repr(reply)
        seen += bool(numbers_in(reply))
    assert seen > 300


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Item]:
    """The items of the stand-in, by index."""
    rise_data.write(tmp_path / "rise")
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    monkeypatch.setattr(Rise, "prompts", rise_data.texts())
    return {item.data["index"]: item for item in items(Rise())}


@pytest.mark.parametrize(
    ("index", "official", "corrected"),
    [  # for each question its text and the image before the result; corrected: if it differs
        ("temporal_reasoning_7", "consist source, reasoning, generation", ""),
        ("temporal_reasoning_9", "consist source, reasoning_w_input source, generation", ""),
        ("causal_reasoning_1", "reasoning, generation", ""),
        ("spatial_reasoning_1", "spatial_cons source, spatial_ref, spatial_qual", ""),
        ("spatial_reasoning_3", "spatial_cons source, spatial_ref_w_input source, spatial_qual", ""),
        ("spatial_reasoning_5", "spatial_cons answer, spatial_ref_img answer, spatial_qual", "cons source"),
        ("logical_reasoning_4", "logical_cons_ans source, logical_txt", ""),
        ("logical_reasoning_1", "logical_cons answer, logical_img_wo_q answer", "cons source"),
        ("logical_reasoning_3", "logical_cons answer, logical_img_wo_q answer", "cons source, img"),
    ],
)
def test_questions_about_an_edit(made: dict[str, Item], index: str, official: str, corrected: str) -> None:
    item, result = made[index], Picture(Path("result.png"), "ab" * 32)
    fields = {
        "instruct": item.data["prompt"],
        "reference": item.data["reference"] or item.data["reference_txt"],
    }
    names = {text.format(**fields): key.partition("prompt_")[2] for key, text in rise_data.texts().items()}
    other = official.replace("cons answer", "cons source") if corrected else official
    other = other.replace("img_wo_q", "img") if "img" in corrected else other
    for benchmark, expected in zip(BENCHMARKS.values(), (official, other), strict=True):
        found = []
        for one in benchmark.questions(item, result, Answers({})):
            *others, last = (picture.path.stem for picture in one.pictures)
            images = ["answer" if name.endswith("_ref") else "source" for name in others]
            found.append(" ".join([names[one.text], *images]))
            assert last == "result"
        assert ", ".join(found) == expected


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_the_judge_is_sent_what_the_official_program_sends(
    made: dict[str, Item], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    prepare = run_program(*RISE, "utils.py", monkeypatch)["prepare_inputs"]
    path, item = tmp_path / "result.png", made["temporal_reasoning_9"]
    Image.effect_noise((1600, 900), 90).convert(mode).save(path)
    picture = Picture(path, sha256_file(path), pixels=Rise().pixels, plain=False)
    for asked in Rise().questions(item, picture, Answers({})):
        images = [{"type": "image", "value": str(one.path)} for one in asked.pictures]
        messages = prepare([{"type": "text", "value": asked.text}, *images], image_size=768)
        request = {"model": "gpt-4.1-2025-04-14", "messages": messages, "max_tokens": 4096, "temperature": 0}
        assert request_to("gpt-4.1-2025-04-14", asked) == request


EDITS: list[Any] = [
    # category, numbers of the replies; official and intended score, accuracy
    *(("temporal", "455", 5.0, 4.7, 0), ("free", "55", 5.0, 5.0, 1), ("temporal", "555", 5.0, 5.0, 1)),
    *(("causal", "515", 1, 1.5, 0), ("spatial", "534", 3.2, 3.8, 0), ("spatial", "5x4", None, None, 0)),
    *(("logical", "11", 5.0, 5.0, 1), ("logical", "01", 3.8, 3.8, 0), ("logical", "10", 1.1, 1.1, 0)),
]
STOPS = [("logical", ["1, 0", "1, 0"], 5.0, 5.0, 1), ("causal", ["4", "4, 1", "5"], None, None, 0)]
OTHERS = [("causal", "134", 3.2, 2.6, 0), ("logical", "00", 1, 1, 0), ("logical", ["1", "0, 1"], 0.3, 0.3, 0)]


def scored(benchmark: Rise, edits: Sequence[Any]) -> Scores:
    """Returns such edits with such replies; "free" is a temporal edit without a question about consistency."""
    found = []
    for n, (kind, replies, *_) in enumerate(edits):
        category, free = ("temporal", True) if kind == "free" else (kind, None)
        data = {"category": category, "index": f"{kind}_{n}", "consistency_free": free}
        data |= {"subtask": "Puzzle Solving" if kind == "logical" else None, "some_consistency_free": True}
        item = Item(str(n), Cell("m", "rise").folder / f"{n}.png", 42, None, None, data)
        texts = dict(zip(GRADES[bool(free) :], (f"Final Score: {one}" for one in replies), strict=False))
        asked = {name: Answer(ask(name, "?", data=kind == "logical"), text) for name, text in texts.items()}
        score, answers = None, Answers({})
        with suppress(Unparsed):
            values = {name: benchmark.parse(one.question, one) for name, one in asked.items()}
            answers = Answers({name: replace(one, value=values[name]) for name, one in asked.items()})
            score = benchmark.score(item, answers).of_item(item.id)
        status = "judged" if score else "unparsed"
        found.append(ScoredItem(item, item.path, answers, texts, score, status=status))
    return Scores(found)


def test_the_score_of_an_edit() -> None:
    scores = scored(Rise(), [*EDITS, *STOPS, *OTHERS])
    for one, (kind, _, *expected) in zip(scores.items, [*EDITS, *STOPS, *OTHERS], strict=True):
        values = one.score.values if one.score else {"accuracy": 0}
        found = [values.get(name) for name in ("score_official", "score_intended", "accuracy")]
        assert found == pytest.approx(expected)
        if one.score:
            of_subset = replace(one.item, data={**one.item.data, "some_consistency_free": False})
            other = Rise(RiseSettings(completion=2025)).score(of_subset, one.answers).values
            assert other["score_official"] == values["score_intended"], "no edit of it has the mark"
            assert other["accuracy"] == (0 if kind == "free" else values["accuracy"])


def test_the_table_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = Rise()
    monkeypatch.setattr(benchmark, "prompt_count", len(EDITS))
    scores = scored(benchmark, EDITS)
    files, metrics = benchmark.official_files(scores), benchmark.metrics(scores)
    _, *table = (line.split(",") for line in str(files["m_judge.csv"]).splitlines())
    numbers = {name: [float(one) if one else None for one in row] for name, *row in table}
    assert len(numbers) == 1 + 4 + 3 + 11 + 1
    for name, row in {
        "Overall": [3.6375, 65.9375, 1 / 3],
        "Temporal": [5, 100, 2 / 3],
        "Spatial": [3.2, 55, 0],
        "Logical": [3.3, 57.5, 1 / 3],
        "Overall_ApprConsistency": [30 / 7, 25 * 23 / 7, None],
        "Logic-Puzzle Solving": [3.3, 57.5, 1 / 3],
    }.items():
        assert numbers[name] == pytest.approx(row)
    assert metrics["accuracy"].value == 3 / 8, "the edit without a score is missing"
    replies = pickle.loads(files["m.pkl"])  # type: ignore[arg-type]
    assert replies["free_1"]["judge1"] is None and len(replies["logical_6"]) == 2
    for one in STOPS:
        stopped = benchmark.metrics(scored(benchmark, [*EDITS[1:], one]))
        assert stopped["accuracy_official"].value is None
    assert "accuracy_official" not in BENCHMARKS["corrected"].metrics(scores)
