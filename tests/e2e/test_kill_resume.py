"""kill -9 of the generating process at three random moments, then resume: nothing truncated, twice or missing."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from PIL import Image

from imageevalkit.jobs.plan import GenerateOrder, Job, Plan
from tests.support.checkout import MANY, SLOW_NOISE, add_benchmark, add_model, environ, make_checkout

KILLS = 3
SETTING = {"module": ".model_utils.slow_noise", "class": "SlowNoise", "model_path": ""}


def plan_of(checkout: Path, run: Path, seconds: float) -> Path:
    setting = {**SETTING, "model_kwargs": {"seconds": seconds, "side": 160}}
    order = GenerateOrder(False, {"m": {"t2i": setting}})
    job = Job("generate:m", "generate", [], ["m/many"], [str(run / "many.log")], order=order)
    return Plan(str(run), False, [job]).save()


def start(checkout: Path, plan: Path, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "infer/generate.py", "--plan", str(plan), "--job", "generate:m"]
    return subprocess.Popen(command, cwd=checkout, env=environ(checkout, IMAGEEVALKIT_OUTPUT=str(output)))


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def images(output: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (output / "m/many").glob("*.png")}


def test_three_kills(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    add_benchmark(checkout, "many", "Many", MANY)
    plan = plan_of(checkout, tmp_path / "run", seconds=0.004)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    assert start(checkout, plan, undisturbed).wait() == 0

    moments = random.Random(0)
    generation = killed / "m/many/generation.jsonl"
    while_making = 0
    for _ in range(KILLS):
        before = size_of(generation)
        process = start(checkout, plan, killed)
        while size_of(generation) == before and process.poll() is None:
            time.sleep(0.001)  # until it makes images; then kill it at a random moment of that
        time.sleep(moments.uniform(0.0, 0.04))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            while_making += 1
        process.wait()
        for path in (killed / "m/many").glob("*.png"):
            Image.open(path).load()  # every image with a final name is whole, at every moment
    assert while_making >= KILLS - 1, "most kills must hit a process that is making images"
    assert len(images(killed)) < 400, "and the last one still had some to make"
    assert start(checkout, plan, killed).wait() == 0

    assert images(killed) == images(undisturbed)
    records = [json.loads(line) for line in (killed / "m/many/generation.jsonl").read_text().splitlines()]
    made = Counter(record["item"] for record in records if record["status"] == "ok")
    assert len(made) == 400
    assert set(made.values()) == {1}, "an item that was recorded is never made again"
    assert not list((killed / "m/many").glob(".*.part"))
