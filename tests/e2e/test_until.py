"""--until "a vs b": runs that stop early, go on and are completed."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import make_checkout, needs_driver_env, start_eval
from tests.support.image_replies import base64_of, images_reply, png_of
from tests.support.image_server import Fault, PausingServer, Received
from tests.support.judge_server import ReplyServer
from tests.support.schemas import check_files
from tests.support.waiting import LONGEST_WAIT, wait_for

BENCHMARK = '''
"""Asks of each image whether it shows what it should."""

from __future__ import annotations

from imageevalkit.benchmark.shapes import YesNo


class {cls}(YesNo):
    name, version, judge = "{name}", "1", "openai:judge-a"
    question = "Does it show {{prompt}}?"
'''
MODELS, SIDES = ("model-a", "model-b"), {"model-a": 64, "model-b": 96}
FAR, NEAR = 80, 36  # items


class SizedServer(PausingServer):
    """Each model makes images of its own size."""

    @property
    def faults(self) -> Mapping[str, Fault]:
        return {**super().faults, "ok": _sized}


def _sized(handler: Any, request: Received) -> None:
    png = png_of(request.prompt, SIDES[str(request.fields["model"])])
    handler.send_json(200, images_reply({"b64_json": base64_of(png)}))


class SizeJudge(ReplyServer):
    """Knows whose image it is by its width: of what is "far" model-a shows most and model-b little, else they are
    alike."""

    def enter(self, request: Received) -> str:
        [file] = request.files
        request.fields["width"] = int.from_bytes(file.data[16:20], "big")
        return super().enter(request)


def shows(request: Received) -> str:
    chance = int(hashlib.sha256(request.prompt.encode()).hexdigest()[:8], 16) / 16**8
    able = 0.9 if request.fields["width"] == SIDES["model-a"] and "far" in request.prompt else 0.3
    return "yes" if chance < able else "no"


@dataclass
class Runs:
    checkout: Path
    images: SizedServer
    judge: SizeJudge

    def start(self, *more: str, benchmarks: str = "far;near") -> subprocess.Popen[str]:
        asking = f"base_url={self.judge.base_url},api_key_env=JUDGE_API_KEY"
        words = ["--model_names", ";".join(MODELS), "--ds_names", benchmarks, "--use_api", "true"]
        keys = {"API_KEY": "sk-a", "JUDGE_API_KEY": "sk-b", "BASE_URL": self.images.base_url}
        words += ["--judge_kwargs", asking, "--num_workers", "8", *more]
        return start_eval(self.checkout, *words, **keys)

    def run(self, *more: str, benchmarks: str = "far;near") -> str:
        process = self.start(*more, benchmarks=benchmarks)
        said = process.communicate(timeout=LONGEST_WAIT)[0]
        assert process.returncode == 0, said
        return said

    def folder(self, model: str, benchmark: str) -> Path:
        return self.checkout / "output" / model / benchmark

    def result(self, model: str, benchmark: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder(model, benchmark) / "result.json").read_text())
        return found

    def stored(self, benchmark: str) -> set[tuple[str, str]]:
        """Model and prompt of each image that is there, and on record."""
        found = set()
        for model in MODELS:
            folder = self.folder(model, benchmark)
            path = folder / "generation.jsonl"
            # the last line may be under way
            for line in path.read_text().split("\n")[:-1] if path.exists() else ():
                record = json.loads(line)
                if (folder / f"{record['item']}.png").exists():
                    found.add((model, record["prompt"]))
        return found

    def made(self) -> Counter[tuple[str, str]]:
        return Counter((str(one.fields["model"]), one.prompt) for one in self.images.requests)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    checkout = make_checkout(tmp_path_factory.mktemp("until") / "kit")
    for name, count in (("far", FAR), ("near", NEAR)):
        folder = checkout / "benchmarks" / name
        folder.mkdir()
        (folder / "benchmark.py").write_text(BENCHMARK.format(cls=name.title(), name=name))
        prompts = [{"prompt": f"{name} thing {n:03d}"} for n in range(count)]
        (folder / "prompts.json").write_text(json.dumps(prompts))
    with SizedServer() as images, SizeJudge() as judge:
        judge.reply = shows
        yield Runs(checkout, images, judge)


UNTIL = ("--until", "model-a vs model-b")


@needs_driver_env
def test_a_run_stops_once_it_is_settled_and_another_one_makes_the_rest(runs: Runs) -> None:
    """Killed in the first round, it goes on from there; nothing is ever made or asked twice."""
    runs.images.free = 40
    killed = runs.start(*UNTIL)
    wait_for(lambda: len(runs.stored("far")) >= 10)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=LONGEST_WAIT)
    stored = runs.stored("far") | runs.stored("near")
    runs.images.free = 10**9
    said = runs.run(*UNTIL)
    assert "far: 30 of 80 items: accuracy: model-a > model-b, settled after" in said
    assert "near: it is not settled which of the two is better; all items were asked for" in said
    for model in MODELS:
        stopped, full = runs.result(model, "far"), runs.result(model, "near")
        coverage = stopped["coverage"]
        assert (stopped["state"], coverage["judged"], coverage["unasked"], coverage["failed"]) == (
            *("partial", 30, FAR - 30, 0),
        )
        assert stopped["headline"] == ["accuracy"] and not stopped["withheld"]
        assert stopped["until"]["pair"] == [*MODELS]
        assert stopped["until"]["better"]["accuracy"][0] == "model-a"
        assert f"30 of {FAR} items were asked for (--until)" in stopped["notes"][0]
        assert (full["state"], full["coverage"]["judged"], full["until"]) == ("complete", NEAR, None)
        check_files(runs.folder(model, "far"))
        assert len([*(runs.folder(model, "far") / "images").iterdir()]) == 30
    rows = list(csv.DictReader((runs.checkout / "output/leaderboard.csv").read_text().splitlines()))
    groups = {row["group"] for row in rows if row["benchmark"] == "far"}
    assert groups == {""} and {row["unasked"] for row in rows if row["benchmark"] == "far"} == {"50"}
    twice = {one for one, count in runs.made().items() if count > 1}
    # what was under way when it was killed is lost, and nothing else
    assert stored and not twice & stored
    runs.run(benchmarks="far")
    assert {one for one, count in runs.made().items() if count > 1} == twice
    assert runs.judge.received == 2 * (FAR + NEAR)
    for model in MODELS:
        found = runs.result(model, "far")
        assert (found["state"], found["coverage"]["judged"], found["until"]) == ("complete", FAR, None)


@needs_driver_env
def test_a_benchmark_that_cannot_stop_early_is_told_before_an_image_is_made(runs: Runs) -> None:
    folder = runs.checkout / "benchmarks/whole"
    shutil.copytree(runs.checkout / "benchmarks/near", folder)
    code = BENCHMARK.format(cls="Whole", name="whole")
    (folder / "benchmark.py").write_text(f'{code}    needs_all_items = "it is scored as a whole"\n')
    said = runs.run(*UNTIL, "--dry_run", benchmarks="far;whole")
    shutil.rmtree(folder)
    assert "that is the most: --until asks for 10% of the items of a benchmark (30 at least)" in said
    told = "note: --until cannot stop whole early; all of its images are generated, because it is scored as a whole"
    assert told in said and "cannot stop far early" not in said
