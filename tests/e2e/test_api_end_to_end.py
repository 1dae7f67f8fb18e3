"""bash eval.sh --use_api true against a real local server that fails in every way: no item lost, no secret told."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import REPO, environ, find_no_text, make_checkout, needs_driver_env, run_eval
from tests.support.image_server import ImageServer

pytestmark = needs_driver_env

SECRET = "sk-never-to-be-seen-4711"
KWARGS = ["--custom_model_kwargses", "size=256x256,quality=low,backoff=0.05"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return find_no_text(make_checkout(tmp_path / "checkout"))


def prompts() -> list[str]:
    lines = (REPO / "benchmarks/quicktext/data/prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def words(limit: int, *more: str) -> list[str]:
    names = ["--model_names", "some-served-model", "--ds_names", "quicktext", "--use_api", "true"]
    return [*names, "--num_workers", "8", "--limit", str(limit), *KWARGS, *more]


def last_records(checkout: Path) -> dict[str, dict[str, Any]]:
    path = checkout / "output/some-served-model/quicktext/generation.jsonl"
    return {r["item"]: r for r in map(json.loads, path.read_text().splitlines())}


def test_every_fault_ends_ok_refused_or_failed_and_resume_asks_only_for_failed(checkout: Path) -> None:
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
    with ImageServer() as server:
        for number, script in faults.items():
            server.script(prompts()[number], *script)
        env = {"API_KEY": SECRET, "BASE_URL": server.base_url}
        run = run_eval(checkout, *words(20), **env)
        assert run.returncode == 3, run.stdout + run.stderr
        records = last_records(checkout)
        assert Counter(r["status"] for r in records.values()) == {"ok": 18, "refused": 1, "failed": 1}
        refused = next(r for r in records.values() if r["status"] == "refused")
        assert "rejected by the safety system" in refused["error"]["text"]
        assert all(r["seed_honoured"] is False for r in records.values() if r["status"] == "ok")
        coverage = json.loads((checkout / "output/some-served-model/quicktext/result.json").read_text())[
            "coverage"
        ]
        assert (coverage["generated"], coverage["refused"], coverage["failed"]) == (18, 1, 1)

        # a bad request about one item, asked alone: the images that are there prove that the model works
        server.script(prompts()[8], "400")
        once_more = run_eval(checkout, *words(20), **env)
        assert once_more.returncode == 3, once_more.stdout
        assert Counter(r["status"] for r in last_records(checkout).values())["ok"] == 18

        server.script(prompts()[8], "ok")
        asked_before = len(server.requests)
        again = run_eval(checkout, *words(20), **env)
        assert again.returncode == 3, "one item stays refused"
        assert len(server.requests) == asked_before + 1
        assert Counter(r["status"] for r in last_records(checkout).values()) == {"ok": 19, "refused": 1}


def test_missing_key_is_told_before_anything_starts(checkout: Path) -> None:
    run = run_eval(checkout, *words(4), API_KEY="")
    assert run.returncode == 2
    assert "API_KEY is not set" in run.stderr


def test_blank_placeholders_are_counted_as_blank(checkout: Path) -> None:
    (checkout / "config.local.sh").write_text("GENERATE_BLANK_IMAGE_ON_ERROR=true\n")
    with ImageServer() as server:
        server.script(prompts()[1], "garbage")
        run = run_eval(checkout, *words(4), API_KEY="EMPTY", BASE_URL=server.base_url)
    assert run.returncode == 3, run.stdout + run.stderr
    result = json.loads((checkout / "output/some-served-model/quicktext/result.json").read_text())
    assert (result["coverage"]["blank"], result["coverage"]["generated"]) == (1, 3)
    assert result["headline"] == []


def test_no_secret_in_ps_logs_results_or_git(checkout: Path) -> None:
    (checkout / "config.local.sh").write_text(f'API_KEY="{SECRET}"\nHF_TOKEN="hf_{SECRET}"\n')
    with ImageServer(latency=0.3) as server:
        process = subprocess.Popen(
            ["bash", str(checkout / "eval.sh"), *words(24)],
            env=environ(checkout, BASE_URL=server.base_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        lines = set()
        while process.poll() is None:
            lines |= set(
                subprocess.run(["ps", "-ewwo", "args"], capture_output=True, check=True).stdout.splitlines()
            )
            time.sleep(0.1)
        assert process.stdout is not None
        printed = process.stdout.read()
    assert process.returncode == 0, printed.decode()
    assert any(b"infer/generate.py" in line for line in lines), "ps saw the generate job"
    assert not [line for line in lines if SECRET.encode() in line]
    assert SECRET.encode() not in printed
    for path in [*(checkout / "output").rglob("*"), *(checkout / "log").rglob("*")]:
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    ignored = subprocess.run(
        ["git", "check-ignore", "config.local.sh", "output", "log"], cwd=REPO, check=False
    )
    assert ignored.returncode == 0, "git ignores where secrets and results are"
    assert os.environ.get("API_KEY") is None
