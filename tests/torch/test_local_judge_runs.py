"""A judge in transformers through eval.sh: the benchmark's evaluation runs in the judge's environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import make_checkout, needs_driver_env, run_eval
from tests.support.mirror import shared_mirror
from tests.support.tiny_vlm import save_qwen2_5_vl, save_qwen3_vl

pytestmark = needs_driver_env


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_checkout(tmp_path_factory.mktemp("local") / "kit")
    subprocess.run(
        [
            "bash",
            "utils/prefetch.sh",
            "--eval",
            "false",
            "--ds_names",
            "geneval2;longtext",
            "--mirror",
            str(shared_mirror()),
        ],
        cwd=made,
        check=True,
        capture_output=True,
    )
    return made


def run(
    checkout: Path, benchmark: str, judge: str, kwargs: str, *more: str
) -> subprocess.CompletedProcess[str]:
    words = ["--model_names", "reference-typeset", "--ds_names", benchmark, "--limit", "4"]
    words += ["--judges", f"{benchmark}={judge}", "--judge_kwargs", kwargs]
    words += ["--custom_model_kwargses", "width=128,height=96"]
    return run_eval(checkout, *words, *more)


def result(checkout: Path, benchmark: str) -> dict[str, Any]:
    path = checkout / "output/reference-typeset" / benchmark / "result.json"
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_geneval2_with_exact_probabilities(checkout: Path, tmp_path: Path) -> None:
    save_qwen3_vl(tmp_path / "tiny-qwen3-vl")
    judge = f"transformers:{tmp_path / 'tiny-qwen3-vl'}"
    kwargs = f"environment={sys.prefix},dtype=float32"
    ended = run(checkout, "geneval2", judge, kwargs)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = result(checkout, "geneval2")
    assert found["evaluator"]["id"].startswith("tiny-qwen3-vl/transformers/")
    assert not found["evaluator"]["official"]
    assert str(tmp_path) not in json.dumps(found["evaluator"]), "where the weights lie decides nothing"
    assert found["coverage"]["judged"] == 4
    assert "outside_mass" not in found["metrics"]
    assert 0 < found["metrics"]["soft_tifa_gm"]["value"] <= found["metrics"]["soft_tifa_am"]["value"]
    (tmp_path / "tiny-qwen3-vl").rename(tmp_path / "gone")
    assert run(checkout, "geneval2", judge, kwargs, "--rescore").returncode == 1, "whose answers were they?"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gone").rename(tmp_path / "elsewhere/tiny-qwen3-vl")
    again = ("--judge_repeats", "6")
    moved = run(checkout, "geneval2", f"transformers:{tmp_path / 'elsewhere/tiny-qwen3-vl'}", kwargs, *again)
    assert moved.returncode == 0, moved.stdout + moved.stderr
    noise = result(checkout, "geneval2")["noise"]
    assert (noise["repeated"], noise["changed"], noise["repeats"]["asked"]) == (6, 0, 6)
    assert not noise["repeats"]["found"]
    [probes] = (checkout / "output/judges").glob("tiny-qwen3-vl-transformers-*/*/probes.jsonl")
    assert len(probes.read_text().splitlines()) == 2 * 18
    log = max(
        (checkout / "log/reference-typeset").glob("geneval2_evaluate_*.log"), key=lambda p: p.stat().st_mtime
    )
    assert ", 0 to ask" in log.read_text()


def test_the_texts_of_longtext_are_read_by_a_judge(checkout: Path, tmp_path: Path) -> None:
    save_qwen2_5_vl(tmp_path / "tiny-qwen2.5-vl")
    # random weights read on for thousands of tokens: let every second token end a reply
    config = tmp_path / "tiny-qwen2.5-vl/generation_config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({**settings, "eos_token_id": [settings["eos_token_id"], *range(9, 400, 2)]}))
    judge = f"transformers:{tmp_path / 'tiny-qwen2.5-vl'}"
    ended = run(checkout, "quicktext", judge, f"environment={sys.prefix},dtype=float32")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = result(checkout, "quicktext")
    assert found["coverage"]["judged"] == 4
    assert found["metrics"]["en"]["value"] is not None


def test_an_environment_that_is_missing_is_named_before_any_image(checkout: Path) -> None:
    ended = run_eval(
        checkout, "--model_names", "reference-typeset", "--ds_names", "geneval2", CONDA_BASE="/nowhere"
    )
    assert ended.returncode == 2
    assert "environment 'transformers' of geneval2's judge is missing" in ended.stderr
    assert "bash utils/make_env.sh --judge transformers" in ended.stderr
