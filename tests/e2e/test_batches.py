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

from imageevalkit.api.feed import Feed
from imageevalkit.benchmark.question import JudgeOnHold, Message, Question, Sampling
from imageevalkit.judges.choice import JudgeChoice, JudgeOptions, JudgeSetting
from imageevalkit.judges.client import ApiJudge
from tests.support.api_runs import REPEATS, ApiRuns, message, prompts, text_of
from tests.support.batch_server import ImageBatches, JudgeBatches
from tests.support.checkout import EDITS, add_benchmark, environ, make_checkout, needs_driver_env, run_eval
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


def start(runs: ApiRuns, *more: str, limit: int = 6) -> subprocess.Popen[bytes]:
    words = ["--model_names", "model-a", "--ds_names", "quicktext", "--use_api", "true", "--eval", "false"]
    words += ["--limit", str(limit), "--custom_model_kwargses", "price=0.04", "--batch", *more]
    env = environ(runs.checkout, API_KEY=runs.key, BASE_URL=runs.server.base_url)
    return subprocess.Popen(
        ["bash", str(runs.checkout / "eval.sh"), *words],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(runs: ApiRuns, started: subprocess.Popen[bytes]) -> None:
    """``kill -9`` of the run with all its processes."""
    while left := [pid for pid, _ in runs.commands()]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        started.poll()
        time.sleep(0.05)
    started.wait()


def paid(server: ImageBatches | JudgeBatches) -> int:
    """The requests that the provider has worked at."""
    return len([request for request in server.requests if request.fault == "ok"])


def states_of(runs: ApiRuns) -> list[Path]:
    """The state files of the batches of images."""
    return [*(runs.checkout / "output/model-a/quicktext/batches").glob("*.json")]


def shown(file: Path) -> str:
    """The path of a file of a cell as messages have it."""
    return f"output/{str(file).partition('/output/')[2]}"


def test_images_come_as_one_batch_at_half_the_price(runs: ApiRuns, server: ImageBatches) -> None:
    run = runs.run("--batch", kwargs="price=0.04", limit=6)
    assert run.returncode == 0, text_of(run)
    assert runs.statuses() == {"ok": 6}
    assert runs.images_agree()
    (batch,) = server.batches.values()
    assert batch["endpoint"] == "/v1/images/generations"
    assert batch["completion_window"] == "24h"
    assert batch["metadata"]["by"] == "ImageEvalKit"
    assert batch["metadata"]["cell"] == "model-a/quicktext"
    assert {record["price"] for record in runs.records().values()} == {0.02}
    assert {record["extra"]["batch"] for record in runs.records().values()} == {"batch_1"}
    asked = {line["body"]["prompt"] for line in server.lines_of(batch)}
    assert asked == set(prompts()[:6])
    again = runs.run("--batch", kwargs="price=0.04", limit=6)
    assert again.returncode == 0
    assert len(server.batches) == 1
    found = check_files(runs.checkout / "output/model-a/quicktext")
    assert found == {"generation.jsonl", "fingerprints.jsonl"}, "nothing is left to look for"
    assert not (runs.checkout / "output/model-a/quicktext/batches").exists()


def test_each_repetition_of_a_prompt_has_an_image_of_its_own(runs: ApiRuns, server: ImageBatches) -> None:
    run = runs.run("--batch", benchmarks=["repeats"], limit=12)
    assert run.returncode == 0, text_of(run)
    assert runs.statuses(benchmark="repeats") == {"ok": 12}
    (batch,) = server.batches.values()
    assert len({line["custom_id"] for line in server.lines_of(batch)}) == 12


def test_pictures_to_edit_go_in_the_line(runs: ApiRuns, server: ImageBatches) -> None:
    runs.run("--batch", benchmarks=["edits"], limit=3)
    (batch,) = server.batches.values()
    assert batch["endpoint"] == "/v1/images/edits"
    lines = server.lines_of(batch)
    assert len({line["body"]["images"][0]["image_url"] for line in lines}) == 3
    assert all(line["body"]["images"][0]["image_url"].startswith("data:image/png;base64,") for line in lines)


@pytest.mark.parametrize("moment", ["upload", "create", "polling", "collecting"])
def test_who_is_killed_finds_the_batch_again(runs: ApiRuns, server: ImageBatches, moment: str) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        go_on.wait()

    if moment == "upload":
        server.uploaded = stop
    elif moment == "create":
        server.created, server.hidden = stop, 1
    elif moment == "collecting":
        server.downloading = stop
    else:
        server.open.clear()
    started = start(runs)
    wait_for(lambda: server.polled > 1 if moment == "polling" else reached.is_set())
    kill(runs, started)
    server.uploaded = server.created = server.downloading = lambda: None
    go_on.set()
    server.open.set()
    run = runs.run(*["--batch"] * (moment != "polling"), kwargs="price=0.04", limit=6)  # with or without
    assert run.returncode == 0, text_of(run)
    assert runs.statuses() == {"ok": 6}
    assert len(server.batches) == 1
    assert paid(server) == 6
    assert {record["price"] for record in runs.records().values()} == {0.02}


def test_a_batch_is_found_with_its_key_in_another_variable_only(runs: ApiRuns, server: ImageBatches) -> None:
    server.open.clear()
    started = start(runs, limit=3)
    wait_for(lambda: server.polled)
    kill(runs, started)
    server.open.set()
    [state] = states_of(runs)
    assert check_files(state.parent) == {state.name}
    assert runs.key not in state.read_text()
    kwargs = "price=0.04,api_key_env=OTHER_API_KEY"
    server.gone = 1  # another key does not see the batch
    run = runs.run("--batch", kwargs=kwargs, limit=3, env={"OTHER_API_KEY": "sk-second-4711-key"})
    assert run.returncode == 3, text_of(run)
    assert f"another key or to another endpoint: use that, or delete {shown(state)}" in message(
        run, "use that"
    )
    run = runs.run(
        "--batch", kwargs=kwargs, limit=3, env={"OTHER_API_KEY": runs.key, "API_KEY": "sk-wrong-4711"}
    )
    assert run.returncode == 0, text_of(run)
    assert len(server.batches) == 1


def test_an_image_without_a_result_line_is_counted_and_bought_again_only_by_hand(
    runs: ApiRuns, server: ImageBatches
) -> None:
    server.dropped = 1
    run = runs.run("--batch", "--max_cost", "0.1", kwargs="price=0.04,max_outage=2", limit=4)
    assert run.returncode == 3, text_of(run)
    assert runs.statuses() == {"ok": 3, "failed": 1}
    [lost] = [record for record in runs.records().values() if record["status"] == "failed"]
    assert (lost["maybe_billed"], lost["price"], lost["attempts"]) == (1, 0.02, 1)
    [state] = states_of(runs)
    assert f"it is not sent again: delete {shown(state)} to buy its requests again" in message(run, "$0.08")
    server.dropped = 0
    for words in (["--batch"], []):
        run = runs.run(*words, kwargs="price=0.04", limit=4)
        assert run.returncode == 3, text_of(run)
    assert paid(server) == 4
    assert [record["price"] for record in runs.all_records() if record["status"] == "failed"] == [
        0.02,
        None,
        None,
    ]
    state.unlink()
    assert runs.run("--batch", kwargs="price=0.04", limit=4).returncode == 0
    assert [len(server.lines_of(batch)) for batch in server.batches.values()] == [4, 1]


@pytest.mark.parametrize("damage", ["state", "journal"])
def test_what_cannot_be_read_is_not_bought_again(runs: ApiRuns, server: ImageBatches, damage: str) -> None:
    folder = runs.checkout / "output/model-a/quicktext"
    if damage == "state":
        file, words = folder / "batches/1f.json", "restore it, or delete it to buy them again"
        text = '{"id": "1f", "state": "crea'
    else:  # of an older version
        file, words = (
            folder / "batches.jsonl",
            "collect them with it, or delete this file to buy the rest again",
        )
        text = '\n{"set": "1f", "state": "prepared", "time": 1.5, "lines": ["a"]}\n'
    file.parent.mkdir(parents=True)
    file.write_text(text)
    run = runs.run("--batch", limit=3)
    assert run.returncode == 1
    assert words in message(run, shown(file))
    assert not server.files
    file.unlink()
    assert runs.run("--batch", limit=3).returncode == 0


def test_what_is_in_no_batch_is_asked_by_itself(runs: ApiRuns, server: ImageBatches) -> None:
    server.open.clear()
    started = start(runs, limit=3)
    wait_for(lambda: server.polled)
    kill(runs, started)
    server.open.set()
    run = runs.run(kwargs="price=0.04", limit=5)
    assert run.returncode == 0, text_of(run)
    prices = sorted(record["price"] for record in runs.records().values())
    assert prices == [0.02] * 3 + [0.04] * 2
    assert len(server.batches) == 1


def test_a_line_that_failed_goes_again_and_a_refusal_does_not(runs: ApiRuns, server: ImageBatches) -> None:
    server.script(prompts()[0], "500", "ok")
    server.script(prompts()[1], "refuse")
    run = runs.run("--batch", limit=4)
    assert run.returncode == 3, text_of(run)
    assert runs.statuses() == {"ok": 3, "refused": 1}
    assert [len(server.lines_of(batch)) for batch in server.batches.values()] == [4, 1]
    assert runs.of_prompt(0)["attempts"] == 2
    assert not (runs.checkout / "output/model-a/quicktext/batches").exists(), "nothing is left to look for"


def test_the_rest_of_an_expired_batch_goes_again(runs: ApiRuns, server: ImageBatches) -> None:
    server.ends, server.done = ["expired", "completed"], 2
    run = runs.run("--batch", limit=5)
    assert run.returncode == 0, text_of(run)
    assert [len(server.lines_of(batch)) for batch in server.batches.values()] == [5, 3]
    assert paid(server) == 5


def test_the_rest_of_a_cancelled_batch_waits_for_the_next_command(
    runs: ApiRuns, server: ImageBatches
) -> None:
    server.ends, server.done = ["cancelled", "completed"], 2
    run = runs.run("--batch", limit=5)
    assert run.returncode == 3, text_of(run)
    assert "batch_1 was cancelled at the provider" in message(run, "cancelled")
    assert runs.statuses() == {"ok": 2}
    assert runs.run("--batch", limit=5).returncode == 0
    assert [len(server.lines_of(batch)) for batch in server.batches.values()] == [5, 3]


def test_a_batch_that_is_not_accepted_is_told(runs: ApiRuns, server: ImageBatches) -> None:
    server.ends = ["failed"]
    run = runs.run("--batch", limit=3)
    assert run.returncode == 1
    assert "batch_1 was not accepted: model_not_supported" in message(run, "accepted")
    assert len(server.batches) == 1


def test_a_batch_that_must_wait_for_others_is_on_hold(runs: ApiRuns, server: ImageBatches) -> None:
    server.ends, server.error = ["failed", "completed"], "token_limit_exceeded"
    run = runs.run("--batch", limit=3)
    assert run.returncode == 3
    assert "batch_1 has to wait for others: token_limit_exceeded" in message(run, "the same command")
    assert runs.run("--batch", limit=3).returncode == 0


@pytest.mark.parametrize("how", ["missing", "page", "nameless"])
def test_who_has_no_batch_api_is_told_so(runs: ApiRuns, server: ImageBatches, how: str) -> None:
    setattr(server, how, True)
    run = runs.run("--batch", limit=3)
    assert run.returncode == 1
    told = message(run, "leave out --batch")
    assert "has no Batch API" in told and "check the model id" not in told
    assert runs.run(limit=3).returncode == 0


def test_azure_is_refused_before_anything_starts(runs: ApiRuns) -> None:
    azure = "azure_endpoint=https://name.openai.azure.com,api_version=2025-04-01-preview"
    run = runs.run("--batch", kwargs=azure)
    assert run.returncode == 2
    assert "leave out --batch" in text_of(run)


def test_max_cost_holds_the_price_of_a_whole_batch(runs: ApiRuns, server: ImageBatches) -> None:
    run = runs.run("--batch", "--max_cost", "0.07", kwargs="price=0.04", limit=6)
    assert run.returncode == 3, text_of(run)
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


def asking(judge: JudgeBatches, *more: str) -> list[str]:
    price = 'price={"text_input":1000,"text_output":1000}'
    return [
        *["--model_names", "reference-typeset", "--ds_names", "rounds"],
        *["--custom_model_kwargses", "width=64,height=64"],
        *["--judge_kwargs", f"base_url={judge.base_url},{price}", *more],
    ]


def judged_for_half(tree: Path) -> int:
    """How many questions were answered, each at half the price."""
    folder = tree / "output/reference-typeset/rounds"
    records = [json.loads(line) for line in (folder / "judgements.jsonl").read_text().splitlines()]
    assert json.loads((folder / "result.json").read_text())["coverage"]["judged"] == 3
    for record in records:
        assert record["usd"] == pytest.approx(sum(record["tokens"].values()) * 1000 / 1e6 / 2)
    return len(records)


def test_a_judge_is_asked_in_a_batch_for_each_round(tree: Path, judge: JudgeBatches) -> None:
    run = run_eval(tree, *asking(judge, "--batch"), API_KEY="sk-judge-4711-key")
    assert run.returncode == 0, text_of(run)
    assert judged_for_half(tree) == 6
    assert [len(judge.lines_of(batch)) for batch in judge.batches.values()] == [3, 3]
    assert {batch["metadata"]["cell"] for batch in judge.batches.values()} == {"reference-typeset/rounds"}


def test_a_sample_is_asked_again_in_a_batch_of_its_own_and_probes_at_once(
    tree: Path, judge: JudgeBatches
) -> None:
    words = asking(judge, "--batch", "--judge_repeats", "2")
    run = run_eval(tree, *words, API_KEY="sk-judge-4711-key")
    assert run.returncode == 0, text_of(run)
    assert judged_for_half(tree) == 6
    assert [len(judge.lines_of(batch)) for batch in judge.batches.values()] == [3, 3, 2]
    assert (
        json.loads((tree / "output/reference-typeset/rounds/result.json").read_text())["noise"]["repeated"]
        == 2
    )
    assert run_eval(tree, *words, API_KEY="sk-judge-4711-key").returncode == 0
    assert [len(judge.lines_of(batch)) for batch in judge.batches.values()] == [3, 3, 2, 2]
    [probes] = (tree / "output/judges").glob("*/*/probes.jsonl")
    assert len(probes.read_text().splitlines()) == 3 * 18


def test_a_judge_without_a_batch_api_is_told_what_helps(tree: Path, judge: JudgeBatches) -> None:
    judge.missing = True
    run = run_eval(tree, *asking(judge, "--batch"), API_KEY="sk-judge-4711-key")
    assert run.returncode == 1
    told = "has no Batch API for this model: leave out --batch (0 of 3 judged; the next run goes on)"
    assert told in run.stdout, text_of(run)


def test_the_answers_of_a_killed_run_are_collected(tree: Path, judge: JudgeBatches) -> None:
    judge.open.clear()
    env = environ(tree, API_KEY="sk-judge-4711-key")
    command = ["bash", str(tree / "eval.sh"), *asking(judge, "--batch")]
    started = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: judge.polled > 1)
    kill(ApiRuns(tree, judge), started)
    judge.open.set()
    run = run_eval(tree, *asking(judge, "--batch"), API_KEY="sk-judge-4711-key")
    assert run.returncode == 0, text_of(run)
    assert judged_for_half(tree) == 6
    assert [len(judge.lines_of(batch)) for batch in judge.batches.values()] == [3, 3]


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
        {"late": 2},
        {"cut": 1},
        {"cut": 1, "counts": False},
        {"gone": 1},
        {"broken": True},
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


