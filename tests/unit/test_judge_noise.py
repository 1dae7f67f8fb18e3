"""A judge asked again: an unchanged one raises no alarm, a planted drift is found, and noise is measured as it is."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question, ask
from imageevalkit.common.images import decode
from imageevalkit.evaluate.scoring import evaluate_cell
from imageevalkit.extras.noise.drift import Reply, Series, drift_of
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


def test_an_unchanged_judge_raises_no_alarm_in_any_run(judged: Judged) -> None:
    judged.size = 10
    for number_of_run in range(4):
        noise = judged.noise(8)
        assert not noise.has_drifted and noise.changed == 0
        assert not number_of_run or noise.repeats, "it was compared"
    assert judged.asked() == 10 + 4 * 8 + 5 * len(PROBES)


@pytest.mark.parametrize("with_repeats", [True, False])
def test_one_answer_in_25_turned_is_found(judged: Judged, with_repeats: bool) -> None:
    """With more questions, where the run before did not ask again: one reply of then says little of its noise."""
    judged.size = N if with_repeats else 3 * N
    before = judged.evaluate(judged.size if with_repeats else 0)
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


def test_two_hosts_under_one_name_have_probes_of_their_own_and_their_difference_is_told(
    judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged.size = 10
    judged.evaluate(1)
    monkeypatch.setenv("BASE_URL", judged.server.base_url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    assert not judged.noise(1).has_drifted, "it serves the same"
    shutil.rmtree(tmp_path / "output/judges")
    monkeypatch.setenv("BASE_URL", judged.server.base_url)
    judged.evaluate(1)
    monkeypatch.setenv("BASE_URL", judged.server.base_url.replace("127.0.0.1", "localhost"))
    judged.server.reply = lambda request: turned(request, one_in=4)
    for _ in range(2):  # and it stays told
        result = judged.evaluate(1)
        drift = result.noise and result.noise.probes
        assert drift and drift.found and drift.host == "127.0.0.1"
        [note] = [note for note in result.notes if "probes" in note]
        assert "have another answer than at 127.0.0.1 on 20" in note
    [folder] = (tmp_path / "output/judges").iterdir()
    assert f"Delete output/judges/{folder.name} to accept" in note.replace(f"{tmp_path}/", "")
    hosts = {one["host"] for path in folder.glob("*/probes.jsonl") for one in lines_of(path)}
    assert hosts == {"127.0.0.1", "localhost"} and KEY not in str(sorted(folder.rglob("*")))
    # the first host is as it was
    judged.server.reply = steady
    monkeypatch.setenv("BASE_URL", judged.server.base_url)
    assert not judged.noise(1).has_drifted


def test_what_counts_is_asked_first_and_what_is_asked_again_is_in_the_cost(
    judged: Judged, tmp_path: Path
) -> None:
    judged.size = 20
    result = judged.evaluate(10, price={"text_input": 1000.0, "text_output": 0.0})
    prompts = [request.prompt for request in judged.server.requests]
    assert all(prompt.startswith("Is this prompt") for prompt in prompts[:20])
    assert not any(prompt.startswith("Is this prompt") for prompt in prompts[20 : 20 + 2 * len(PROBES)])
    calls = 20 + 10 + 2 * len(PROBES)
    assert len(prompts) == result.provenance["judge_calls"] == calls
    files = [CELL.judgements, CELL.repeats, probes_file(tmp_path)]
    paid = [[one["usd"] for one in lines_of(path)] for path in files]
    assert min(map(sum, paid)) > 0
    assert result.provenance["judge_usd"] == pytest.approx(sum(map(sum, paid)), rel=1e-6)


def test_the_cells_of_a_run_share_their_judges_probes(judged: Judged) -> None:
    judged.size = 10
    judged.evaluate(1, run="run 1")
    judged.asked()
    judged.evaluate(1, run="run 1")
    assert judged.asked() == 1
    judged.evaluate(1, run="run 2")
    assert judged.asked() == 1 + len(PROBES)


def test_the_noise_of_an_unsure_judge_is_measured_and_is_no_drift(judged: Judged) -> None:
    """Each reply is drawn anew: the share of changes and the error of the mean are known beforehand."""
    rng = random.Random(5)

    def unsure(request: Received) -> str:
        sure = number(request.prompt) < 0.5
        return steady(request) if sure else ("Yes" if rng.random() < 0.7 else "No")

    judged.server.reply = unsure
    judged.size = 400
    noise = judged.noise(300)
    unsure_ones = sum(number(f"Is this prompt {n}?") >= 0.5 for n in range(400)) / 400
    assert noise.changed / noise.repeated == pytest.approx(unsure_ones * 2 * 0.7 * 0.3, abs=0.06)
    assert noise.interval and noise.interval[0] < unsure_ones * 0.42 < noise.interval[1]
    # a mean of 400 in percent, of which each unsure one has the variance 0.21
    true = 100 * math.sqrt(unsure_ones * 0.21 / 400)
    assert noise.standard_errors["yes"] == pytest.approx(true, rel=0.25)
    assert noise.item_errors["yes"] == pytest.approx(math.sqrt(unsure_ones * 0.21), rel=0.25)
    assert not judged.noise(300).has_drifted


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


def drawn_alike(rng: random.Random, chance: float, before: int) -> Series:
    def reply() -> Reply:
        return Reply(rng.random() < chance)

    one = Series("q", [reply() for _ in range(before)], [])
    while one.wanted:
        one = Series("q", one.before, [*one.now, *[reply() for _ in range(one.wanted)]])
    return one


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("chance", [0.05, 0.3, 0.5])
def test_an_unsure_judge_raises_an_alarm_in_one_run_of_a_hundred_at_most(before: int, chance: float) -> None:
    rng = random.Random(f"{before} {chance}")
    runs = [drift_of(drawn_alike(rng, chance, before) for _ in range(60)) for _ in range(100)]
    alarms = sum(one.found for one in runs if one)
    assert alarms <= 100 * 0.01 + 3 * math.sqrt(100 * 0.01), "within what chance allows"


@pytest.mark.parametrize("before", [1, 2])
def test_the_chance_of_a_question_is_that_of_all_its_orders(before: int) -> None:
    """The chance is the share of orders of the replies that seem changed, among the orders that count."""
    steady_one = Series("q", [Reply(0)] * before, [])
    while steady_one.wanted:
        steady_one = Series("q", steady_one.before, [*steady_one.now, *[Reply(1)] * steady_one.wanted])
    replies = [*steady_one.before, *steady_one.now]
    orders = set(permutations([one.value for one in replies]))
    all_orders = [
        Series("q", [Reply(v) for v in order[:before]], [Reply(v) for v in order[before:]])
        for order in orders
    ]
    counting = [one for one in all_orders if one.counts]
    assert sum(one.seems_changed for one in counting) / len(counting) == pytest.approx(steady_one.chance)


def test_probabilities_agree_within_what_a_provider_varies() -> None:
    one = Reply("Yes", {"Yes": 0.9, "No": 0.1})
    assert one.agrees(Reply("Yes", {"Yes": 0.88, "No": 0.12}))
    assert not one.agrees(Reply("Yes", {"Yes": 0.8, "No": 0.1}))


def test_the_probes_are_frozen_to_the_byte() -> None:
    """A judge that was asked with other bytes is not known again: whoever changes one adds another instead."""
    pictures = {name: drawing(name) for name in dict.fromkeys(probe.drawn for probe in PROBES)}
    whole = hashlib.sha256(b"".join(pictures.values())).hexdigest()
    words = hashlib.sha256(repr([tuple(probe) for probe in PROBES]).encode()).hexdigest()
    assert (whole[:16], words[:16]) == ("0502a1649dadf720", "6b32bf9f4f7f5fe2")
    assert 12 <= len(PROBES) <= 20
    for data in pictures.values():
        image = decode(data).convert("RGB")
        assert image.size == (128, 128)
        assert image.getpixel((0, 0)) in {(255, 255, 255), (128, 128, 128)}
    assert decode(pictures["circle"]).convert("RGB").getpixel((64, 64)) == (221, 17, 17)


def test_the_scores_of_the_same_judge_in_other_cells_are_warned_of_too(judged: Judged) -> None:
    judged.size = 20
    judged.evaluate(20)
    old = Cell("earlier", Graded.name)
    shutil.copytree(CELL.folder, old.folder)
    judged.server.reply = lambda request: turned(request, one_in=4)
    judged.evaluate(20)
    reports = {one.cell.model: one.result for one in collect()}
    told, other = reports["m"], reports["earlier"]
    assert told and other and told.notes[0].startswith("the judge has drifted: ")
    assert other.notes[-1].startswith("the judge has drifted, as m/graded shows: ")


def test_without_the_option_or_the_key_nothing_is_asked_again(
    judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged.size = 20
    before = judged.evaluate()
    assert before.noise is None and judged.asked() == 20
    assert not CELL.repeats.exists() and not (tmp_path / "output/judges").exists()
    monkeypatch.delenv("API_KEY")
    after = judged.evaluate(10)
    assert (after.metrics, after.noise) == (before.metrics, None), "the scores stand"
