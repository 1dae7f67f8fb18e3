"""Issue 3's promises, each through bash eval.sh against a real local server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_runs import REPEATS, ApiRuns, message, prompts, text_of
from tests.support.checkout import MANY, add_benchmark, add_model, make_checkout, needs_driver_env
from tests.support.image_server import REFUSAL_WORDS, ImageServer, Received, random_faults

pytestmark = needs_driver_env

OTHER_KEY = "sk-other-0815-key"
QUICK = "max_attempts=2,backoff=0.01"
ASKED_ONCE = {"too_long", "refuse_200"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "checkout")


@pytest.fixture
def api(checkout: Path) -> Iterator[ApiRuns]:
    with ImageServer() as server:
        yield ApiRuns(checkout, server)


# Concurrency


def test_all_cells_of_a_run_share_one_limiter_in_one_process(api: ApiRuns) -> None:
    add_benchmark(api.checkout, "many", "Many", MANY)
    api.server.together = 5
    processes: list[set[int]] = []

    def look(request: Received, attempt: int) -> str:
        if len(api.server.requests) in (10, 30):
            processes.append(set(api.generate_processes()))
        return "ok"

    api.server.choose = look
    run = api.run(models=["model-a", "model-b"], benchmarks=["quicktext", "many"], limit=10, workers=5)
    assert run.returncode == 0, text_of(run)
    for model in ("model-a", "model-b"):
        assert api.statuses(model, "quicktext") == api.statuses(model, "many") == {"ok": 10}
    assert api.server.max_in_flight == 5
    assert len(processes) == 2
    assert processes[0] == processes[1]
    assert len(processes[0]) == 1
    assert [job["attempts"] for job in api.generate_jobs()] == [1]


def test_requests_per_minute_space_the_starts(api: ApiRuns) -> None:
    run = api.run("--requests_per_minute", "600", limit=12, workers=8)
    assert run.returncode == 0, text_of(run)
    times = [request.time for request in api.server.requests]
    # 1.1 s by the client's clock (test_limiter.py), but what arrives is late, the first one most
    assert times[-1] - times[0] >= 0.7


SYNC_CLIENT = '''
import base64, io, json, os, threading, urllib.request, uuid
from PIL import Image


class SyncClient:
    """An API class written to the extension guide: it knows nothing of event loops or limiters."""

    def __init__(self, model_path, log):
        self.model_name = "sync-client"
        self.name, self.log = uuid.uuid4().hex, log

    def generate(self, prompt, seed=42):
        with open(self.log, "a") as file:
            file.write(f"{self.name} {threading.get_ident()} {os.getpid()}\\n")
        body = json.dumps({"model": "m", "prompt": prompt}).encode()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["API_KEY"]}
        url = os.environ["BASE_URL"] + "/images/generations"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
            data = json.load(reply)["data"][0]["b64_json"]
        return Image.open(io.BytesIO(base64.b64decode(data)))
'''


def test_a_class_with_a_plain_generate_runs_in_threads_with_an_instance_each(api: ApiRuns) -> None:
    log = api.checkout / "calls"
    add_model(api.checkout, "sync-client", "SyncClient", SYNC_CLIENT, api=True)
    api.server.together = 4
    run = api.run(models=["sync-client"], kwargs=f'log="{log}"', limit=16, workers=4)
    assert run.returncode == 0, text_of(run)
    assert api.statuses("sync-client") == {"ok": 16}
    assert api.server.max_in_flight == 4
    calls = [line.split() for line in log.read_text().splitlines()]
    assert len(calls) == 16
    assert len({pid for _, _, pid in calls}) == 1
    assert len({(instance, thread) for instance, thread, _ in calls}) == 4
    assert len({instance for instance, _, _ in calls}) == 4, "one thread only uses each instance"


# A class that needs a package that the driver does not have

ELSEWHERE = "import pytest\n" + SYNC_CLIENT
ASYNC_ELSEWHERE = (
    ELSEWHERE
    + """

