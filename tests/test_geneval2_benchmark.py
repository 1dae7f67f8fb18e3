"""GenEval 2 through the evaluate engine: what is asked, what a reply is worth, what a cell leaves."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.geneval2.analysis import geometric_mean
from benchmarks.geneval2.benchmark import GenEval2Benchmark, check_judge
from custom_datasets.dataset_cls.t2i.geneval2 import GenEval2
from imageevalkit.benchmark.contract import Unparsed
from imageevalkit.benchmark.question import TRANSFORMERS, Picture, Question, Reply, Sampling
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.jobs import COMPLETE, INCOMPLETE
from tests.support.geneval2 import (
    CELL,
    TEMPLATES,
    Prompt,
    SmallDataset,
    evaluate,
    items,
    judged_by,
    soft_reply,
    use_benchmarks,
    use_real_data,
    write_images,
)

P1 = Prompt(
    "seven green croissants",
    3,
    [
        ("How many croissants are there?", "seven", "count"),
        ("Are they green?", "Yes", "attribute"),
        ("Are there any croissants?", "Yes", "object"),
    ],
)
P2 = Prompt(
    "two dogs chasing a cat",
    4,
    [
        ("How many dogs are there?", "two", "count"),
        ("Are there any dogs?", "Yes", "object"),
        ("Are they on the left?", "Yes", "position"),
        ("Do they chase?", "Yes", "verb"),
    ],
)
SOFT = {
    "images/000": {"vqa/0": 0.25, "vqa/1": 1.0, "vqa/2": 1.0, "vqascore": 0.6},
    "images/001": {"vqa/0": 0.9, "vqa/1": 0.8, "vqa/2": 0.95, "vqa/3": 0.5, "vqascore": 0.2},
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallDataset:
    use_benchmarks(tmp_path, monkeypatch)
    return SmallDataset([P1, P2])


def as_in_the_spec(question: Question) -> Reply:
    return soft_reply(question, SOFT[question.item][question.name], question.wanted[0])


def questions_of(benchmark: GenEval2Benchmark, prompt: Prompt) -> list[Question]:
    [item] = items(SmallDataset([prompt]))
    return list(benchmark.questions(item, Picture(item.path, "ab" * 32)))


def test_every_atom_is_asked_once_and_the_prompt_once(
    small: SmallDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, _ = judged_by(as_in_the_spec, monkeypatch)
    asked = questions_of(benchmark, P1)
    assert [(q.name, q.text) for q in asked] == [
        ("vqa/0", "In a word: How many croissants are there?"),
        ("vqa/1", "In a word: Are they green?"),
        ("vqa/2", "In a word: Are there any croissants?"),
        ("vqascore", "Is this 'seven green croissants'?"),
    ]
    assert asked[0].wanted == ("seven", "Seven", " seven", " Seven", "7", " 7")
    assert {q.wanted for q in asked[1:]} == {("Yes", "yes", " yes", " Yes")}
    for question in asked:
        [message] = question.messages
        assert message.role == "user"
        assert [type(part) for part in message.parts] == [Picture, str]
        assert question.sampling == Sampling(max_tokens=1, temperature=0.0)
        [image, _] = message.parts
        assert isinstance(image, Picture)
        assert image == Picture(image.path, image.sha256, pixels=TRANSFORMERS)


def test_braces_in_a_prompt_change_nothing(small: SmallDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, _ = judged_by(as_in_the_spec, monkeypatch)
    assert questions_of(benchmark, P1._replace(text="{} {0}"))[-1].text == "Is this '{} {0}'?"


def test_one_reply_serves_tifa_and_soft_tifa(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CellFailure, match="differ"):
        judged_by(as_in_the_spec, monkeypatch, {**TEMPLATES, "evaluation.py::tifa": "Say: {}"})


COUNT = {"seven": 0.10, "Seven": 0.05, " seven": 0.0, " Seven": 0.0, "7": 0.60, " 7": 0.02}


@pytest.mark.parametrize(
    ("said", "correct"),
    [
        ("7", True),
        ("seven", True),
        ("SEVEN", True),
        (" Seven", True),
        (" 7", True),
        (" ", False),  # quirk 3: the bare space, though its probability counts
        ("", False),
        ("7 ", False),
        ("\tseven", False),
        ("8", False),
    ],
)
def test_a_reply_to_a_count_question(
    small: SmallDataset, monkeypatch: pytest.MonkeyPatch, said: str, correct: bool
) -> None:
    benchmark, _ = judged_by(as_in_the_spec, monkeypatch)
    parsed = benchmark.parse(questions_of(benchmark, P1)[0], Reply(said, COUNT, 0.01))
    assert parsed.pop("p") == pytest.approx(0.77, abs=1e-12)
    assert parsed.pop("p_corrected") == pytest.approx(0.75, abs=1e-12)
    assert parsed == {"argmax": said, "correct": correct, "outside": 0.01}


@pytest.mark.parametrize(
    "probabilities",
    [None, {}, {k: v for k, v in COUNT.items() if k != "7"}, {**COUNT, "7": math.nan}],
)
def test_a_reply_without_probabilities_is_no_score(
    small: SmallDataset, monkeypatch: pytest.MonkeyPatch, probabilities: dict[str, float] | None
) -> None:
    benchmark, _ = judged_by(as_in_the_spec, monkeypatch)
    with pytest.raises(Unparsed, match="gave no probabilit"):
        benchmark.parse(questions_of(benchmark, P1)[0], Reply("7", probabilities, 0.0))


def test_worked_example_through_the_engine(small: SmallDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, judge = judged_by(as_in_the_spec, monkeypatch)
    made = items(small)
    write_images(made)
    outcome, result = evaluate(benchmark, made)
    assert outcome.state == COMPLETE
    assert len(judge.asked) == 9
    assert result.headline == ["soft_tifa_gm"]
    assert result.metrics["soft_tifa_am"].value == pytest.approx(76.875)
    assert result.metrics["soft_tifa_gm"].value == pytest.approx(69.7343853, abs=5e-8)
    assert result.metrics["vqascore"].value == pytest.approx(40)
    assert result.metrics["tifa"].value == 100
    assert result.metrics["skill/count"].value == pytest.approx(57.5)
    assert (result.evaluator.id[:25], result.evaluator.official) == ("qwen3-vl-8b/transformers/", True)
    records = [json.loads(line) for line in CELL.scores.read_text().splitlines()]
    assert records[0]["values"] == pytest.approx(
        {"soft_tifa_gm": 62.99605249, "soft_tifa_am": 75.0, "tifa": 100.0, "vqascore": 60.0}
    )
    assert records[0]["keys"] == {"atomicity": 3}
    assert records[0]["detail"] == {
        "How many croissants are there?": 'seven: 0.2500, said "seven"',
        "Are they green?": 'Yes: 1.0000, said "Yes"',
        "Are there any croissants?": 'Yes: 1.0000, said "Yes"',
        "VQAScore": 'Yes: 0.6000, said "Yes"',
    }
    evaluate(benchmark, made)
    assert len(judge.asked) == 9  # everything was on record


def test_a_missing_item_withholds_the_headline_and_leaves_no_official_score(
    small: SmallDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, _ = judged_by(as_in_the_spec, monkeypatch)
    made = items(small)
    write_images(made[:1])
    outcome, result = evaluate(benchmark, made)
    assert outcome.state == INCOMPLETE
    assert result.headline == []
    assert result.metrics["soft_tifa_am"].value == pytest.approx(75)
    _, result = evaluate(benchmark, made, official=True)
    assert result.headline == ["soft_tifa_gm_official"]
    assert result.metrics["soft_tifa_gm_official"].value is None
    assert {path.name for path in CELL.official.iterdir()} == {"image_filepaths.json"}
    assert [*json.loads((CELL.official / "image_filepaths.json").read_text())] == [P1.text]


def test_an_atom_without_reply_is_an_unjudged_item_not_a_zero(
    small: SmallDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent_once(question: Question) -> Reply | None:
        lost = (question.item, question.name) == ("images/001", "vqa/2")
        return None if lost else as_in_the_spec(question)

    made = items(small)
    write_images(made)
    _, result = evaluate(judged_by(silent_once, monkeypatch)[0], made)
    assert (result.coverage.judged, result.coverage.judge_failed) == (1, 1)
    assert result.metrics["soft_tifa_am"].value == pytest.approx(75)
    benchmark, judge = judged_by(as_in_the_spec, monkeypatch)
    _, result = evaluate(benchmark, made)
    assert [(q.item, q.name) for q in judge.asked] == [("images/001", "vqa/2")]
    assert result.metrics["soft_tifa_am"].value == pytest.approx(76.875)


def test_probability_out_of_sight_is_told(small: SmallDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def top_tokens(question: Question) -> Reply:
        unseen = 0.011 if question.name == "vqascore" else 0.002
        return soft_reply(question, SOFT[question.item][question.name], outside=unseen)

    made = items(small)
    write_images(made)
    _, result = evaluate(judged_by(top_tokens, monkeypatch)[0], made)
    assert result.metrics["outside_mass"].value == pytest.approx((7 * 0.002 + 2 * 0.011) / 9)
    assert result.metrics["outside_mass_max"].value == 0.011
    assert result.metrics["vqascore_upper"].value == pytest.approx(41.1)
    [note] = [note for note in result.notes if "outside" in note]
    assert "a mean 0.40% of the probability, and at most 1.10%," in note


def test_judges() -> None:
    assert check_judge("") == "transformers:qwen3-vl-8b"
    assert check_judge("vllm:qwen3-vl-8b") == "vllm:qwen3-vl-8b"
    with pytest.raises(UserError, match="unknown judge"):
        check_judge("qwen3-vl-9b")


def test_the_whole_benchmark_leaves_the_official_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_real_data(tmp_path / "benchmarks", monkeypatch)

    def some(question: Question) -> Reply:
        # each question's own number, the same in every run; one in 16 is an exact zero
        number = zlib.crc32(question.text.encode()) % 4096
        return soft_reply(question, number / 4096 if number >= 256 else 0.0, "yes" if number % 2 else "no")

    dataset = GenEval2()
    made = items(dataset)
    write_images(made)
    benchmark, judge = judged_by(some, monkeypatch, templates=None)
    outcome, result = evaluate(benchmark, made)
    assert outcome.state == COMPLETE
    assert len(judge.asked) == 6012 + 800
    assert result.metrics["soft_tifa_gm_official"] == result.metrics["soft_tifa_gm"]
    assert set(result.provenance["data_sha256"]) >= {"geneval2_data.jsonl", "evaluation.py::soft_tifa"}

    lists: dict[str, Any] = {path.name: json.loads(path.read_text()) for path in CELL.official.iterdir()}
    by_line = sorted(made, key=lambda item: item.data["index"])
    images = lists["image_filepaths.json"]
    assert [(prompt, Path(path)) for prompt, path in images.items()] == [(i.prompt, i.path) for i in by_line]
    for name in ("soft_tifa", "tifa"):
        scores = lists[f"score_lists_{name}.json"]
        assert [len(s) for s in scores] == [len(item.data["vqa_list"]) for item in by_line]
    soft = lists["score_lists_soft_tifa.json"]
    asked = {(question.item, question.name): question for question in judge.asked}
    for item, scores in zip(by_line, soft, strict=True):
        expected = [some(asked[item.id, f"vqa/{n}"]).probabilities for n in range(len(scores))]
        assert scores == [sum((p or {}).values()) for p in expected]
    assert {score for scores in lists["score_lists_tifa.json"] for score in scores} == {0, 1}
    assert {len(scores) for scores in lists["score_lists_vqascore.json"]} == {1}
    assert result.metrics["soft_tifa_gm"].value == pytest.approx(
        100 * sum(map(geometric_mean, soft)) / 800, rel=1e-12
    )
