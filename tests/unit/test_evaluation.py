"""The evaluate engine: coverage that adds up, withheld headlines, resume of judgements, honest treatments."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit.benchmark.contract import Answers, Scores
from imageevalkit.benchmark.question import Answer, Picture, Question, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.evaluate.interview import Interview
from imageevalkit.evaluate.scoring import evaluate_cell
from imageevalkit.extras.dry_run.questions import images_to_come
from imageevalkit.generate.cell_run import GenerateOptions
from imageevalkit.generate.model import Refused
from imageevalkit.jobs.plan import COMPLETE, FAILED, INCOMPLETE, EvaluateOrder, Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.report.collect import collect
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Result, Score, read_result, standing, validate
from tests.support.generation import FakeDataset, FakeModel, generate, items
from tests.support.red_benchmark import RedBenchmark
from tests.support.waiting import LONGEST_WAIT

CELL = Cell("m", "fake")
_ASK = EvaluateOrder()


class SameQuestion(RedBenchmark):
    """Asks the same about every image."""

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return [measure("red", image)]


def evaluate(benchmark: RedBenchmark, n: int = 5, options: EvaluateOrder = _ASK) -> tuple[Outcome, Result]:
    outcome = evaluate_cell(CELL, benchmark, items(FakeDataset(n)), ProgressWriter(), options)
    return outcome, read_result(CELL.result)


def to_ask(benchmark: RedBenchmark, n: int = 5, options: EvaluateOrder = _ASK) -> tuple[int, int]:
    """Returns the forecast: the number of questions to ask, and of all questions."""
    of_cell = items(FakeDataset(n))
    known = Interview(CELL, benchmark, of_cell, images_to_come(CELL, of_cell, None), options)
    return len(known.open()), known.requests


class Interrupting(RedBenchmark):
    """Does ``between`` before it gives its last answer."""

    def __init__(self, between: Callable[[], None]) -> None:
        super().__init__()
        self._between = between

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        for n, answer in enumerate(super().ask(questions)):
            if n == len(questions) - 1:
                self._between()
            yield answer


def lossy_model() -> FakeModel:
    def fault(prompt: str) -> None:
        if prompt == "prompt 1":
            raise Refused("policy")
        if prompt == "prompt 2":
            raise ValueError("boom")

    return FakeModel(fault)


def test_complete_cell_has_a_headline() -> None:
    generate(FakeModel(), FakeDataset(5))
    outcome, result = evaluate(RedBenchmark())
    assert outcome.state == COMPLETE
    assert result.headline == ["red"]
    assert result.metrics["red"].value == pytest.approx(sum(range(42, 47)) / 5 / 255)
    assert result.coverage.judged == result.coverage.expected == 5


def test_failures_are_counted_never_scored_and_withhold_the_headline() -> None:
    generate(lossy_model(), FakeDataset(5))
    corrupt = CELL.folder / "images/00003.png"
    corrupt.write_bytes(corrupt.read_bytes()[:-30])
    outcome, result = evaluate(RedBenchmark())
    assert outcome.state == INCOMPLETE
    assert (result.coverage.refused, result.coverage.failed, result.coverage.corrupt) == (1, 1, 1)
    assert result.headline == []
    assert result.withheld == "incomplete: 1 refused, 1 failed, 1 corrupt"
    assert result.metrics["red"].n == 2
    assert result.metrics["red"].value == pytest.approx((42 + 46) / 2 / 255), "lost items are no zeros"


def test_official_treatment_scores_the_files_it_finds_and_says_so() -> None:
    generate(lossy_model(), FakeDataset(5), GenerateOptions(blank_on_error=True))
    outcome, result = evaluate(RedBenchmark(), options=EvaluateOrder(official=True))
    assert result.treatment == "official"
    assert result.headline == ["red"]
    assert result.metrics["red"].n == 4, "three images and the white placeholder"
    assert outcome.state == INCOMPLETE


def test_unparsed_and_failed_judgements_are_counted_apart() -> None:
    generate(FakeModel(), FakeDataset(5))
    faults = {"images/00000": "judge down", "images/00001": "I cannot say"}
    _, result = evaluate(RedBenchmark(faults=faults))
    assert (result.coverage.judged, result.coverage.unparsed, result.coverage.judge_failed) == (3, 1, 1)
    statuses = [json.loads(line)["status"] for line in CELL.scores.read_text().splitlines()]
    assert statuses == ["judge_failed", "unparsed", "judged", "judged", "judged"]


def test_resume_asks_only_what_is_missing() -> None:
    generate(FakeModel(), FakeDataset(5))
    first = RedBenchmark(faults={"images/00003": "judge down"})
    evaluate(first)
    again = RedBenchmark()
    outcome, _ = evaluate(again)
    assert again.asked == ["images/00003"]
    assert (first.answered_before, again.answered_before) == (False, True)
    assert outcome.state == COMPLETE
    other = RedBenchmark("red-v2")
    evaluate(other)
    assert len(other.asked) == 5, "another evaluator's answers are not taken over"
    assert not other.answered_before


def test_a_reply_without_a_score_is_asked_for_as_often_as_officially() -> None:
    generate(FakeModel(), FakeDataset(5))
    faults = {"images/00000": "I cannot say", "images/00001": "unparsed once"}
    benchmark = RedBenchmark(faults=faults, tries=3)
    _, result = evaluate(benchmark)
    assert (result.coverage.judged, result.coverage.unparsed) == (4, 1)
    assert [benchmark.asked.count(item) for item in faults] == [3, 2]
    again = RedBenchmark(tries=3)
    evaluate(again)
    assert again.asked == [], "a fourth reply would be one to choose from"
    outcome, result = evaluate(again, options=EvaluateOrder(retry_unparsed=True))
    assert again.asked == ["images/00000"]
    assert again.answered_before and outcome.state == COMPLETE
    assert result.notes == ["1 questions were asked more often than officially (--retry_unparsed)"]


def test_one_of_several_answerers_is_given_up_by_itself() -> None:
    """Answers of an encoder, now or before, do not prove that the judge works."""

    class Two(RedBenchmark):
        groups = ("encoder", "judge")

        def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
            return [measure(name, image, item.id) for name in self.groups]

        def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
            for question in questions:
                self.asked.append(question.name)
                said = "1" if question.name == "encoder" else None
                yield Answer(question, said, "" if said else "the key is for another door")

    generate(FakeModel(), FakeDataset(30))
    for already in (0, 30):
        two = Two()
        with pytest.raises(CellFailure, match=r"the first 10 questions all failed: the key is for"):
            evaluate(two, 30)
        assert two.asked == ["encoder"] * (30 - already) + ["judge"] * 10 and not CELL.result.exists()
    records = [json.loads(line) for line in CELL.judgements.read_text().splitlines()]
    assert {record["evaluator"] for record in records} == {"encoder", "judge"}


class Breaking(RedBenchmark):
    """Breaks the contract as it is told: with ``questions``, a ``score``, ``metrics`` or ``files`` of its own."""

    def __init__(self, **own: Any) -> None:
        super().__init__()
        self._own = own

    def questions(self, item: Item, image: Picture, answers: Answers) -> Any:
        questions = super().questions(item, image, answers)
        return self._own.get("questions", list)(questions) if item.id == "images/00002" else questions

    def parse(self, question: Question, answer: Answer) -> Any:
        value = super().parse(question, answer)
        return (
            self._own["parse"](value) if "parse" in self._own and question.item == "images/00002" else value
        )

    def score(self, item: Item, answers: Answers) -> Score:
        score = super().score(item, answers)
        return self._own["score"](score) if "score" in self._own and item.id == "images/00002" else score

    def metrics(self, scores: Scores) -> Any:
        return {**super().metrics(scores), **self._own.get("metrics", {})}

    def official_files(self, scores: Scores) -> Any:
        return self._own.get("files", {"reds.json": "[]"})


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (
            {"questions": lambda questions: [*questions, *questions]},
            "questions() of item images/00002 has more than one of the name 'red': give each its own",
        ),
        (
            {"parse": lambda value: {"red": math.nan}},
            "parse() of item images/00002, red is {'red': nan}, and must be a JSON value",
        ),
        ({"score": lambda score: None}, "score() of item images/00002 is None, and must be a Score"),
        (
            {"score": lambda score: replace(score, values={"red": math.nan})},
            "score() of item images/00002: 'red' is nan, and must be a finite number",
        ),
        (
            {"metrics": {"red": Metric(50.0, 5)}},
            "metric 'red' is 50 on a scale of 1: give the top of its range, as in mean(…, top=5)",
        ),
        (
            {"files": {"a.json": "[]", "../../x.json": "[]"}},
            "official_files() has '../../x.json': give a file name, or one below",
        ),
    ],
)
def test_a_benchmark_that_breaks_the_contract_is_a_line_and_changes_no_result(
    own: Mapping[str, Any], says: str
) -> None:
    generate(FakeModel(), FakeDataset(5))
    evaluate(RedBenchmark())
    before = {path: path.read_bytes() for path in CELL.folder.rglob("*") if path.is_file()}
    breaking = Breaking(**own)
    with pytest.raises(CellFailure) as caught:
        evaluate(breaking)
    assert str(caught.value).startswith("benchmark fake: ") and says in str(caught.value)
    after = {path: path.read_bytes() for path in CELL.folder.parent.parent.rglob("*") if path.is_file()}
    assert before == after and breaking.asked == []


def test_official_files_may_be_in_folders_and_those_of_before_go() -> None:
    generate(FakeModel(), FakeDataset(5))
    for files in ({"a.json": "1", "en/long/b.csv": "2", "zh/c.csv": "3"}, {"en/b.csv": "4"}):
        assert evaluate(Breaking(files=files))[0].state == COMPLETE
        found = {p.relative_to(CELL.official).as_posix(): p for p in CELL.official.rglob("*")}
        assert {name: path.read_text() for name, path in found.items() if path.is_file()} == files
        assert not {"zh", "en/long"} & {*found} or "zh/c.csv" in files


def test_an_answer_is_kept_when_the_benchmark_cannot_read_it() -> None:
    class Nan(RedBenchmark):
        def parse(self, question: Question, answer: Answer) -> Any:
            return math.nan

    generate(FakeModel(), FakeDataset(1))
    with pytest.raises(CellFailure, match=r"parse\(\) of item images/00000, red is nan"):
        evaluate(Nan(), n=1)
    mended = RedBenchmark()
    assert evaluate(mended, n=1)[0].state == COMPLETE
    assert mended.asked == []


def test_a_trial_with_another_judge_hides_no_full_result() -> None:
    generate(FakeModel(), FakeDataset(5))
    evaluate(RedBenchmark("red-v1"))
    evaluate_cell(
        CELL, RedBenchmark("red-v2"), items(FakeDataset(5))[:2], ProgressWriter(), EvaluateOrder(limit=2)
    )
    assert read_result(CELL.result).evaluator.id == "red-v1"
    assert len(CELL.scores.read_text().splitlines()) == 5
    assert {cell.result.evaluator.id for cell in collect() if cell.result} == {"red-v1", "red-v2"}


def test_an_incomplete_result_of_another_judge_hides_no_complete_one() -> None:
    generate(FakeModel(), FakeDataset(5))
    evaluate(RedBenchmark("red-v1"))
    outcome, shown = evaluate(RedBenchmark("red-v2", {"images/00003": "judge dies"}))
    assert outcome.state == FAILED
    assert shown.evaluator.id == "red-v1"
    (beside,) = (cell.result for cell in collect() if cell.result and cell.result.evaluator.id == "red-v2")
    assert beside.coverage.judged == 3
    assert evaluate(RedBenchmark("red-v2"))[1].evaluator.id == "red-v2", "complete, it is the latest"


def test_a_judge_that_dies_fails_the_cell_and_keeps_what_it_said(capsys: pytest.CaptureFixture[str]) -> None:
    generate(FakeModel(), FakeDataset(5))
    outcome, result = evaluate(RedBenchmark(faults={"images/00003": "judge dies"}))
    assert outcome.state == FAILED
    assert "\nred-v1 stopped answering: the key is rejected\n" in capsys.readouterr().out
    assert outcome.message == "the key is rejected (3 of 5 judged; the next run continues)"
    assert (result.coverage.judged, result.coverage.judge_failed, result.headline) == (3, 2, [])
    again = RedBenchmark()
    outcome, undisturbed = evaluate(again)
    assert again.asked == ["images/00003", "images/00004"]
    assert outcome.state == COMPLETE
    CELL.judgements.unlink()
    anew = RedBenchmark()
    assert evaluate(anew)[1].metrics == undisturbed.metrics
    assert len(anew.asked) == 5, "who deletes the records has all asked anew"


def test_rescoring_asks_nothing_and_parses_anew() -> None:
    class Doubling(RedBenchmark):
        def parse(self, question: Question, answer: Answer) -> Any:
            return 2 * super().parse(question, answer)

    generate(FakeModel(), FakeDataset(5))
    _, before = evaluate(RedBenchmark(faults={"images/00004": "judge down"}))
    rescored = Doubling()
    outcome, result = evaluate(rescored, options=EvaluateOrder(ask=False))
    assert rescored.asked == []
    assert before.metrics["red"].value and result.metrics["red"].value
    assert result.metrics["red"].value == pytest.approx(2 * before.metrics["red"].value)
    assert outcome.state == INCOMPLETE
    assert result.coverage.judge_failed == 1
    reasons = [json.loads(line)["reason"] for line in CELL.scores.read_text().splitlines()]
    assert reasons[-1] == "not asked: --rescore uses recorded answers only"


def test_rescoring_for_a_judge_that_said_nothing_replaces_no_result() -> None:
    generate(FakeModel(), FakeDataset(5))
    evaluate(RedBenchmark("red-v1"))
    with pytest.raises(CellFailure, match="red-v2 has no recorded answers about these images"):
        evaluate(RedBenchmark("red-v2"), options=EvaluateOrder(ask=False))
    assert read_result(CELL.result).evaluator.id == "red-v1"


def test_a_kill_between_two_moves_loses_no_file_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    generate(FakeModel(), FakeDataset(3))
    evaluate(RedBenchmark("red-v1"), n=3)
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self == CELL.result:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        evaluate(RedBenchmark("red-v2"), n=3)
    evaluate(RedBenchmark("red-v2"), n=3)
    [kept] = (CELL.folder / "evaluators").iterdir()
    assert {path.name for path in kept.iterdir()} == {"result.json", "scores.jsonl", "official"}


def test_the_results_of_two_evaluators_stand_side_by_side() -> None:
    generate(FakeModel(), FakeDataset(3))
    evaluate(RedBenchmark("red-v1"), n=3)
    evaluate(RedBenchmark("red/v2"), n=3)
    assert [cell.result.evaluator.id for cell in collect() if cell.result] == ["red/v2", "red-v1"]
    assert [cell.is_latest for cell in collect()] == [True, False]
    back = RedBenchmark("red-v1")
    evaluate(back, n=3)
    assert back.asked == []
    assert [cell.result.evaluator.id for cell in collect() if cell.result] == ["red-v1", "red/v2"]
    assert json.loads((CELL.official / "reds.json").read_text()) == ["42", "43", "44"]
    (CELL.folder / "images/00001.png").unlink()
    generate(Whiter(), FakeDataset(3))
    assert collect()[0].result is None, "no evaluator's result outlives the images"
    assert len(collect()) == 1


class Whiter(FakeModel):
    """Another image than :class:`FakeModel`'s for each prompt."""

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        image: Image.Image = super().generate(prompt, seed)
        image.putpixel((1, 1), (255, 255, 255))
        return image


