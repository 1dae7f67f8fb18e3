"""Models and benchmarks whose code does what ends a process: each is told by its own words, all others complete."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.api_runs import ApiRuns, message, prompts, text_of
from tests.support.checkout import (
    add_benchmark,
    add_model,
    environ,
    find_no_text,
    make_checkout,
    needs_driver_env,
)
from tests.support.image_server import ImageServer, Received

pytestmark = needs_driver_env

HOSTILE = """
import asyncio, os, signal, sys
from imageevalkit.generate.model import ImageModel
from PIL import Image

class Ended(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        sys.exit(7)

{at_import}

class Hostile(ImageModel):
    is_async = {asynchronous}

    def __init__(self, model_path, number=0):
        self.model_name = "hostile"
        {at_load}

    def holdup(self):
        {at_holdup}
        return ""

    {kind}def {name}(self, prompt, seed=42):
        {at_generate}
        return Image.new("RGB", (8, 8))
    {generate}
"""
AND_GENERATE = """
    def generate(self, prompt, seed=42):
        raise NotImplementedError
"""


def hostile(checkout: Path, name: str, does: Mapping[str, str], api: bool = True) -> None:
    """Add a model that ``does`` something at_import, at_load, at_holdup, at_generate or in_async."""
    asynchronous = "in_async" in does
    code = HOSTILE.format(
        at_import=does.get("at_import", ""),
        at_load=does.get("at_load", "pass"),
        at_holdup=does.get("at_holdup", "pass"),
        at_generate=does.get("at_generate") or does.get("in_async") or "pass",
        asynchronous=asynchronous,
        kind="async " * asynchronous,
        name="generate_async" if asynchronous else "generate",
        generate=AND_GENERATE * asynchronous,
    )
    add_model(checkout, name, "Hostile", code, api=api or None)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiRuns]:
    with ImageServer() as server:
        yield ApiRuns(find_no_text(make_checkout(tmp_path / "checkout")), server)


def test_what_one_class_raises_is_its_own_failure(api: ApiRuns) -> None:
    does = {
        "exits-at-import": (
            {"at_import": "sys.exit(3)"},
            "model does not load: CodeExit: its code called exit(3)",
        ),
        "exits-at-load": ({"at_load": "sys.exit('no licence')"}, "its code called exit('no licence')"),
        "exits": ({"at_generate": "exit()"}, "its code called exit()"),
        "exits-well": ({"at_generate": "sys.exit(0)"}, "its code called exit(0)"),
        "interrupts": ({"at_generate": "raise KeyboardInterrupt"}, "its code raised KeyboardInterrupt"),
        "ends": ({"at_generate": "raise Ended('all over')"}, "its code raised Ended: all over"),
        "stops": ({"at_generate": "raise StopIteration"}, "its code raised StopIteration"),
        "cancels": ({"at_generate": "raise asyncio.CancelledError"}, "its code raised CancelledError"),
        "says-nothing": ({"at_generate": "raise Mute"}, "Mute: Mute (0 of 5 images)"),
        "async-exits": ({"in_async": "sys.exit(4)"}, "its code called exit(4)"),
        "async-interrupts": ({"in_async": "raise KeyboardInterrupt"}, "its code raised KeyboardInterrupt"),
        "async-cancels": ({"in_async": "raise asyncio.CancelledError"}, "its code raised CancelledError"),
        "async-leaves": ({"in_async": "raise GeneratorExit"}, "its code raised GeneratorExit"),
        "exits-beside": (
            {"at_holdup": "sys.exit(5)", "in_async": "await asyncio.sleep(2)"},
            "its code called exit(5)",
        ),
    }
    for name, (what, _) in does.items():
        hostile(api.checkout, name, what)
    api.server.latency = 0.2
    run = api.run(models=["model-a", *does, "model-b"], limit=5, workers=2)
    assert run.returncode == 1, text_of(run)
    for name, (_, words) in does.items():
        assert words in told(run, f"{name}/quicktext"), text_of(run)
    for name in ("model-a", "model-b"):
        assert api.statuses(name) == {"ok": 5}
        assert told(run, f"{name}/quicktext").startswith("5 of 5 images"), text_of(run)
    assert {job["attempts"] for job in api.generate_jobs()} == {1}, "nobody's process was ended"
    assert "Traceback" not in text_of(run)


def told(run: subprocess.CompletedProcess[str], cell: str) -> str:
    """Returns the lines below ``cell`` in the table of all cells."""
    lines = run.stdout.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith(f"{cell} "))
    return lines[place + 1].strip()


def test_a_single_item_on_which_a_local_class_exits_fails_alone(api: ApiRuns) -> None:
    hostile(api.checkout, "local", {"at_generate": f"if prompt == {prompts()[3]!r}: sys.exit(6)"}, api=False)
    hostile(api.checkout, "local-unloadable", {"at_load": "raise KeyboardInterrupt"}, api=False)
    run = api.run("--use_api", "false", models=["local", "local-unloadable"], limit=5)
    assert run.returncode == 1, text_of(run)
    records = api.records("local").values()
    failed = [record for record in records if record["status"] == "failed"]
    assert (len(failed), len(records)) == (1, 5)
    assert failed[0]["error"] == {"class": "CodeExit", "text": "its code called exit(6)"}
    assert "model does not load: CodeExit: its code raised KeyboardInterrupt" in told(
        run, "local-unloadable/quicktext"
    )


def test_a_class_that_ends_the_common_process_fails_alone(api: ApiRuns) -> None:
    # 2 and 3 are what a run that was not begun or is incomplete ends with
    ends = {"os._exit(0)": "exit status 0", "os._exit(3)": "exit status 3", "os._exit(2)": "exit status 2"}
    ends["os.kill(os.getpid(), signal.SIGSEGV)"] = "SIGSEGV"
    models = {f"ends-{n}": ended for n, ended in enumerate(ends.values())}
    for n, (name, how) in enumerate(zip(models, ends, strict=True)):
        does = {"at_load": f"print('my last words', flush=True); {how}"} if n % 2 else {"at_generate": how}
        hostile(api.checkout, name, does)
    run = api.run(models=["model-a", *models, "model-b"], limit=4)
    assert run.returncode == 1, text_of(run)
    for name in ("model-a", "model-b"):
        assert api.statuses(name) == {"ok": 4}
        assert told(run, f"{name}/quicktext").startswith("4 of 4 images"), text_of(run)
    for name, ended in models.items():
        assert ended in told(run, f"{name}/quicktext")
    log = next((api.checkout / "log/ends-1").glob("quicktext_generate_*"))
    assert "my last words" in log.read_text()


EXITS = """
import sys

class Exits:
    def __init__(self):
        self.dataset_name, self.dataset_task = "exits", "t2i"

    @property
    def data(self):
        sys.exit("no data today")
"""


def test_a_dataset_that_exits_fails_its_cells_alone(api: ApiRuns) -> None:
    """The dataset exits in a generate job and in a job that copies images made elsewhere."""
    add_benchmark(api.checkout, "exits", "Exits", EXITS)
    both = ["exits", "quicktext"]
    run = api.run(models=["model-a"], benchmarks=both, limit=3)
    assert run.returncode == 1, text_of(run)
    assert "CodeExit: its code called exit('no data today')" in told(run, "model-a/exits")
    assert told(run, "model-a/quicktext").startswith("3 of 3 images")
    taken = api.checkout / "taken"
    for benchmark in both:
        shutil.copytree(api.checkout / "output/model-a/quicktext/images", taken / benchmark)
    run = api.run("--images", str(taken), "--use_api", "false", models=["mine"], benchmarks=both, limit=3)
    assert run.returncode == 1, text_of(run)
    assert "CodeExit: its code called exit('no data today')" in told(run, "mine/exits")
    assert told(run, "mine/quicktext").startswith("3 images of")


RULES = """
from imageevalkit.benchmark.shapes import YesNo


class Rules(YesNo):
    name, version, judge, question = "at-{method}", "1", "openai:m", "Is it {{prompt}}?"

    def {method}(self, *given):
        raise SystemExit(0)
"""


def test_rules_that_exit_are_a_failure_and_no_success(api: ApiRuns) -> None:
    """Before anything is made they block their cells."""
    for method in ("questions", "check", "samples"):
        folder = api.checkout / f"benchmarks/at_{method}"
        folder.mkdir()
        (folder / "benchmark.py").write_text(RULES.format(method=method))
        (folder / "prompts.json").write_text(json.dumps([{"prompt": "a cat"}]))
    run = api.run("--eval", "true", benchmarks=["at-questions", "at-check", "at-samples"])
    assert run.returncode == 1, text_of(run)
    ended = "CodeExit: its code called exit(0)"
    assert f"questions() of item images/00000_0 fails: {ended}" in message(run, "questions()")
    for method in ("check", "samples"):
        assert f"benchmark at-{method}: {method}() fails: {ended}" in text_of(run)
    assert len(api.server.requests) == 1, "one image, of the first"


def test_a_signal_to_a_generating_process_is_no_failure_of_an_item(api: ApiRuns) -> None:
    def choose(request: Received, attempt: int) -> str:
        if len(api.server.requests) == 5:
            os.kill(api.generate_processes()[0], signal.SIGTERM)
        return "ok"

    api.server.choose, api.server.latency = choose, 0.1
    plan = planned(api)
    python = str(api.checkout / ".venv/bin/python")
    ended = subprocess.run(
        [python, "infer/generate.py", "--plan", str(plan), "--job", "generate:model-a"],
        cwd=api.checkout,
        env=environ(api.checkout, BASE_URL=api.server.base_url, API_KEY="EMPTY"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 143, ended.stderr
    assert "Traceback" not in ended.stderr
    lost = [record for record in api.records().values() if record["status"] != "ok"]
    assert all(record["maybe_billed"] for record in lost), "only a request that was under way is on record"
    assert not list(plan.parent.glob("outcomes/*.json")), "what is stopped has not ended"


def planned(api: ApiRuns) -> Path:
    """The plan of a run of two items that has ended, for 24 items."""
    assert api.run(limit=2).returncode == 0
    api.server.requests.clear()
    (path,) = api.checkout.glob("log/runs/*/plan.json")
    plan = json.loads(path.read_text())
    for job in plan["jobs"]:
        job["order"] |= {"limit": 24} if job["stage"] == "generate" else {}
    shutil.rmtree(path.parent / "outcomes")
    path.write_text(json.dumps(plan))
    return path
