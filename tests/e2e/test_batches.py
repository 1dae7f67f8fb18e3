"""``--batch``: requests go as batches of the provider's, at half the price, and none is ever paid twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.benchmark.question import JudgeOnHold, JudgeUnusable, Message, Question, Sampling
from imageevalkit.common.errors import CellFailure
from imageevalkit.extras.batch.batches import Batches
from imageevalkit.judges.choice import JudgeChoice, JudgeOptions, JudgeSetting
from imageevalkit.judges.client import ApiJudge
from tests.support.api_runs import REPEATS, ApiRuns, message, prompts, text_of
from tests.support.batch_server import ImageBatches, JudgeBatches
from tests.support.checkout import (
    EDITS,
    add_benchmark,
    make_checkout,
    needs_driver_env,
    run_eval,
    start_eval,
)
from tests.support.image_server import FAULTS
from tests.support.judge_server import JUDGE_FAULTS
from tests.support.schemas import check_files
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_driver_env


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = make_checkout(tmp_path_factory.mktemp("batches"))
    add_benchmark(checkout, "repeats", "Repeats", REPEATS)
    add_benchmark(checkout, "edits", "Edits", EDITS, task="edit")
    return checkout


@pytest.fixture
def server() -> Iterator[ImageBatches]:
    with ImageBatches() as server:
        yield server
        server.open.set()


@pytest.fixture
def runs(tree: Path, server: ImageBatches) -> Iterator[ApiRuns]:
    yield ApiRuns(tree, server)
    subprocess.run(["rm", "-rf", str(tree / "output"), str(tree / "log")], check=True)


def start(runs: ApiRuns, limit: int = 6) -> subprocess.Popen[str]:
    """``eval.sh`` in a group of processes of its own."""
    words = ["--model_names", "model-a", "--ds_names", "quicktext", "--use_api", "true", "--eval", "false"]
    words += ["--limit", str(limit), "--custom_model_kwargses", "price=0.04", "--batch"]
    return start_eval(runs.checkout, *words, API_KEY=runs.key, BASE_URL=runs.server.base_url)


def kill(runs: ApiRuns, started: subprocess.Popen[str]) -> None:
    """``kill -9`` of the run with all its processes."""
    while left := [pid for pid, _ in runs.commands()]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        started.poll()
        time.sleep(0.05)
    started.communicate()


def paid(server: ImageBatches | JudgeBatches) -> int:
    """The requests that the provider has worked at."""
    return len([request for request in server.requests if request.fault == "ok"])


def states_of(runs: ApiRuns) -> list[Path]:
    """The state files of the batches of images."""
    return [*(runs.checkout / "output/model-a/quicktext/batches").glob("*.json")]


def shown(file: Path) -> str:
    """The path of a file of a cell as messages have it."""
    return f"output/{str(file).partition('/output/')[2]}"


def test_images_come_as_one_batch_of_a_benchmark_at_half_the_price(
    runs: ApiRuns, server: ImageBatches
) -> None:
    """Each repetition of a prompt has an image of its own, and pictures to edit go in the line."""
    benchmarks = ["quicktext", "repeats", "edits"]
    runs.run("--batch", benchmarks=benchmarks, kwargs="price=0.04", limit=6, status=0)
    assert runs.statuses() == runs.statuses(benchmark="repeats") == {"ok": 6}
    assert runs.images_agree()
    of = {batch["metadata"]["cell"].removeprefix("model-a/"): batch for batch in server.batches.values()}
    assert [*sorted(of)] == sorted(benchmarks) and len(server.batches) == 3
    batch = of["quicktext"]
    assert batch["endpoint"] == "/v1/images/generations"
    assert batch["completion_window"] == "24h"
    assert batch["metadata"]["by"] == "ImageEvalKit"
    assert {record["price"] for record in runs.records().values()} == {0.02}
    assert len({record["extra"]["batch"] for record in runs.records().values()}) == 1
    assert {line["body"]["prompt"] for line in server.lines_of(batch)} == set(prompts()[:6])
    assert len({line["custom_id"] for line in server.lines_of(of["repeats"])}) == 6
    assert of["edits"]["endpoint"] == "/v1/images/edits"
    pictures = {line["body"]["images"][0]["image_url"] for line in server.lines_of(of["edits"])}
    assert len(pictures) == 3
    assert all(picture.startswith("data:image/png;base64,") for picture in pictures)
    runs.run("--batch", kwargs="price=0.04", limit=6, status=0)
    assert len(server.batches) == 3
    found = check_files(runs.checkout / "output/model-a/quicktext")
    assert found == {"generation.jsonl", "fingerprints.jsonl"}, "nothing is left to look for"
    assert not (runs.checkout / "output/model-a/quicktext/batches").exists()


@pytest.mark.parametrize("moment", ["create", "collecting"])
def test_who_is_killed_finds_the_batch_again(runs: ApiRuns, server: ImageBatches, moment: str) -> None:
    """While it waits for the reply to a new batch, or reads the results; then with or without --batch."""
    reached, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        go_on.wait()

    if moment == "create":
        server.created, server.hidden = stop, 1
    else:
        server.downloading = stop
    started = start(runs)
    wait_for(reached.is_set)
    kill(runs, started)
    server.created = server.downloading = lambda: None
    go_on.set()
    more = 0 if moment == "create" else 2  # what is in no batch is asked by itself
    runs.run(*["--batch"] * (not more), kwargs="price=0.04", limit=6 + more, status=0)
    assert runs.statuses() == {"ok": 6 + more}
    assert len(server.batches) == 1
    assert paid(server) == 6 + more
    prices = sorted(record["price"] for record in runs.records().values())
    assert prices == [0.02] * 6 + [0.04] * more


def test_ctrl_c_says_what_goes_on_and_the_batch_is_found_with_its_key_in_another_variable(
    runs: ApiRuns, server: ImageBatches
) -> None:
    server.open.clear()
    started = start(runs, limit=3)
    wait_for(lambda: server.polled > 1)
    os.killpg(started.pid, signal.SIGINT)
    told, _ = started.communicate(timeout=LONGEST_WAIT)
    assert started.returncode == 130, told
    assert "batch_1 continues at the provider, and the same command collects it" in told
    assert not runs.all_records(), "nothing failed, and nothing is paid by guess"
    server.open.set()
    [state] = states_of(runs)
    assert check_files(state.parent) == {state.name}
    assert runs.key not in state.read_text()
    env = {"OTHER_API_KEY": runs.key, "API_KEY": "sk-wrong-4711"}
    runs.run("--batch", kwargs="price=0.04,api_key_env=OTHER_API_KEY", limit=3, env=env, status=0)
    assert len(server.batches) == 1


def test_an_image_without_a_result_line_is_counted_and_bought_again_only_by_hand(
    runs: ApiRuns, server: ImageBatches
) -> None:
    server.dropped = 1
    run = runs.run("--batch", "--max_cost", "0.1", kwargs="price=0.04,max_outage=2", limit=4, status=3)
    assert runs.statuses() == {"ok": 3, "failed": 1}
    [lost] = [record for record in runs.records().values() if record["status"] == "failed"]
    assert (lost["maybe_billed"], lost["price"], lost["attempts"]) == (1, 0.02, 1)
    [state] = states_of(runs)
    assert f"it is not sent again: delete {shown(state)} to buy its requests again" in message(run, "$0.08")
    server.dropped = 0
    assert runs.run(kwargs="price=0.04", limit=4).returncode == 3
    assert paid(server) == 4
    assert [record["price"] for record in runs.all_records() if record["status"] == "failed"] == [0.02, None]


def test_a_state_file_that_cannot_be_read_is_not_bought_again(tmp_path: Path) -> None:
    (tmp_path / "1f.json").write_text('{"id": "1f", "state": "crea')
    with pytest.raises(CellFailure, match=r"1f\.json.*restore it, or delete it to buy them again"):
        Batches(tmp_path, "m/x", submits=True)


def test_max_cost_holds_the_price_of_a_whole_batch(runs: ApiRuns, server: ImageBatches) -> None:
    run = runs.run("--batch", "--max_cost", "0.07", kwargs="price=0.04", limit=6, status=3)
    assert "--max_cost 0.07 is used up" in text_of(run)
    assert [len(server.lines_of(batch)) for batch in server.batches.values()] == [3]
    assert runs.statuses() == {"ok": 3}


TWO_ROUNDS = """
from imageevalkit.store.results import Metric
from imageevalkit.store.results import Score
from imageevalkit.benchmark.contract import Benchmark, Sample
from imageevalkit.benchmark.question import ask


