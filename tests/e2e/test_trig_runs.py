"""TRIG through prefetch.sh and eval.sh, from a local file to scores, with a real judge server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.trig.benchmark import trig_score
from tests.support.checkout import environ, make_checkout, needs_driver_env, run_eval
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror
from tests.support.trig_data import write_local

pytestmark = needs_driver_env

PAIRS = "IQ-R_TA-C,TA-S_R-B"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_task_from_its_file_to_its_scores(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "kit")
    settings = {**write_local(checkout / "own", "t2i", 3), "pairs": PAIRS}
    given = ",".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    words = ["--ds_names", "trig-t2i", "--ds_kwargs", given]
    subprocess.run(
        ["bash", "utils/prefetch.sh", *words, "--mirror", str(shared_mirror()), "--eval", "false"],
        cwd=checkout,
        env=environ(checkout),
        capture_output=True,
        check=True,
    )
    with JudgeServer() as server:
        words += ["--judges", "trig-t2i=openai:Qwen/Qwen2.5-VL-7B-Instruct", "--num_workers", "8"]
        words += ["--judge_kwargs", f"base_url={server.base_url},backoff=0.05"]
        ended = run_eval(checkout, "--model_names", "reference-noise", *words, API_KEY="sk-judge-4711-key")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    cell = checkout / "output" / "reference-noise" / "trig-t2i"
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