class AsyncClient(SyncClient):
    async def generate_async(self, prompt, seed=42):
        import asyncio

        return await asyncio.to_thread(self.generate, prompt, seed)
"""
)
DYING_ELSEWHERE = (
    ELSEWHERE
    + """

class DyingClient(SyncClient):
    def generate(self, prompt, seed=42):
        image = super().generate(prompt, seed)
        try:
            os.mkdir(self.log + ".died")
        except FileExistsError:
            return image
        os._exit(3)
"""
)


def run_elsewhere(api: ApiRuns, class_name: str, code: str, *more: str) -> subprocess.CompletedProcess[str]:
    """A run of a model behind the API in the environment of the tests, beside one of ours."""
    add_model(api.checkout, "elsewhere", class_name, code, api=True)
    (api.checkout / "config.local.sh").write_text(f"INFER_ENV_MAP['elsewhere']='{sys.prefix}'\n")
    kwargs = f'log="{api.checkout / "calls"}";'
    return api.run(*more, models=["elsewhere", "model-a"], kwargs=kwargs, limit=16, workers=4)


@pytest.mark.parametrize(
    ("class_name", "code", "instances"), [("SyncClient", ELSEWHERE, 4), ("AsyncClient", ASYNC_ELSEWHERE, 1)]
)
def test_an_api_model_with_an_environment_of_its_own_runs_in_one_worker(
    api: ApiRuns, class_name: str, code: str, instances: int
) -> None:
    api.server.together = 4
    parents: set[int] = set()

    def look(request: Received, attempt: int) -> str:
        parents.update(api.generate_processes())
        return "ok"

    api.server.choose = look
    run = run_elsewhere(api, class_name, code)
    assert run.returncode == 0, text_of(run)
    assert api.statuses("elsewhere") == api.statuses() == {"ok": 16}
    calls = [line.split() for line in (api.checkout / "calls").read_text().splitlines()]
    assert len(calls) == 16
    (worker,) = {int(pid) for _, _, pid in calls}
    assert parents and worker not in parents, "its class is not loaded in the driver's environment"
    assert len({instance for instance, _, _ in calls}) == instances
    assert len({thread for _, thread, _ in calls}) == 4, "as many calls at once as --num_workers"


def test_a_worker_of_an_api_model_that_dies_fails_no_model(api: ApiRuns) -> None:
    run = run_elsewhere(api, "DyingClient", DYING_ELSEWHERE)
    assert run.returncode == 0, text_of(run)
    assert api.statuses("elsewhere") == api.statuses() == {"ok": 16}
    assert {job["attempts"] for job in api.generate_jobs()} == {1}


def test_an_api_model_that_tells_no_cost_cannot_be_bounded(api: ApiRuns) -> None:
    run = run_elsewhere(api, "SyncClient", ELSEWHERE, "--max_cost", "5")
    assert run.returncode != 0
    assert "--max_cost" in text_of(run)
    assert api.statuses("elsewhere") == {}


# Two gateways


@pytest.mark.parametrize("where", ["config.local.sh", "environment"])
def test_two_gateways_in_one_run_see_only_their_own_key(api: ApiRuns, where: str) -> None:
    in_file = OTHER_KEY if where == "config.local.sh" else "sk-outdated-9999-key"
    (api.checkout / "config.local.sh").write_text(f'OTHER_API_KEY="{in_file}"\nAPI_KEY="{in_file}"\n')
    env = {"OTHER_API_KEY": OTHER_KEY} if where == "environment" else {}
    commands: list[bytes] = []
    with ImageServer() as other:

        def look(request: Received, attempt: int) -> str:
            if len(other.requests) == 1:
                commands.extend(word for _, words in api.commands() for word in words)
            return "ok"

        other.choose = look
        kwargs = f";base_url={other.base_url},api_key_env=OTHER_API_KEY"
        run = api.run(models=["model-a", "model-b"], kwargs=kwargs, env=env)
        keys = [{r.headers["authorization"] for r in server.requests} for server in (api.server, other)]
        assert (len(api.server.requests), len(other.requests)) == (6, 6)
    assert run.returncode == 0, text_of(run)
    assert keys == [{f"Bearer {api.key}"}, {f"Bearer {OTHER_KEY}"}]
    assert b"infer/generate.py" in commands
    for secret in (api.key, OTHER_KEY):
        assert not [word for word in commands if secret.encode() in word]
        assert secret not in text_of(run)
        assert not api.files_with(secret)


# Money


def test_max_cost_stops_before_it_is_exceeded_and_goes_on_with_more(api: ApiRuns) -> None:
    api.server.latency = 0.05
    first = api.run("--max_cost", "0.05", kwargs="price=0.01", limit=8)
    assert first.returncode == 3, text_of(first)
    assert len(api.server.requests) == 5
    assert "--max_cost 0.05 is used up: $0.05 spent" in message(first, "--max_cost")
    assert "5 of 8 images" in message(first, "the same command goes on")
    assert api.statuses() == {"ok": 5}, "an item that was not sent has not failed"

    second = api.run("--max_cost", "0.1", kwargs="price=0.01", limit=8)
    assert second.returncode == 0, text_of(second)
    assert api.statuses() == {"ok": 8}
    assert set(api.answers().values()) == {1}, "nothing that is ok is asked for again"
    assert len(api.server.requests) == 8


def test_max_cost_bounds_all_models_of_a_run_together(api: ApiRuns) -> None:
    api.server.latency = 0.05
    run = api.run("--max_cost", "0.05", models=["model-a", "model-b"], kwargs="price=0.01;price=0.02")
    spent = sum(r["price"] for model in ("model-a", "model-b") for r in api.all_records(model))
    assert 0.03 < spent <= 0.05 + 1e-9
    sent = Counter(request.fields["model"] for request in api.server.requests)
    assert sent["model-a"] * 0.01 + sent["model-b"] * 0.02 == pytest.approx(spent)
    assert "--max_cost 0.05 is used up" in run.stdout


def test_a_cell_that_got_no_money_is_incomplete_not_failed(api: ApiRuns) -> None:
    api.server.latency = 0.05
    run = api.run("--max_cost", "0.03", models=["model-a", "model-b"], kwargs="price=0.01;price=0.01")
    assert len(api.server.requests) == 3
    assert run.returncode == 3, text_of(run)


def kill_once(api: ApiRuns, after: int) -> None:
    """Kill the generating process when ``after`` requests have come."""
    killed: list[int] = []

    def choose(request: Received, attempt: int) -> str:
        if len(api.server.requests) >= after and not killed:
            killed.extend(api.generate_processes())
            os.kill(killed[0], signal.SIGKILL)
        return "ok"

    api.server.choose = choose


def test_max_cost_counts_what_was_spent_before_a_crash(api: ApiRuns) -> None:
    kill_once(api, after=12)
    api.server.latency = 0.05
    run = api.run("--max_cost", "0.2", kwargs="price=0.01", limit=40)
    assert run.returncode == 3, text_of(run)
    assert len(api.server.requests) <= 20, "what the killed process had in flight may be billed, too"
    assert api.statuses()["ok"] >= 20 - 2 * 4
    assert "--max_cost 0.2 is used up: $0.20 spent" in message(run, "--max_cost")


def test_attempts_are_told_of_an_item_that_the_budget_stopped(api: ApiRuns) -> None:
    api.server.default = "cut_short"
    api.run("--max_cost", "0.03", kwargs="price=0.01,backoff=0.01", limit=3)
    assert len(api.server.requests) == 3
    records = api.all_records()
    assert sum(record["maybe_billed"] for record in records) == 3
    assert sum(record["attempts"] for record in records) == 3


@pytest.mark.parametrize("kwargs", ["", 'price={"image_output":40}'])
def test_max_cost_without_a_price_is_one_line_before_anything_starts(api: ApiRuns, kwargs: str) -> None:
    run = api.run("--max_cost", "1", kwargs=kwargs)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert "--max_cost needs the price of an image, and that of 'model-a' is not known" in run.stderr
    assert not api.server.requests
    assert not (api.checkout / "log/runs").exists()
    assert not (api.checkout / "output/model-a").exists()


def test_a_price_per_million_tokens_is_applied_to_the_usage_of_replies(api: ApiRuns) -> None:
    run = api.run(kwargs='price={"text_input":5,"image_output":40}', limit=4)
    assert run.returncode == 0, text_of(run)
    each = (12 * 5 + 272 * 40) / 1e6
    assert [record["price"] for record in api.records().values()] == pytest.approx([each] * 4)
    assert {record["tokens"]["output_tokens"] for record in api.records().values()} == {272}
    assert message(run, "4 of 4 images").endswith("$0.044")


def test_requests_that_may_have_been_billed_are_counted(api: ApiRuns) -> None:
    scripts = [("cut_short", "ok"), ("slow", "502_html", "ok"), ("429", "500", "ok"), ("cut_short",)]
    for prompt, script in zip(prompts(), scripts, strict=False):
        api.server.script(prompt, *script)
    run = api.run(kwargs="price=0.01,timeout=0.7,max_attempts=3,backoff=0.01", limit=5)
    assert run.returncode == 3, text_of(run)
    billed = [(api.of_prompt(n)["maybe_billed"], round(api.of_prompt(n)["price"], 4)) for n in range(5)]
    # what a 429 or 500 answers is not billed; a reply that was lost may be
    assert billed == [(1, 0.02), (2, 0.03), (0, 0.01), (3, 0.03), (0, 0.01)]
    assert [api.of_prompt(n)["status"] for n in range(5)] == ["ok", "ok", "ok", "failed", "ok"]
    assert "4 of 5 images, $0.10, 6 lost replies by estimate, 1 failed" in message(run, "lost replies")


# Failures


def test_refusals_are_kept_with_their_words_until_they_are_asked_for_again(api: ApiRuns) -> None:
    (api.checkout / "config.local.sh").write_text("GENERATE_BLANK_IMAGE_ON_ERROR=true\n")
    refused = prompts()[1], prompts()[3]
    for prompt in refused:
        api.server.script(prompt, "refuse")
    first = api.run()
    assert first.returncode == 3, text_of(first)
    assert api.statuses() == {"ok": 4, "refused": 2}
    for number in (1, 3):
        record = api.of_prompt(number)
        assert record["error"] == {"class": "Refused", "text": REFUSAL_WORDS}
        assert (record["attempts"], record["placeholder"]) == (1, False)
    assert api.images_agree(), "a refusal leaves no blank image"

    again = api.run()
    assert again.returncode == 3, text_of(again)
    assert "2 refused" in message(again, "--retry_refused")
    assert len(api.server.requests) == 6, "nothing is sent"

    for prompt in refused:
        api.server.script(prompt, "ok")
    retried = api.run("--retry_refused")
    assert retried.returncode == 0, text_of(retried)
    assert sorted(request.prompt for request in api.server.requests[6:]) == sorted(refused)
    assert api.statuses() == {"ok": 6}
    assert api.images_agree()


ITEM_FAULTS = {
    "garbage": ("ItemFailed", "the image (680 bytes) does not decode"),
    "truncated": ("ItemFailed", "Truncated File Read"),
    "html": ("ItemFailed", "an HTML page, 'Sign in'"),
    "error200": ("ItemFailed", "upstream went away"),
    "too_long": ("ItemFailed", "string too long"),
    "refuse_200": ("Refused", "I cannot create that image"),
}


def test_items_that_fail_are_recorded_as_what_they_are(api: ApiRuns) -> None:
    for number, fault in enumerate(ITEM_FAULTS, 6):
        api.server.script(prompts()[number], fault)
    run = api.run(kwargs=QUICK, limit=12)
    assert run.returncode == 3, text_of(run)
    for number, (fault, (error, words)) in enumerate(ITEM_FAULTS.items(), 6):
        record = api.of_prompt(number)
        assert record["error"]["class"] == error
        assert words in record["error"]["text"]
        # more than its two attempts where the others' faults look like an outage
        assert record["attempts"] == api.answers(fault).total() and (record["attempts"] == 1) == (
            fault in ASKED_ONCE
        )
    assert api.statuses() == {"ok": 6, "failed": 5, "refused": 1}
    assert api.images_agree()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("401", "HTTP 401: Incorrect API key provided"),
        ("404", "HTTP 404: The model does not exist"),
        ("quota", "the account has no quota left"),
        ("redirect", "HTTP 307 redirect to"),
        ("html", "is an HTML page, 'Sign in'; check BASE_URL (it usually ends in /v1)"),
    ],
)
def test_what_no_item_can_succeed_with_stops_the_cell_with_one_line(
    api: ApiRuns, fault: str, words: str
) -> None:
    api.server.default = fault
    api.server.latency = 0.1
    with ImageServer() as elsewhere:
        api.server.redirect_to = elsewhere.base_url
        run = api.run(limit=40, workers=4)
        assert not elsewhere.requests
        assert not elsewhere.file_requests, "no request follows, so no key does"
    assert run.returncode == 1, text_of(run)
    assert len(api.server.requests) <= 4, "those that were in flight, once each"
    assert words in message(run, "model 'model-a'")
    assert "Traceback" not in text_of(run)
    assert api.key not in text_of(run)
    assert not api.files_with(api.key)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, "SSL_CERT_FILE: /nowhere/ca.pem does not exist"),
        ({"API_KEY": "", "OPENAI_API_KEY": "sk-other-0815-key"}, "API_KEY is not set: OPENAI_API_KEY is"),
    ],
)
def test_an_environment_without_a_way_to_the_endpoint_is_one_line_before_anything_starts(
    api: ApiRuns, env: dict[str, str], says: str
) -> None:
    run = api.run(models=["model-a", "model-b"], env=env)
    assert run.returncode == 2
    assert len(run.stderr.splitlines()) == 1 and says in run.stderr
    assert "sk-other" not in text_of(run)
    assert not api.server.requests


def test_replies_without_an_image_stop_the_run_and_are_paid_for(api: ApiRuns) -> None:
    add_benchmark(api.checkout, "many", "Many", MANY)
    api.server.default = "no_image"
    api.server.latency = 0.1
    run = api.run(benchmarks=["quicktext", "many"], kwargs="price=0.01,backoff=0.01", limit=20, workers=4)
    assert run.returncode == 1, text_of(run)
    # two of the first three replies make room for other requests
    assert 3 <= len(api.server.requests) <= 6
    for line in (line for line in run.stdout.splitlines() if "3 replies (HTTP 200)" in line):
        assert "its keys: created, artifacts[0].picture, artifacts[0].seed, meta.id" in line
    records = [record for name in ("quicktext", "many") for record in api.all_records(benchmark=name)]
    assert {record["status"] for record in records} == {"failed"}
    assert sum(record["maybe_billed"] for record in records) == len(api.server.requests)
    assert sum(record["price"] for record in records) == pytest.approx(0.01 * len(api.server.requests))


# Outages and crashes


@pytest.mark.parametrize("how", ["503", "closed port"])
def test_an_outage_in_the_middle_is_sat_out(api: ApiRuns, how: str) -> None:
    seconds = 3.4  # the third question, after 3.5 to 7 s, finds the endpoint back
    down_until = 0.0

    def choose(request: Received, attempt: int) -> str:
        nonlocal down_until
        if not down_until and len(api.server.requests) >= 10:
            down_until = time.monotonic() + seconds
            if how == "closed port":
                threading.Thread(target=api.server.close_port, args=(seconds,)).start()
        if time.monotonic() < down_until:
            return "503" if how == "503" else "reset"
        return "ok"

    api.server.choose = choose
    api.server.latency = 0.05
    # an item's own attempts would end long before the outage
    run = api.run(kwargs="max_attempts=3,backoff=0.3", limit=30)
    assert run.returncode == 0, text_of(run)
    assert down_until, "it was down"
    assert api.statuses() == {"ok": 30}
    assert len(api.answers()) == 30
    assert set(api.answers().values()) == {1}, "no item is made twice"
    assert api.images_agree()


def test_an_outage_that_lasts_ends_the_run_incomplete_and_resumable(api: ApiRuns) -> None:
    api.server.choose = lambda request, attempt: "ok" if len(api.server.requests) < 10 else "503"
    run = api.run(kwargs="max_outage=2,backoff=0.05", limit=20)
    assert run.returncode == 3, text_of(run)
    line = message(run, "the endpoint has been down")
    assert "for 2 s the endpoint has been down: HTTP 503: Service Unavailable" in line
    assert line.endswith("the same command goes on from here")
    assert api.statuses()["ok"] == 10
    assert api.statuses().get("failed", 0) == 0, "no item is to blame"

    api.server.choose = lambda request, attempt: "ok"
    assert api.run(kwargs="max_outage=2,backoff=0.05", limit=20).returncode == 0
    assert api.statuses() == {"ok": 20}
    assert set(api.answers().values()) == {1}


def test_kill_9_among_faults_loses_nothing(api: ApiRuns) -> None:
    """Twice the job is started again by itself; a third kill ends the run, and the command goes on from there."""
    kills = 3
    add_benchmark(api.checkout, "many", "Many", MANY)
    faults = random_faults([(0.05, "429"), (0.02, "500"), (0.01, "reset")], [], seed=8)
    killed: list[int] = []

    def choose(request: Received, attempt: int) -> str:
        if len(api.server.requests) >= 30 * (len(killed) + 1) and len(killed) < kills:
            (victim,) = api.generate_processes()
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
        return str(faults(request, attempt))

    api.server.choose = choose
    api.server.latency = 0.02
    run = api.run(kwargs="backoff=0.05", benchmarks=["many"], limit=120)
    assert len(set(killed)) == kills
    assert run.returncode == 1, text_of(run)
    run = api.run(kwargs="backoff=0.05", benchmarks=["many"], limit=120)
    assert run.returncode == 0, text_of(run)
    assert api.statuses(benchmark="many") == {"ok": 120}
    assert api.images_agree(benchmark="many")
    assert {request.fault for request in api.server.requests} == {"ok", "429", "500", "reset"}
    made = Counter(record["item"] for record in api.all_records(benchmark="many") if record["status"] == "ok")
    assert set(made.values()) == {1}, "an item that is recorded is never made again"
    # asked twice: only what was in flight, or answered and not yet on the disk, when the process was killed
    assert api.answers().total() - 120 <= kills * 2 * 4


# Seeds


@pytest.mark.parametrize("send", [True, False])
def test_repetitions_stay_distinguishable_and_seeds_are_told_as_they_were_sent(
    api: ApiRuns, send: bool
) -> None:
    add_benchmark(api.checkout, "repeats", "Repeats", REPEATS)
    run = api.run(kwargs="send_seed=true" * send, benchmarks=["repeats"], limit=12)
    assert run.returncode == 0, text_of(run)
    records = api.records(benchmark="repeats").values()
    assert len(records) == 12
    assert len({record["path"] for record in records}) == 12
    assert {(record["prompt"], record["seed"]) for record in records} == {
        (f"prompt {number}", 42 + seed) for number in range(3) for seed in (1, 2, 3, 4)
    }
    assert {record["seed_honoured"] for record in records} == {send}
    requests = api.server.requests
    assert len({request.headers["x-client-request-id"] for request in requests}) == len(requests) == 12
    sent = Counter(request.fields.get("seed") for request in requests)
    assert sent == ({43: 3, 44: 3, 45: 3, 46: 3} if send else {None: 12})