class TwoRounds(Benchmark):
    name, version, judge, headline = "rounds", "1", "openai:org/judge", ("score",)
    prompts = {}

    def samples(self):
        return [Sample(f"images/{i}.png", f"prompt {i}", i) for i in range(3)]

    def questions(self, item, image, answers):
        yield ask("first", item.prompt, image, max_tokens=8)
        if first := answers.get("first"):
            yield ask("second", f"{item.prompt}: {first.value}?", image, max_tokens=8)

    def parse(self, question, answer):
        return int(answer.text[-1])

    def score(self, item, answers):
        return Score({"score": answers["second"].value})

    def metrics(self, scores):
        values = [score.values["score"] for score in scores]
        return {"score": Metric(sum(values) / len(values) if values else None, len(values))}
"""


@pytest.fixture
def judge(tree: Path) -> Iterator[JudgeBatches]:
    folder = tree / "benchmarks/rounds"
    folder.mkdir(exist_ok=True)
    (folder / "benchmark.py").write_text(TWO_ROUNDS)
    script = tree / "eval/rounds.sh"
    if not script.is_symlink():
        script.symlink_to("quicktext.sh")
    with JudgeBatches() as server:
        yield server
        server.open.set()
    subprocess.run(["rm", "-rf", str(tree / "output"), str(tree / "log")], check=True)


def asking(judge: JudgeBatches) -> list[str]:
    price = 'price={"text_input":1000,"text_output":1000}'
    return [
        *["--model_names", "reference-typeset", "--ds_names", "rounds", "--batch", "--judge_repeats", "2"],
        *["--custom_model_kwargses", "width=64,height=64"],
        *["--judge_kwargs", f"base_url={judge.base_url},{price}"],
    ]


def judged_for_half(tree: Path) -> int:
    """How many questions were answered, each at half the price."""
    folder = tree / "output/reference-typeset/rounds"
    records = [json.loads(line) for line in (folder / "judgements.jsonl").read_text().splitlines()]
    assert json.loads((folder / "result.json").read_text())["coverage"]["judged"] == 3
    for record in records:
        assert record["usd"] == pytest.approx(sum(record["tokens"].values()) * 1000 / 1e6 / 2)
    return len(records)


def test_a_judge_is_asked_in_a_batch_for_each_round_and_a_sample_again_in_one_of_its_own(
    tree: Path, judge: JudgeBatches
) -> None:
    run_eval(tree, *asking(judge), API_KEY="sk-judge-4711-key", status=0)
    assert judged_for_half(tree) == 6
    assert [len(judge.lines_of(batch)) for batch in judge.batches.values()] == [3, 3, 2]
    assert {batch["metadata"]["cell"] for batch in judge.batches.values()} == {"reference-typeset/rounds"}
    result = json.loads((tree / "output/reference-typeset/rounds/result.json").read_text())
    assert result["noise"]["repeated"] == 2


def question(words: str) -> Question:
    return Question(words, (Message("user", (words,)),), Sampling(8), item="1")


Batched = Callable[..., ApiJudge]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the batches of :func:`batched` are on record."""
    return tmp_path / "model/bench/judge_batches"


