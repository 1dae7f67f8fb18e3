"""OneIG-Bench on its real data through eval.sh: a judge on a local server, encoders of the real kinds, but tiny."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.support.checkout import make_checkout, needs_driver_env, run_eval
from tests.support.judge_server import JudgeServer
from tests.support.mirror import shared_mirror
from tests.support.tiny_encoders import save_csd, save_se
from tests.support.tiny_llm2clip import save_llm2clip

pytestmark = needs_driver_env

REPO = Path(__file__).resolve().parents[2]
PACKAGES = Path(os.environ.get("DREAMSIM_PACKAGES") or Path(sys.prefix) / "dreamsim-packages")
# the first six prompts: one of each class, and a second anime prompt, which has a style
PROMPTS, PER_PROMPT = 6, 2
LIMIT = PROMPTS * PER_PROMPT


@dataclass
class Kit:
    """A checkout with the data of both editions and weights for all encoders, and its judge."""

    checkout: Path
    server: JudgeServer
    weights: dict[str, str]
    asked: int = 0  # requests of the run of all tasks
    official: dict[str, Any] = field(default_factory=dict)  # its metrics

    def run(
        self,
        benchmark: str,
        *more: str,
        limit: int = LIMIT,
        model: str = "reference-noise",
        environ: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> subprocess.CompletedProcess[str]:
        given = {"weights": self.weights, **kwargs}
        small = ["--custom_model_kwargses", "width=128,height=96"] * ("--images" not in more)
        words = ["--model_names", model, "--ds_names", benchmark, "--limit", str(limit)]
        words += ["--judges", f"{benchmark}=openai:qwen2.5-vl-7b", "--num_workers", "8"]
        if {"alignment", "text"} & set(str(kwargs.get("tasks", "text")).split(",")):
            words += ["--judge_kwargs", f"base_url={self.server.base_url},backoff=0.05"]
        words += ["--ds_kwargs", ",".join(f"{name}={json.dumps(value)}" for name, value in given.items())]
        # what torchvision lacks here, and DreamSim's packages, for the evaluation's process
        paths = (self.checkout, REPO / "tests/support/torchvision_ops", PACKAGES)
        own = {"API_KEY": "sk-judge-4711", "PYTHONPATH": os.pathsep.join(map(str, paths))}
        return run_eval(self.checkout, *words, *small, *more, **{**own, **environ})

    def folder(self, benchmark: str, model: str = "reference-noise") -> Path:
        return self.checkout / "output" / model / benchmark

    def result(self, benchmark: str, model: str = "reference-noise") -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder(benchmark, model) / "result.json").read_text())
        return loaded

    def details(self, benchmark: str, task: str) -> dict[str, Any]:
        path = self.folder(benchmark) / "official" / f"oneig_{task}.json"
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded

    def forget(self, model: str) -> None:
        """Remove what another test may have left: images of another size, a fuller result."""
        shutil.rmtree(self.folder("oneig", model), ignore_errors=True)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    folder = tmp_path_factory.mktemp("oneig")
    checkout = make_checkout(folder / "kit")
    words = ["--eval", "false", "--ds_names", "oneig;oneig-zh", "--mirror", str(shared_mirror())]
    subprocess.run(["bash", "utils/prefetch.sh", *words], cwd=checkout, check=True, capture_output=True)
    (checkout / "config.local.sh").write_text(f"EVAL_ENV_MAP['encoders']='{sys.prefix}'\n")
    save_csd(folder / "csd.pth", projection=768)  # the real reference vectors say how wide an encoder is
    save_se(folder / "se", projection=1280)
    weights = {"csd": str(folder / "csd.pth"), "se": str(folder / "se"), **save_llm2clip(folder / "llm2clip")}
    with JudgeServer() as server:
        yield Kit(checkout, server, weights)


@pytest.fixture(scope="module")
def bfloat16_by_eval_sh() -> None:
    """Skips where LLM2CLIP cannot run in the processes of eval.sh: see tests/support/attention.py."""
    if os.environ.get("ATEN_CPU_CAPABILITY"):
        pytest.skip("torch has no attention in bfloat16 with ATEN_CPU_CAPABILITY")


@pytest.fixture(scope="module")
def with_dreamsim(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """The kit with DreamSim's weights too; skips where its package is not installed beside the tests."""
    if not (PACKAGES / "dreamsim").is_dir():
        pytest.skip(f"no DREAMSIM_PACKAGES, and test.sh has not installed {PACKAGES}")
    folder = tmp_path_factory.mktemp("dreamsim")
    code = "import pathlib, sys; from tests.support.tiny_dreamsim import save_dreamsim as save; "
    code += "save(pathlib.Path(sys.argv[1]))"
    paths = (REPO, REPO / "tests/support/torchvision_ops", PACKAGES)
    subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        check=True,
        capture_output=True,
    )
    return Kit(kit.checkout, kit.server, {**kit.weights, "dreamsim": str(folder)})


@pytest.fixture(scope="module")
def all_tasks(with_dreamsim: Kit, bfloat16_by_eval_sh: None) -> Iterator[Kit]:
    """The kit after a run of all five tasks in English, with a judge of its own, which counts that run's requests."""
    with JudgeServer() as server:
        kit = replace(with_dreamsim, server=server)
        ended = kit.run("oneig", images_per_prompt=PER_PROMPT)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        kit.asked, kit.official = len(server.requests), kit.result("oneig")["metrics"]
        yield kit


def test_all_five_tasks(all_tasks: Kit) -> None:
    result = all_tasks.result("oneig")
    assert result["coverage"]["judged"] == LIMIT
    assert result["headline"] == ["alignment", "text", "reasoning", "style", "diversity", "oneig_total"]
    assert all(result["metrics"][name]["value"] is not None for name in result["headline"])
    assert result["evaluator"]["id"].startswith("qwen2.5-vl-7b/openai/official/")
    assert not result["evaluator"]["official"], "neither this judge nor these weights are"
    details = result["evaluator"]["details"]
    assert set(details["answerers"]) == set(details["tasks"])
    assert (
        "scored by the official rules (the other choice is corrected), 2 images per prompt" in result["notes"]
    )
    assert all_tasks.weights["csd"] not in json.dumps(result["evaluator"]), "a place decides nothing"
    assert result["provenance"]["judge_calls"] == all_tasks.asked
    sent = all_tasks.server.requests[0].fields["messages"][0]["content"]
    assert [part["type"] for part in sent] == ["image_url", "text"], "first the image, no system turn"