@pytest.mark.parametrize("counts", [True, False])
def test_a_question_without_a_result_line_is_paid_for_once(
    judge: JudgeBatches, batched: Batched, folder: Path, counts: bool
) -> None:
    judge.dropped, judge.counts = 1, counts
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


@pytest.mark.parametrize(
    "fault",
    [{"broken": True, "hidden": 99}, {"gone": 99}, {"cut": 99}, {"counts": False, "late": 99}],
    ids=str,
)
def test_what_a_provider_never_shows_is_looked_for_by_the_next_run(
    judge: JudgeBatches, batched: Batched, folder: Path, fault: dict[str, Any]
) -> None:
    for name, value in fault.items():
        setattr(judge, name, value)
    left = list(QUESTIONS)
    with pytest.raises(JudgeOnHold) as told:
        for answer in batched(max_outage=2).ask(QUESTIONS):
            left.remove(answer.question)
    [state] = folder.glob("*.json")
    assert (
        f"the same command looks again, or delete {os.path.relpath(state)} to buy its requests again"
        in str(told.value)
    )
    assert len(judge.batches) == 1
    judge.hidden = judge.gone = judge.cut = judge.late = 0
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


def test_an_answer_that_nobody_has_put_on_record_is_fetched_again(
    judge: JudgeBatches, batched: Batched
) -> None:
    questions = [question(words) for words in ("first", "second", "third")]
    answers = batched().ask(questions)
    next(answers)
    answers.close()  # as whoever dies before it is on record
    again = list(batched().ask(questions))
    assert {answer.question.name: answer.text for answer in again} == {q.name: "1" for q in questions}
    assert {answer.batch for answer in again} == {"batch_1"}
    assert paid(judge) == 3