@pytest.fixture
def batched(judge: JudgeBatches, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Batched:
    """A judge of a new run, with these settings, which asks in batches."""
    monkeypatch.setenv("API_KEY", "sk-judge-4711-key")
    monkeypatch.setenv("BASE_URL", judge.base_url)
    options = JudgeOptions(sender="batch", sender_folder=str(folder))
    return lambda **kwargs: ApiJudge(JudgeChoice("m-1", JudgeSetting("openai", "m-1", kwargs)), options, {})


QUESTIONS = [question(words) for words in ("first", "second", "third", "fourth")]


@pytest.mark.parametrize(
    "fault",
    [
        {"id_last": True},
        {"counts": False, "late": 2},
        {"cut": 1},
        {"gone": 1},
        {"broken": True, "hidden": 2},
    ],
    ids=str,
)
def test_what_a_provider_does_not_show_at_first_is_waited_for(
    judge: JudgeBatches, batched: Batched, folder: Path, fault: dict[str, Any]
) -> None:
    for name, value in fault.items():
        setattr(judge, name, value)
    answers = list(batched().ask(QUESTIONS))
    assert [answer.text for answer in answers] == ["1"] * 4, answers
    assert len(judge.batches) == 1
    assert paid(judge) == 4
    assert not folder.exists()


def test_a_question_without_a_result_line_is_paid_for_once(
    judge: JudgeBatches, batched: Batched, folder: Path
) -> None:
    judge.dropped, judge.counts = 1, False
    price = {"text_input": 1000, "text_output": 1000}
    [lost] = [answer for answer in batched(max_outage=2, price=price).ask(QUESTIONS) if answer.error]
    assert "batch_1 (completed) has no result for it, but may have billed it" in lost.error
    assert lost.usd is not None and lost.attempts == 1
    judge.dropped = 0
    [again] = batched(price=price).ask([lost.question])
    assert again.error == lost.error
    assert again.usd is None, "it is counted once"
    [state] = folder.glob("*")
    assert f"delete {os.path.relpath(state)} to buy its requests again" in again.error
    state.unlink()
    [answer] = batched().ask([lost.question])
    assert (answer.text, answer.batch) == ("1", "batch_2")


def test_what_a_provider_never_shows_is_looked_for_by_the_next_run(
    judge: JudgeBatches, batched: Batched, folder: Path
) -> None:
    judge.broken, judge.hidden = True, 99
    left = list(QUESTIONS)
    with pytest.raises(JudgeOnHold) as told:
        for answer in batched(max_outage=2).ask(QUESTIONS):
            left.remove(answer.question)
    [state] = folder.glob("*.json")
    assert (
        f"the same command checks again, or delete {os.path.relpath(state)} to buy its requests again"
        in str(told.value)
    )
    assert len(judge.batches) == 1
    judge.hidden = 0
    assert [answer.text for answer in batched().ask(left)] == ["1"] * len(left)
    assert len(judge.batches) == 1
    assert paid(judge) == 4


def test_results_that_are_here_need_no_provider(judge: JudgeBatches, batched: Batched) -> None:
    answers = batched().ask(QUESTIONS)
    next(answers)
    answers.close()
    judge.files.clear()
    judge.batches.clear()
    assert [answer.text for answer in batched().ask(QUESTIONS)] == ["1"] * 4


def test_the_state_file_is_written_before_and_after_each_step(
    judge: JudgeBatches, batched: Batched, folder: Path
) -> None:
    seen = {}

    def look(step: str) -> Callable[[], None]:
        return lambda: seen.update({step: [json.loads(file.read_text()) for file in folder.glob("*.json")]})

    judge.uploaded, judge.created, judge.downloading = map(look, ("upload", "create", "download"))
    next(answers := batched().ask(QUESTIONS))
    look("read")()
    answers.close()
    assert {step: [state["state"] for state in states] for step, states in seen.items()} == {
        "upload": ["uploading"],
        "create": ["creating"],
        "download": ["finished"],
        "read": ["downloaded"],
    }
    assert seen["create"][0]["file"] == "file-1"
    [finished] = seen["download"]
    assert (finished["batch"], finished["status"], finished["results"]) == (
        "batch_1",
        "completed",
        ["file-2"],
    )


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("cancelled", "batch_1 was cancelled at the provider"),
        ("failed", "batch_1 has to wait for others: token_limit_exceeded.*the same command"),
    ],
)
def test_a_batch_that_did_not_run_is_on_hold(
    judge: JudgeBatches, batched: Batched, end: str, says: str
) -> None:
    judge.ends, judge.error = [end, "completed"], "token_limit_exceeded"
    with pytest.raises(JudgeOnHold, match=says):
        list(batched().ask(QUESTIONS))
    assert {answer.batch for answer in batched().ask(QUESTIONS)} == {"batch_2"}


