"""eval.sh with API images and an API judge beside them: killed anywhere it goes on, and all is as in turn."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import make_checkout, needs_driver_env, start_eval
from tests.support.image_server import PausingServer
from tests.support.jobs import commands_in
from tests.support.judge_server import ReplyServer
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_driver_env

BENCHMARK = '''
"""Asks of each image whether it shows what it should."""

from __future__ import annotations

from imageevalkit.benchmark.shapes import YesNo


class Shows(YesNo):
    name, version, judge = "shows", "1", "openai:judge-a"
    question = "Does it show {prompt}?"
'''
N = 16


@dataclass
class Runs:
    """One cell in one checkout: 16 images of ``images``, a question about each to ``judge``."""

    checkout: Path
    images: PausingServer
    judge: ReplyServer
    settings: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        return [
            *["--model_names", "model-a", "--ds_names", "shows", "--use_api", "true", "--num_workers", "4"],
            *[
                "--judge_kwargs",
                f"base_url={self.judge.base_url},api_key_env=JUDGE_API_KEY,max_attempts=2,backoff=0.05",
            ],
            *["--custom_model_kwargses", "max_attempts=2,backoff=0.05"],
        ]

    def start(self, overlap: bool = True) -> subprocess.Popen[str]:
        """One command; not ``overlap``: the stages in turn."""
        (self.checkout / "config.local.sh").write_text("" if overlap else "OVERLAP=false\n")
        keys = {"API_KEY": "sk-a", "JUDGE_API_KEY": "sk-b", "BASE_URL": self.images.base_url}
        return start_eval(self.checkout, *self.words(), **keys)

    @property
    def folder(self) -> Path:
        return self.checkout / "output/model-a/shows"

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asked(self) -> Counter[str]:
        """How often each question was answered, by the hash of its request."""
        return Counter(record["request"] for record in self.lines("judgements.jsonl"))

    def left_behind(self) -> dict[str, Any]:
        """Returns the files of the cell after a run, without times."""
        result = json.loads((self.folder / "result.json").read_text())
        for name in ("time", "run", "generation_seconds"):
            del result["provenance"][name]
        scores = [
            {**one, "reason": re.sub(r" in \d+ s\b", "", one.get("reason", ""))}
            for one in self.lines("scores.jsonl")
        ]
        return {"result": result, "scores": scores, "asked": self.asked()}

    def forget(self) -> None:
        shutil.rmtree(self.checkout / "output")
        self.images.requests.clear()
        self.judge.requests.clear()

    def process(self, words: bytes) -> int:
        """The process of this checkout, no guard, whose command line holds ``words``."""
        for pid, command in commands_in(self.checkout):
            line = b"\0".join(command)
            if words in line and b"guard" not in line:
                return pid
        raise AssertionError(f"nobody runs {words!r}")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = make_checkout(tmp_path_factory.mktemp("following") / "kit")
    folder = checkout / "benchmarks/shows"
    folder.mkdir()
    (folder / "benchmark.py").write_text(BENCHMARK)
    (folder / "prompts.json").write_text(json.dumps([{"prompt": f"thing {n:02d}"} for n in range(N)]))
    return checkout


@pytest.fixture
def runs(prepared: Path) -> Iterator[Runs]:
    with PausingServer() as images, ReplyServer() as judge:
        judge.reply = lambda request: "no" if "thing 03" in request.prompt else "yes"
        yield Runs(prepared, images, judge)
        images.free = 10**9
        shutil.rmtree(prepared / "output", ignore_errors=True)


def test_images_are_judged_while_others_are_made(runs: Runs) -> None:
    """A refused image and one that fails among them; the old order gives the same."""
    runs.images.script("thing 01", "refuse")
    runs.images.script("thing 02", "500")
    runs.images.free = 10
    process = runs.start()
    wait_for(lambda: runs.judge.received >= 6)
    early = runs.judge.received
    assert not (runs.folder / "result.json").exists() and early <= 10
    runs.images.free = 10**9
    said = process.communicate(timeout=LONGEST_WAIT)[0]
    assert process.returncode == 3, said
    followed = runs.left_behind()
    assert followed["result"]["coverage"]["judged"] == N - 2 == runs.judge.received
    runs.forget()
    process = runs.start(overlap=False)
    said = process.communicate(timeout=LONGEST_WAIT)[0]
    assert process.returncode == 3, said
    last_image = max(request.time for request in runs.images.requests)
    assert min(request.time for request in runs.judge.requests) > last_image
    assert runs.left_behind() == followed


@pytest.mark.parametrize("victims", [[b"infer/generate.py", b"imageevalkit.evaluate"], [b"imageevalkit.cli"]])
def test_killed_in_the_middle_nothing_is_paid_twice(runs: Runs, victims: list[bytes]) -> None:
    """Both jobs (which are started again), or the launcher (the same command continues)."""
    runs.images.free = 8
    process = runs.start()
    wait_for(lambda: len(runs.lines("judgements.jsonl")) >= 4)
    for victim in victims:
        os.kill(runs.process(victim), signal.SIGKILL)
    if victims == [b"imageevalkit.cli"]:
        process.communicate(timeout=LONGEST_WAIT)
        process = runs.start()
    runs.images.free = 10**9
    said = process.communicate(timeout=LONGEST_WAIT)[0]
    assert process.returncode == 0, said
    assert runs.left_behind()["result"]["coverage"]["judged"] == N
    # what was under way at the kill may have been asked again
    assert set(runs.asked().values()) == {1} and len(runs.asked()) == N
    assert N <= runs.judge.received <= N + 4
    answered = Counter(
        record["item"] for record in runs.lines("generation.jsonl") if record["status"] == "ok"
    )
    assert set(answered.values()) == {1} and len(answered) == N
