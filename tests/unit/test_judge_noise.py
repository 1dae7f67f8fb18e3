"""A judge asked again: an unchanged one raises no alarm, a planted drift is found, and noise is measured as it is."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.evaluate.scoring import evaluate_cell
from imageevalkit.extras.noise.probes import PROBES, drawing
from imageevalkit.jobs.plan import COMPLETE, EvaluateOrder, Outcome
from imageevalkit.jobs.progress import ProgressWriter
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.metrics import mean
from imageevalkit.report.collect import collect
from imageevalkit.store import jsonl
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Noise, Result, Score, read_result
from tests.support.function_judge import items as items_of_benchmark
from tests.support.function_judge import write_images
from tests.support.image_server import KEY, Received
from tests.support.judge_server import ReplyServer

N = 100


class Graded(Benchmark):
    """One question about each of 100 images, answered with yes or no."""

    name, version, headline = "graded", "1", ("yes",)
    judge = "openai:gpt-4o"
    size = N

    def samples(self) -> Iterable[Sample]:
        return [Sample(f"images/{n:04d}.png", f"prompt {n}") for n in range(self.size)]

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        return [ask("verdict", image, f"Is this {item.prompt}?", max_tokens=10)]

    def parse(self, question: Question, answer: Answer) -> float:
        if answer.text not in ("Yes", "No"):
            raise Unparsed("neither yes nor no", answer.text)
        return float(answer.text == "Yes")

    def score(self, item: Item, answers: Answers) -> Score:
        return Score({"yes": answers["verdict"].value})

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        return {"yes": mean(scores, "yes", percent=True)}


CELL = Cell("m", Graded.name)


def number(*key: object) -> float:
    """A number in [0, 1) that ``key`` decides."""
    return int(hashlib.sha256(repr(key).encode()).hexdigest()[:12], 16) / 16**12


def steady(request: Received) -> str:
    """One answer to each question for ever."""
    return "Yes" if number(request.prompt, *request.images) < 0.6 else "No"


def turned(request: Received, one_in: float = 25) -> str:
    """The same with one answer in so many turned."""
    said = steady(request)
    is_turned = number("turned", request.prompt, *request.images) < 1 / one_in
    return {"Yes": "No", "No": "Yes"}[said] if is_turned else said


@dataclass
class Judged:
    """Evaluations of one cell by a judge behind ``server``."""

    server: ReplyServer
    size: int = N

    def evaluate(self, repeats: int = 0, **order: Any) -> Result:
        outcome = self.outcome(repeats, **order)
        assert outcome.state == COMPLETE, outcome
        return read_result(CELL.result)

    def outcome(self, repeats: int = 0, **order: Any) -> Outcome:
        benchmark = Graded()
        benchmark.size = self.size
        made = items_of_benchmark(benchmark)
        if not made[0].path.exists():
            write_images(made)
        kwargs = {"backoff": 0.01, "price": order.pop("price", None)}
        options = JudgeOptions(kwargs, workers=4, **order.pop("judge", {}))
        return evaluate_cell(
            CELL,
            benchmark,
            made,
            ProgressWriter(),
            EvaluateOrder(judge_options=options, judge_repeats=repeats, **order),
        )

    def asked(self) -> int:
        """Returns the number of requests since the last call."""
        count = len(self.server.requests)
        self.server.requests.clear()
        return count

    def noise(self, repeats: int = 0, **order: Any) -> Noise:
        noise = self.evaluate(repeats, **order).noise
        assert noise
        return noise


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judged]:
    with ReplyServer() as server:
        monkeypatch.setenv("API_KEY", KEY)
        monkeypatch.setenv("BASE_URL", server.base_url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        server.reply = steady
        yield Judged(server)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def probes_file(folder: Path) -> Path:
    [path] = (folder / "output/judges").glob("*/*/probes.jsonl")
    return path


def test_a_sample_is_asked_again_once_and_the_judges_probes_twice_the_first_time(judged: Judged) -> None:
    result = judged.evaluate(50)
    assert judged.asked() == N + 50 + 2 * len(PROBES)
    noise = result.noise
    assert noise and (noise.of, noise.repeated, noise.changed) == (N, 50, 0)
    assert noise.interval and 0 == noise.interval[0] < noise.interval[1] < 0.1
    assert noise.standard_errors == {"yes": 0.0} and noise.item_errors == {"yes": 0.0}
    assert noise.repeats is None and noise.probes is None, "there is no earlier run"
    assert not [note for note in result.notes if "drift" in note]
    assert result.provenance["judge_calls"] == N + 50 + 2 * len(PROBES)
    again = judged.evaluate(50)
    assert judged.asked() == 50 + len(PROBES), "a run asks the same sample once, and each probe once"
    assert again.noise and again.noise.repeats and again.noise.probes
    assert (again.noise.repeats.asked, again.noise.probes.asked) == (50, len(PROBES))
    assert not again.noise.has_drifted
    records = lines_of(CELL.repeats)
    assert len({one["request"] for one in records}) == 50 == len(records) / 2
    assert len(lines_of(CELL.judgements)) == N, "what counts is kept apart"
    judged.asked()
    assert judged.noise(50, ask=False) == again.noise, "rescoring asks nothing and keeps what is known"
    assert judged.asked() == 0


def test_one_answer_in_25_turned_is_found(judged: Judged) -> None:
    before = judged.evaluate(judged.size)
    judged.asked()
    judged.server.reply = turned
    result = judged.evaluate(judged.size)
    drift = result.noise and result.noise.repeats
    assert drift and drift.found and drift.p < 0.01
    planted = [
        one
        for one in lines_of(CELL.repeats)
        if one["run"] == result.provenance["run"] and one["parsed"] != one["first"]
    ]
    assert len(drift.changed) == len({one["request"] for one in planted}) > 1
    assert len(drift.changed) / judged.size == pytest.approx(1 / 25, abs=0.03)
    assert drift.since[:19] <= before.provenance["run"][:19]
    [note, *_] = result.notes
    assert note.startswith(f"the judge has drifted: {len(drift.changed)} of {judged.size} questions")
    assert result.metrics == before.metrics, "the answers that count stay"
    [report] = collect()
    assert report.result and report.result.notes[0] == note, "it stands beside the score"
    # known from now on, whether it is asked again or not
    assert judged.evaluate(ask=False).notes == result.notes
    judged.asked()
    assert judged.evaluate().notes == result.notes
    assert judged.asked() == 0


def test_a_changed_judge_fails_its_probes_and_may_be_accepted(judged: Judged, tmp_path: Path) -> None:
    judged.size = 10
    judged.evaluate(1)
    judged.server.reply = lambda request: turned(request, one_in=4)
    result = judged.evaluate(1)
    drift = result.noise and result.noise.probes
    assert drift and drift.found
    assert set(drift.changed) < {probe.name for probe in PROBES}
    assert any("probes" in note and "to accept the judge as it is now" in note for note in result.notes)
    probes_file(tmp_path).unlink()
    accepted = judged.noise(1)
    assert accepted.probes is None
    assert not judged.noise(1).has_drifted


def test_the_noise_of_an_unsure_judge_is_measured_and_is_no_drift(judged: Judged) -> None:
    """Each reply is drawn anew: the share of changes and the error of the mean are known beforehand."""
    asked = Counter[str]()

    def unsure(request: Received) -> str:
        asked[request.prompt] += 1
        if number(request.prompt) < 0.5:
            return steady(request)
        return "Yes" if number(request.prompt, asked[request.prompt]) < 0.7 else "No"

    judged.server.reply = unsure
    judged.size = 150
    noise = judged.noise(100)
    unsure_ones = sum(number(f"Is this prompt {n}?") >= 0.5 for n in range(150)) / 150
    assert noise.changed / noise.repeated == pytest.approx(unsure_ones * 2 * 0.7 * 0.3, abs=0.06)
    assert noise.interval and noise.interval[0] < unsure_ones * 0.42 < noise.interval[1]
    # a mean of 150 in percent, of which each unsure one has the variance 0.21
    true = 100 * math.sqrt(unsure_ones * 0.21 / 150)
    assert noise.standard_errors["yes"] == pytest.approx(true, rel=0.25)
    assert noise.item_errors["yes"] == pytest.approx(math.sqrt(unsure_ones * 0.21), rel=0.25)
    assert not judged.noise(100).has_drifted


def test_what_was_cut_off_goes_on_and_nothing_is_asked_twice(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    judged.size = 60
    plain = jsonl.JsonlWriter.append
    left = judged.size + 2 * len(PROBES) + 30

    def append(self: jsonl.JsonlWriter, record: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        plain(self, record)

    monkeypatch.setattr(jsonl.JsonlWriter, "append", append)
    with pytest.raises(Killed):
        judged.outcome(50)
    monkeypatch.setattr(jsonl.JsonlWriter, "append", plain)
    kept = len(lines_of(CELL.repeats))
    assert kept == 30
    judged.asked()
    noise = judged.noise(50)
    assert judged.asked() == 50 - kept
    assert noise.repeated == 50 and noise.repeats is None, "it is still the run that gave the answers"
    assert set(Counter(one["request"] for one in lines_of(CELL.repeats)).values()) == {1}


def test_the_bound_on_money_counts_repeats_and_the_scores_stand(judged: Judged, tmp_path: Path) -> None:
    """A reply costs a dollar at least: 20 answers are paid for, all the repeats are not."""
    judged.size = 20
    price = {"text_input": 1000.0, "text_output": 0.0}
    assert judged.outcome(price=price).state == COMPLETE
    assert judged.asked() == 20
    bound = {"max_cost": 5.0, "shared": str(tmp_path / "requests")}
    outcome = judged.outcome(20, price=price, judge=bound)
    assert outcome.state == COMPLETE, "the scores stand"
    assert 0 < judged.asked() < 6, "probes and repeats are within one bound"
    assert read_result(CELL.result).metrics["yes"].n == 20


def test_a_repeat_without_a_value_is_no_change(judged: Judged) -> None:
    judged.size = 20
    judged.evaluate(0)
    judged.server.reply = lambda request: "I would rather not say"
    noise = judged.noise(10)
    assert (noise.repeated, noise.changed, noise.unparsed) == (0, 0, 20), "two of a run would show the noise"
    assert not noise.has_drifted


def test_the_probes_are_frozen_to_the_byte() -> None:
    """A judge that was asked with other bytes is not known again: whoever changes one adds another instead."""
    pictures = {name: drawing(name) for name in dict.fromkeys(probe.drawn for probe in PROBES)}
    whole = hashlib.sha256(b"".join(pictures.values())).hexdigest()
    words = hashlib.sha256(repr([tuple(probe) for probe in PROBES]).encode()).hexdigest()
    assert (whole[:16], words[:16]) == ("0502a1649dadf720", "6b32bf9f4f7f5fe2")
