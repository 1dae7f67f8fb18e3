"""OneIG-Bench on its real data through eval.sh: a judge on a local server, encoders of the real kinds, but tiny."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.checkout import REPO, make_checkout, needs_driver_env, run_command, run_eval
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror
from tests.support.tiny_encoders import save_csd, save_se
from tests.support.tiny_llm2clip import save_llm2clip

PACKAGES = Path(os.environ.get("DREAMSIM_PACKAGES") or Path(sys.prefix) / "dreamsim-packages")
# the first six prompts: one of each class, and a second anime prompt, which has a style
PROMPTS, PER_PROMPT = 6, 2
LIMIT = PROMPTS * PER_PROMPT


@needs_driver_env
@pytest.mark.skipif(not (PACKAGES / "dreamsim").is_dir(), reason=f"test.sh has not installed {PACKAGES}")
@pytest.mark.skipif(
    bool(os.environ.get("ATEN_CPU_CAPABILITY")),
    reason="torch has no attention in bfloat16 with ATEN_CPU_CAPABILITY: see tests/support/attention.py",
)
def test_all_five_tasks(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "kit")
    words = ["--eval", "false", "--ds_names", "oneig", "--mirror", str(shared_mirror())]
    run_command(["bash", "utils/prefetch.sh", *words], cwd=checkout, status=0)
    (checkout / "config.local.sh").write_text(f"EVAL_ENV_MAP['encoders']='{sys.prefix}'\n")
    save_csd(tmp_path / "csd.pth", projection=768)  # the real reference vectors say how wide an encoder is
    save_se(tmp_path / "se", projection=1280)
    weights = {"csd": str(tmp_path / "csd.pth"), "se": str(tmp_path / "se")}
    weights |= {**save_llm2clip(tmp_path / "llm2clip"), "dreamsim": str(tmp_path / "dreamsim")}
    # what torchvision lacks here, and DreamSim's packages, for processes with networks
    paths = [str(REPO / "tests/support/torchvision_ops"), str(PACKAGES)]
    code = "import pathlib, sys; from tests.support.tiny_dreamsim import save_dreamsim as save; "
    code += "save(pathlib.Path(sys.argv[1]))"
    run_command(
        [sys.executable, "-c", code, weights["dreamsim"]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO), *paths])},
        status=0,
    )
    with JudgeServer() as server:
        words = ["--model_names", "reference-noise", "--ds_names", "oneig", "--limit", str(LIMIT)]
        words += ["--judges", "oneig=openai:qwen2.5-vl-7b", "--num_workers", "8"]
        words += ["--judge_kwargs", f"base_url={server.base_url},backoff=0.05"]
        words += ["--ds_kwargs", f"weights={json.dumps(weights)},images_per_prompt={PER_PROMPT}"]
        words += ["--custom_model_kwargses", "width=128,height=96"]
        python_path = os.pathsep.join([str(checkout), *paths])
        run_eval(checkout, *words, API_KEY="sk-judge-4711", PYTHONPATH=python_path, status=0)
    result = json.loads((checkout / "output/reference-noise/oneig/result.json").read_text())
    assert result["coverage"]["judged"] == LIMIT
    assert result["headline"] == ["alignment", "text", "reasoning", "style", "diversity", "oneig_total"]
    assert all(result["metrics"][name]["value"] is not None for name in result["headline"])
    assert result["evaluator"]["id"].startswith("qwen2.5-vl-7b/openai/official/")
    assert not result["evaluator"]["official"], "neither this judge nor these weights are"
    details = result["evaluator"]["details"]
    assert set(details["answerers"]) == set(details["tasks"])
    note = "scored by the official rules (the other choice is corrected), 2 images per prompt"
    assert note in result["notes"]
    assert weights["csd"] not in json.dumps(result["evaluator"]), "a place decides nothing"
    assert result["provenance"]["judge_calls"] == len(server.requests)
    sent = server.requests[0].fields["messages"][0]["content"]
    assert [part["type"] for part in sent] == ["image_url", "text"], "first the image, no system turn"