def test_a_result_goes_when_an_image_that_it_lacked_is_there_again() -> None:
    generate(FakeModel(), FakeDataset(3))
    (CELL.folder / "images/00001.png").unlink()
    assert evaluate(RedBenchmark(), n=3, options=EvaluateOrder(official=True))[1].coverage.judged == 2
    generate(FakeModel(), FakeDataset(3))
    assert standing(CELL) == [], "it is the image on record, but not one that was measured"


def test_questions_that_are_the_same_are_asked_once() -> None:
    class Flat(FakeModel):
        def generate(self, prompt: str, seed: int = 42) -> Image.Image:
            return Image.new("RGB", (8, 8), (len(prompt), 0, 0))

    generate(Flat(), FakeDataset(12))
    benchmark = SameQuestion()
    assert to_ask(benchmark, n=12) == (2, 2)
    outcome, result = evaluate(benchmark, n=12)
    assert len(benchmark.asked) == 2, "ten images of one bytes, two of another"
    assert (outcome.state, result.coverage.judged) == (COMPLETE, 12)


def test_a_forecast_counts_what_is_asked() -> None:
    assert to_ask(RedBenchmark()) == to_ask(SameQuestion()) == (5, 5), "no two images to come are the same"
    generate(FakeModel(), FakeDataset(5))
    assert to_ask(RedBenchmark()) == (5, 5)
    evaluate(RedBenchmark(faults={"images/00001": "hm", "images/00003": "judge down"}))
    for tries, options, count in (
        (1, EvaluateOrder(), 1),
        (2, EvaluateOrder(), 2),
        (1, EvaluateOrder(retry_unparsed=True), 2),
        (2, EvaluateOrder(ask=False), 0),
    ):
        benchmark = RedBenchmark(tries=tries, faults={"images/00001": "hm", "images/00003": "judge down"})
        assert to_ask(benchmark, options=options) == (count, 5)
    again = RedBenchmark(tries=2)
    evaluate(again)
    assert again.asked == ["images/00001", "images/00003"]
    assert to_ask(again) == (0, 5)