def test_an_answer_on_record_is_not_given_for_the_next_try(judge: JudgeBatches, batched: Batched) -> None:
    assert [answer.batch for answer in batched().ask([question("first")])] == ["batch_1"]
    assert [answer.batch for answer in batched().ask([question("first")])] == ["batch_2"]


def test_who_asks_when_the_batch_has_been_collected_is_told_too(
    judge: JudgeBatches, batched: Batched
) -> None:
    first, second = question("first"), question("second")
    answers = batched().ask([first, second])
    next(answers)
    answers.close()
    feed = Feed([first])
    following = batched().follow(feed)
    assert next(following).batch == "batch_1"
    feed.put(second)
    feed.close()
    assert [answer.batch for answer in following] == ["batch_1"]
    assert len(judge.batches) == 1


def test_a_judge_whose_batch_was_cancelled_is_on_hold(judge: JudgeBatches, batched: Batched) -> None:
    judge.ends = ["cancelled", "completed"]
    with pytest.raises(JudgeOnHold, match="batch_1 was cancelled at the provider"):
        list(batched().ask([question("first")]))
    assert [answer.batch for answer in batched().ask([question("first")])] == ["batch_2"]


def test_an_empty_reply_is_paid_for_once(
    judge: JudgeBatches, batched: Batched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JudgeBatches, "faults", {"ok": JUDGE_FAULTS["unended"]})
    (answer,) = batched().ask([question("first")])
    assert "the reply is empty" in answer.error
    assert len(judge.batches) == 1


def test_ctrl_c_says_what_goes_on(runs: ApiRuns, server: ImageBatches) -> None:
    server.open.clear()
    words = ["--model_names", "model-a", "--ds_names", "quicktext", "--use_api", "true", "--eval", "false"]
    started = subprocess.Popen(
        ["bash", str(runs.checkout / "eval.sh"), *words, "--limit", "3", "--batch"],
        env=environ(runs.checkout, API_KEY=runs.key, BASE_URL=server.base_url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: server.polled > 1)
    os.killpg(started.pid, signal.SIGINT)
    told, _ = started.communicate(timeout=LONGEST_WAIT)
    assert started.returncode == 130, told
    assert "batch_1 goes on at the provider, and the same command collects it" in told
    assert not runs.all_records(), "nothing failed, and nothing is paid by guess"
    server.open.set()
    assert runs.run(limit=3).returncode == 0
    assert len(server.batches) == 1


def test_the_plan_tells_half_the_price(runs: ApiRuns, server: ImageBatches) -> None:
    run = runs.run("--batch", "--dry_run", kwargs="price=0.04", limit=5)
    assert run.returncode == 0, text_of(run)
    assert "0.10 in batches, at half of the price given" in text_of(run)
    assert not server.files
