"""Issue 3's promises, each through bash eval.sh against a real local server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

from tests.support.api_runs import ApiRuns, message, prompts, text_of
from tests.support.checkout import (
    MANY,
    REPO,
    add_benchmark,
    add_model,
    needs_driver_env,
)
from tests.support.image_server import REFUSAL_WORDS, ImageServer, Received, random_faults

pytestmark = needs_driver_env

OTHER_KEY = "sk-other-0815-key"


# Concurrency


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


def test_all_cells_of_a_run_share_one_limiter(api: ApiRuns) -> None:
    """Among them those of a class with a plain ``generate``, which runs in threads with an instance each."""
    log = api.checkout / "calls"
    add_benchmark(api.checkout, "many", "Many", MANY)
    add_model(api.checkout, "sync-client", "SyncClient", SYNC_CLIENT, api=True)
    api.server.together = 5
    models = ["model-a", "sync-client"]
    api.run(
        models=models, benchmarks=["quicktext", "many"], kwargs=f';log="{log}"', limit=10, workers=5, status=0
    )
    for model in models:
        assert api.statuses(model, "quicktext") == api.statuses(model, "many") == {"ok": 10}
    assert api.server.max_in_flight == 5
    calls = [line.split() for line in log.read_text().splitlines()]
    assert len(calls) == 20 and len({pid for _, _, pid in calls}) == 1
    instances = {instance for instance, _, _ in calls}
    assert len(instances) == len({(instance, thread) for instance, thread, _ in calls}) > 1


# Classes that need a package that the driver does not have

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


def test_api_models_with_an_environment_of_their_own_run_in_a_worker_each(api: ApiRuns) -> None:
    """One of them dies once, which fails no model."""
    codes = {"Sync": ELSEWHERE, "Async": ASYNC_ELSEWHERE, "Dying": DYING_ELSEWHERE}
    names = [name.lower() for name in codes]
    for name, code in codes.items():
        add_model(api.checkout, name.lower(), f"{name}Client", code, api=True)
    lines = [f"INFER_ENV_MAP['{name}']='{sys.prefix}'\n" for name in names]
    (api.checkout / "config.local.sh").write_text("".join(lines))
    parents: set[int] = set()

    def look(request: Received, attempt: int) -> str:
        parents.update(api.generate_processes())
        return "ok"

    api.server.choose, api.server.latency = look, 0.05
    logs = [f'log="{api.checkout / name}"' for name in names]
    api.run(models=[*names, "model-a"], kwargs=";".join([*logs, ""]), limit=16, workers=4, status=0)
    assert {job["attempts"] for job in api.generate_jobs()} == {1}
    assert api.server.max_in_flight <= 4, "as many calls at once as --num_workers"
    for name in (*names, "model-a"):
        assert api.statuses(name) == {"ok": 16}
    for name in ("sync", "async"):
        calls = [line.split() for line in (api.checkout / name).read_text().splitlines()]
        assert len(calls) == 16
        (worker,) = {int(pid) for _, _, pid in calls}
        assert parents and worker not in parents, "its class is not loaded in the driver's environment"
        threads = {thread for _, thread, _ in calls}
        assert len(threads) > 1
        instances = {instance for instance, _, _ in calls}
        assert len(instances) == (1 if name == "async" else len(threads))


# Two gateways


def test_two_gateways_in_one_run_see_only_their_own_key_and_nobody_else_does(api: ApiRuns) -> None:
    """A key of the environment comes before that of the file; ps, logs and results show none."""
    token = "hf_never-to-be-seen-4711"
    (api.checkout / "config.local.sh").write_text(
        f'OTHER_API_KEY="{OTHER_KEY}"\nAPI_KEY="sk-outdated-9999-key"\nHF_TOKEN="{token}"\n'
    )
    commands: set[bytes] = set()

    def look(request: Received, attempt: int) -> str:
        shown = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, check=True).stdout
        commands.update(shown.splitlines())
        return "ok"

    with ImageServer() as other:
        api.server.choose = other.choose = look
        kwargs = f";base_url={other.base_url},api_key_env=OTHER_API_KEY"
        run = api.run("--eval", "true", models=["model-a", "model-b"], kwargs=kwargs)
        keys = [{r.headers["authorization"] for r in server.requests} for server in (api.server, other)]
        assert (len(api.server.requests), len(other.requests)) == (6, 6)
    assert run.returncode == 0, text_of(run)
    assert keys == [{f"Bearer {api.key}"}, {f"Bearer {OTHER_KEY}"}]
    assert any(b"infer/generate.py" in line for line in commands), "ps saw the generate job"
    for secret in (api.key, OTHER_KEY, "sk-outdated-9999-key", token):
        assert not [line for line in commands if secret.encode() in line]
        assert secret not in text_of(run)
        assert not api.files_with(secret)
    command = ["git", "check-ignore", "config.local.sh", "output", "log"]
    ignored = subprocess.run(command, cwd=REPO, check=False)
    assert ignored.returncode == 0, "git ignores where secrets and results are"


# Money


def test_max_cost_counts_what_was_spent_before_a_crash_and_goes_on_with_more(api: ApiRuns) -> None:
    killed: list[int] = []

    def choose(request: Received, attempt: int) -> str:
        if len(api.server.requests) >= 12 and not killed:
            killed.extend(api.generate_processes())
            os.kill(killed[0], signal.SIGKILL)
        return "ok"

    api.server.choose, api.server.latency = choose, 0.05
    run = api.run("--max_cost", "0.2", kwargs="price=0.01", limit=40, status=3)
    assert len(api.server.requests) <= 20, "what the killed process had in flight may be billed, too"
    made = api.statuses()["ok"]
    assert api.statuses() == {"ok": made}, "an item that was not sent has not failed"
    assert made >= 20 - 2 * 4
    assert "--max_cost 0.2 is used up: $0.20 spent" in message(run, "--max_cost")
    asked = len(api.server.requests)
    assert api.run("--max_cost", "1", kwargs="price=0.01", limit=40).returncode == 0
    assert api.statuses() == {"ok": 40}
    assert len(api.server.requests) == asked + 40 - made, "nothing that is ok is asked for again"


def test_requests_that_may_have_been_billed_are_counted(api: ApiRuns) -> None:
    scripts = [("cut_short", "ok"), ("slow", "502_html", "ok"), ("429", "500", "ok"), ("cut_short",)]
    for prompt, script in zip(prompts(), scripts, strict=False):
        api.server.script(prompt, *script)
    run = api.run(kwargs="price=0.01,timeout=0.7,max_attempts=3,backoff=0.01", limit=5, status=3)
    billed = [(api.of_prompt(n)["maybe_billed"], round(api.of_prompt(n)["price"], 4)) for n in range(5)]
    # what a 429 or 500 answers is not billed; a reply that was lost may be
    assert billed == [(1, 0.02), (2, 0.03), (0, 0.01), (3, 0.03), (0, 0.01)]
    assert [api.of_prompt(n)["status"] for n in range(5)] == ["ok", "ok", "ok", "failed", "ok"]
    assert "4 of 5 images, $0.10, 6 lost replies by estimate, 1 failed" in message(run, "lost replies")


# Failures


def test_every_fault_ends_ok_refused_or_failed_and_resume_asks_only_for_failed(api: ApiRuns) -> None:
    (api.checkout / "config.local.sh").write_text("GENERATE_BLANK_IMAGE_ON_ERROR=true\n")
    faults = {
        0: ("429", "429", "ok"),
        1: ("500", "ok"),
        2: ("reset", "ok"),
        3: ("refuse",),
        4: ("garbage", "ok"),
        5: ("truncated", "ok"),
        6: ("html", "ok"),
        7: ("error200", "ok"),
        8: ("garbage",),
        9: ("url",),
    }
    for number, script in faults.items():
        api.server.script(prompts()[number], *script)

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        kwargs = "size=256x256,quality=low,backoff=0.05"
        ended = api.run(*more, kwargs=kwargs, limit=20, workers=8)
        assert ended.returncode == (0 if "--retry_refused" in more else 3), text_of(ended)
        return ended

    run("--eval", "true")
    assert api.statuses() == {"ok": 18, "refused": 1, "failed": 1}
    refused = api.of_prompt(3)
    assert refused["error"] == {"class": "Refused", "text": REFUSAL_WORDS}
    assert (refused["attempts"], refused["placeholder"]) == (1, False)
    assert "does not decode" in api.of_prompt(8)["error"]["text"]
    assert not any(one["seed_honoured"] for one in api.records().values() if one["status"] == "ok")
    result = json.loads((api.checkout / "output/model-a/quicktext/result.json").read_text())
    counts = [result["coverage"][name] for name in ("generated", "refused", "blank")]
    assert (counts, result["headline"]) == ([18, 1, 1], []), "a refusal leaves no blank image"

    asked_before = len(api.server.requests)
    api.server.script(prompts()[8], "ok")
    assert "1 refused" in message(run(), "--retry_refused")
    assert len(api.server.requests) == asked_before + 1
    api.server.script(prompts()[3], "ok")
    run("--retry_refused")
    assert len(api.server.requests) == asked_before + 2
    assert api.statuses() == {"ok": 20}
    assert api.images_agree()


# Outages and crashes


def test_an_outage_in_the_middle_is_sat_out(api: ApiRuns) -> None:
    seconds = 3.4  # the third question, after 3.5 to 7 s, finds the endpoint back
    down_until = 0.0

    def choose(request: Received, attempt: int) -> str:
        nonlocal down_until
        if not down_until and len(api.server.requests) >= 10:
            down_until = time.monotonic() + seconds
            threading.Thread(target=api.server.close_port, args=(seconds,)).start()
        return "reset" if time.monotonic() < down_until else "ok"

    api.server.choose = choose
    api.server.latency = 0.05
    # an item's own attempts would end long before the outage
    api.run(kwargs="max_attempts=3,backoff=0.3", limit=30, status=0)
    assert down_until, "it was down"
    assert api.statuses() == {"ok": 30}
    assert len(api.answers()) == 30
    assert set(api.answers().values()) == {1}, "no item is made twice"
    assert api.images_agree()


def test_kill_9_among_faults_loses_nothing(api: ApiRuns) -> None:
    """Twice the job is started again by itself; a third kill ends the run, and the command goes on from there."""
    kills = 3
    add_benchmark(api.checkout, "many", "Many", MANY)
    faults = random_faults([(0.05, "429"), (0.02, "500"), (0.01, "reset")], [], seed=8)
    killed: list[int] = []

    def choose(request: Received, attempt: int) -> str:
        if len(api.server.requests) >= 15 * (len(killed) + 1) and len(killed) < kills:
            (victim,) = api.generate_processes()
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
        return str(faults(request, attempt))

    api.server.choose = choose
    api.server.latency = 0.02
    run = api.run(kwargs="backoff=0.05", benchmarks=["many"], limit=60)
    assert len(set(killed)) == kills
    assert run.returncode == 1, text_of(run)
    run = api.run(kwargs="backoff=0.05", benchmarks=["many"], limit=60, status=0)
    assert api.statuses(benchmark="many") == {"ok": 60}
    assert api.images_agree(benchmark="many")
    made = Counter(record["item"] for record in api.all_records(benchmark="many") if record["status"] == "ok")
    assert set(made.values()) == {1}, "an item that is recorded is never made again"
    # asked twice: only what was in flight, or answered and not yet on the disk, when the process was killed
    assert api.answers().total() - 60 <= kills * 2 * 4