def test_a_new_image_is_judged_anew() -> None:
    generate(FakeModel(), FakeDataset(3), guidance_scale=1)
    evaluate(RedBenchmark(), n=3)

    class Other(FakeModel):
        def generate(self, prompt: str, seed: int = 42) -> Image.Image:
            return super().generate(prompt, seed + 1)

    generate(Other(), FakeDataset(3), GenerateOptions(overwrite=True), guidance_scale=2)
    again = RedBenchmark()
    _, result = evaluate(again, n=3)
    assert len(again.asked) == 3
    assert result.metrics["red"].value == pytest.approx(44 / 255)


def write_over(records: Path, text: str | None) -> None:
    """Give a file of records another content, or remove it."""
    records.unlink()
    if text is not None:
        records.write_text(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"request": [1], "status": "ok", "raw": "7"}',
        '{"request": "REQUEST", "status": "ok", "raw": 7}',
        "[" * 100_000,
        b'{"request": "REQUEST", "status": "ok", "raw": "\xff"}',
    ],
)
def test_a_damaged_judgement_is_named_and_its_question_alone_asked_again(
    text: str | bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(FakeModel(), FakeDataset(3))
    _, before = evaluate(RedBenchmark(), n=3)
    lines = CELL.judgements.read_bytes().splitlines()
    request = json.loads(lines[1])["request"].encode()
    damaged = (text.encode() if isinstance(text, str) else text).replace(b"REQUEST", request)
    CELL.judgements.write_bytes(b"\n".join([lines[0], damaged, lines[2], b""]))
    again = RedBenchmark()
    outcome, result = evaluate(again, n=3)
    assert (outcome.state, result.metrics) == (COMPLETE, before.metrics)
    assert again.asked == [json.loads(lines[1])["item"]]
    printed = capsys.readouterr().out
    assert printed.count(f"{CELL.judgements}:2: not a record: ") == 1 and "Traceback" not in printed


def test_images_made_elsewhere_are_scored_and_noted() -> None:
    generate(FakeModel(), FakeDataset(3))
    write_over(CELL.generation, None)
    outcome, result = evaluate(RedBenchmark(), n=3)
    assert outcome.state == COMPLETE
    assert result.notes == ["3 images come from elsewhere: their settings are unknown"]


def test_images_that_go_while_they_are_judged_leave_no_result() -> None:
    generate(FakeModel(), FakeDataset(3))
    with pytest.raises(CellFailure, match=r"images were removed from .*m/fake while they were judged"):
        evaluate(Interrupting(lambda: shutil.rmtree(CELL.folder)), n=3)
    assert not CELL.result.exists()


def test_replies_are_on_the_disk_soon_after_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    generate(FakeModel(), FakeDataset(3))
    synced: list[bytes] = []
    fsync = os.fsync

    def recording(fd: int) -> None:
        data = (
            CELL.judgements.read_bytes() if Path(f"/proc/self/fd/{fd}").readlink() == CELL.judgements else b""
        )
        fsync(fd)
        synced.append(data)

    def wait() -> None:
        deadline = time.monotonic() + LONGEST_WAIT
        while not any(b"images/00000" in data for data in synced):
            assert time.monotonic() < deadline, "the judge goes on and on, and the first reply is not safe"
            time.sleep(0.05)

    monkeypatch.setattr(os, "fsync", recording)
    evaluate(Interrupting(wait), n=3)


def test_nothing_to_score_is_a_failure_not_a_zero() -> None:
    with pytest.raises(CellFailure, match="no image to score: 4 failed of 4 items"):
        evaluate(RedBenchmark(), n=4)
    assert not CELL.result.exists()


def test_flat_images_are_flagged() -> None:
    class Flat(FakeModel):
        def generate(self, prompt: str, seed: int = 42) -> Image.Image:
            return Image.new("RGB", (8, 8), "black")

    generate(Flat(), FakeDataset(3))
    _, result = evaluate(RedBenchmark(), n=3)
    assert result.coverage.flat == 3
    assert result.coverage.generated == 3
    assert "3 images are one flat colour" in result.notes


def test_schema_refuses_results_that_do_not_add_up() -> None:
    generate(FakeModel(), FakeDataset(5))
    evaluate(RedBenchmark())
    text = CELL.result.read_text()
    validate(json.loads(text))
    for place, value, says in (
        ("schema", "other/1", "schema"),
        ("metrics", {"red": {"value": float("nan"), "n": 1}}, "'metrics.red.value' is NaN"),
        ("headline", ["green"], "unknown metric 'green'; known: red"),
        ("headline", [], "no reason"),
        ("coverage.judged", 4, "generated ≠"),
        ("coverage.failed", 1, "expected ≠"),
    ):
        raw = json.loads(text)
        outer, _, inner = place.partition(".")
        (raw[outer] if inner else raw)[inner or outer] = value
        with pytest.raises(ValueError, match=says):
            validate(raw)