def test_the_rest_of_an_expired_batch_goes_again(judge: JudgeBatches, batched: Batched) -> None:
    judge.ends, judge.done = ["expired", "completed"], 2
    assert [answer.text for answer in batched().ask(QUESTIONS)] == ["1"] * 4
    assert [len(judge.lines_of(batch)) for batch in judge.batches.values()] == [4, 2]
    assert paid(judge) == 4


def test_a_failed_line_goes_again_and_a_refusal_is_final(
    judge: JudgeBatches, batched: Batched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JudgeBatches, "faults", {**JUDGE_FAULTS, "refuse": FAULTS["refuse"]})
    judge.script("first", "500", "ok")
    judge.script("second", "refuse")
    found = {answer.question.name: answer for answer in batched().ask(QUESTIONS)}
    assert [name for name, answer in found.items() if answer.refused] == ["second"]
    assert {name: answer.attempts for name, answer in found.items() if answer.attempts > 1} == {"first": 2}
    assert [len(judge.lines_of(batch)) for batch in judge.batches.values()] == [4, 1]


@pytest.mark.parametrize("how", ["missing", "not accepted"])
def test_who_takes_no_batch_is_told_so(judge: JudgeBatches, batched: Batched, how: str) -> None:
    if how == "not accepted":
        judge.ends, says = ["failed"], "batch_1 was not accepted: model_not_supported"
    else:
        setattr(judge, how, True)
        says = "has no Batch API for this model: leave out --batch"
    with pytest.raises(JudgeUnusable, match=says) as told:
        list(batched().ask(QUESTIONS))
    assert "check the model id" not in str(told.value)
    assert paid(judge) == 0


def test_an_empty_reply_is_paid_for_once(
    judge: JudgeBatches, batched: Batched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JudgeBatches, "faults", {"ok": JUDGE_FAULTS["unended"]})
    (answer,) = batched().ask([question("first")])
    assert "the reply is empty" in answer.error
    assert len(judge.batches) == 1
