"""A judge in transformers through eval.sh: the benchmark's evaluation runs in the judge's environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.checkout import make_checkout, needs_driver_env, run_command, run_eval
from tests.support.mirror import shared_mirror
from tests.support.tiny_vlm import save_qwen3_vl

pytestmark = needs_driver_env


def test_geneval2_with_exact_probabilities(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "kit")
    words = ["--eval", "false", "--ds_names", "geneval2", "--mirror", str(shared_mirror())]
    run_command(["bash", "utils/prefetch.sh", *words], cwd=checkout, status=0)

    def run(judge: Path, *more: str) -> subprocess.CompletedProcess[str]:
        words = ["--model_names", "reference-typeset", "--ds_names", "geneval2", "--limit", "4"]
        words += ["--judges", f"geneval2=transformers:{judge}"]
        words += ["--judge_kwargs", f"environment={sys.prefix},dtype=float32"]
        return run_eval(checkout, *words, "--custom_model_kwargses", "width=128,height=96", *more, status=0)

    def result() -> dict[str, Any]:
        path = checkout / "output/reference-typeset/geneval2/result.json"
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded

    save_qwen3_vl(tmp_path / "tiny-qwen3-vl")
    judge = tmp_path / "tiny-qwen3-vl"
    run(judge)
    found = result()
    assert found["evaluator"]["id"].startswith("tiny-qwen3-vl/transformers/")
    assert not found["evaluator"]["official"]
    assert str(tmp_path) not in json.dumps(found["evaluator"]), "where the weights lie decides nothing"
    assert found["coverage"]["judged"] == 4
    assert "outside_mass" not in found["metrics"]
    assert 0 < found["metrics"]["soft_tifa_gm"]["value"] <= found["metrics"]["soft_tifa_am"]["value"]
    (tmp_path / "elsewhere").mkdir()
    judge.rename(tmp_path / "elsewhere/tiny-qwen3-vl")
    run(tmp_path / "elsewhere/tiny-qwen3-vl", "--judge_repeats", "6")
    noise = result()["noise"]
    assert (noise["repeated"], noise["changed"], noise["repeats"]["asked"]) == (6, 0, 6)
    assert not noise["repeats"]["found"]
    [probes] = (checkout / "output/judges").glob("tiny-qwen3-vl-transformers-*/*/probes.jsonl")
    assert len(probes.read_text().splitlines()) == 2 * 18
    log = max(
        (checkout / "log/reference-typeset").glob("geneval2_evaluate_*.log"), key=lambda p: p.stat().st_mtime
    )
    assert ", 0 to ask" in log.read_text()
