"""Ctrl-C ends a judge's requests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.checkout import REPO
from tests.support.image_server import KEY
from tests.support.judge_server import JudgeServer
from tests.support.waiting import LONGEST_WAIT

_INTERRUPTED = """
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit import registry
from imageevalkit.benchmark.question import Message, Question, Sampling

questions = [Question("q", (Message("user", (f"Score {n}",)),), Sampling(5), item=str(n)) for n in range(400)]
try:
    for answer in registry.judge("openai:m-1", {}, options=JudgeOptions()).ask(questions):
        print(answer.question.item, flush=True)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def judge_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        monkeypatch.setenv("API_KEY", KEY)
        monkeypatch.setenv("BASE_URL", running.base_url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield running


def test_an_interrupt_ends_the_asking_without_a_traceback(judge_server: JudgeServer) -> None:
    judge_server.latency = 0.1
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate(timeout=LONGEST_WAIT)
    assert (process.returncode, complaints) == (0, "")
    assert said.endswith("interrupted\n")
