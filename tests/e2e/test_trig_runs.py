"""TRIG through prefetch.sh and eval.sh, from a local file to scores, with a real judge server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trig.benchmark import trig_score
from tests.support.checkout import environ, make_checkout, needs_driver_env, run_eval
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror
from tests.support.trig_data import write_local

pytestmark = needs_driver_env

MODELS = {"t2i": "reference-noise", "s2p": "reference-blank"}
PAIRS = "IQ-R_TA-C,TA-S_R-B"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkout(tmp_path_factory.mktemp("trig") / "kit")


@pytest.fixture
def checkout(tree: Path) -> Path:
    """The shared tree without the results of other tests, whose judgements a run would resume."""
    shutil.rmtree(tree / "output", ignore_errors=True)
    return tree


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        yield running


def settings(checkout: Path, task: str, **more: Any) -> str:
    given = {**write_local(checkout / "own", task, 3), "pairs": PAIRS, **more}
    return ",".join(f"{name}={json.dumps(value)}" for name, value in given.items())


def prefetch(checkout: Path, task: str, given: str) -> subprocess.CompletedProcess[str]:
    words = ["--ds_names", f"trig-{task}", "--ds_kwargs", given, "--mirror", str(shared_mirror())]
    return subprocess.run(
        ["bash", "utils/prefetch.sh", *words, "--eval", "false"],
        cwd=checkout,
        env=environ(checkout),
        capture_output=True,
        text=True,
        check=False,
    )


def run(
    checkout: Path, server: JudgeServer, task: str, given: str, *more: str
) -> subprocess.CompletedProcess[str]:
    words = ["--model_names", MODELS[task], "--ds_names", f"trig-{task}", "--ds_kwargs", given]
    words += ["--judges", f"trig-{task}=openai:Qwen/Qwen2.5-VL-7B-Instruct", "--num_workers", "8"]
    words += ["--judge_kwargs", f"base_url={server.base_url},backoff=0.05", *more]
    return run_eval(checkout, *words, API_KEY="sk-judge-4711-key")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("task", ["t2i", "s2p"])
def test_a_task_from_its_file_to_its_scores(checkout: Path, server: JudgeServer, task: str) -> None:
    given = settings(checkout, task)
    got = prefetch(checkout, task, given)
    assert got.returncode == 0, got.stderr
    ended = run(checkout, server, task, given)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cell = checkout / "output" / MODELS[task] / f"trig-{task}"
    result = json.loads((cell / "result.json").read_text())
    coverage = result["coverage"]
    assert coverage["expected"] == coverage["judged"] == 6
    assert result["headline"] == ["IQ-R", "TA-C", "TA-S", "R-B"]
    assert result["evaluator"]["id"].split("/")[-2] == "official"
    # each score from what the judge said, by itself
    said = {(one["item"], one["question"]): one for one in lines(cell / "judgements.jsonl")}
    assert len(said) == len(server.requests) == 12
    scores = lines(cell / "scores.jsonl")
    for one in scores:
        assert [*one["values"]] == one["keys"]["pair"].split("_")
        for dimension, value in one["values"].items():
            listed = said[one["item"], dimension]["probabilities"]
            assert len(listed) == 5 and value == trig_score(listed)
    assert 0 < result["metrics"]["TA-S"]["value"] < 1
    official = {path.name: json.loads(path.read_text()) for path in (cell / "official").glob("*.json")}
    by_pair = official["scores_by_pair.json"]
    assert {pair: len(items) for pair, items in by_pair.items()} == {"IQ-R_TA-C": 3, "TA-S_R-B": 3}
    first = next(one for one in scores if one["item"] == "images/IQ-R_TA-C_1")
    assert by_pair["IQ-R_TA-C"]["IQ-R_TA-C_1"] == [*first["values"].values()]
    assert [*official["results.json"]["IQ-R_TA-C_1"]] == ["IQ-R", "TA-C"]
    assert (cell / "images/IQ-R_TA-C_1.png").is_file()


def test_rules_are_named_and_their_answers_shared(checkout: Path, server: JudgeServer) -> None:
    ids = set[str]()
    given = settings(checkout, "t2i", pairs="D-K_D-A")
    assert prefetch(checkout, "t2i", given).returncode == 0
    for rules in ("official", "corrected"):
        ended = run(checkout, server, "t2i", f"{given},rules={rules}")
        # by the corrected rules an answer without a rating is none
        assert ended.returncode in ((0, 3) if rules == "corrected" else (0,)), ended.stderr
        result = json.loads((checkout / "output/reference-noise/trig-t2i/result.json").read_text())
        assert result["evaluator"]["id"].split("/")[-2] == rules
        ids.add(result["evaluator"]["id"])
    assert len(ids) == 2 and len(server.requests) == 6, "each question is asked once"
