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

from tests.support.checkout import environ, make_checkout, needs_driver_env, run_eval
from tests.support.fake_gpus import install_fake_gpus
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


def asked(kit: Kit, benchmark: str, model: str = "reference-noise") -> int:
    """How many questions the latest evaluation had left to ask."""
    logs = (kit.checkout / "log" / model).glob(f"{benchmark}_evaluate_*.log")
    text = max(logs, key=lambda path: path.stat().st_mtime).read_text()
    return int(text.split(" are answered, ")[1].split(" to ask")[0])


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


def test_corrected_rules_ask_again_only_what_they_ask_otherwise(all_tasks: Kit, tmp_path: Path) -> None:
    shutil.copytree(all_tasks.folder("oneig"), tmp_path / "official")
    before = len(all_tasks.server.requests)
    ended = all_tasks.run("oneig", rules="corrected", images_per_prompt=PER_PROMPT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    corrected = all_tasks.result("oneig")
    assert asked(all_tasks, "oneig") == len(all_tasks.server.requests) - before
    assert asked(all_tasks, "oneig") <= PER_PROMPT, "only readings may be longer"
    assert "/corrected/" in corrected["evaluator"]["id"]
    assert "text_official" not in corrected["metrics"]
    assert corrected["metrics"]["style"]["value"] == pytest.approx(
        all_tasks.official["style"]["value"], abs=0.005
    ), "the same features, multiplied in float32"
    kept = list((all_tasks.folder("oneig") / "evaluators").glob("*/result.json"))
    assert [json.loads(path.read_text())["metrics"] for path in kept] == [all_tasks.official]
    shutil.rmtree(all_tasks.folder("oneig"))
    shutil.copytree(tmp_path / "official", all_tasks.folder("oneig"))


def test_official_grids_of_our_images_score_the_same(all_tasks: Kit) -> None:
    """Combined, adopted as the images of another model, and split: the same pixels reach every evaluator."""
    out = all_tasks.folder("oneig") / "official_grids"
    # a square grid has its axes either way; a row has not
    words = ["--model_name", "reference-noise", "--ds_name", "oneig", "--grid", "1,2"]
    words += ["--as_model", "elsewhere"]
    made = subprocess.run(
        [str(all_tasks.checkout / ".venv/bin/python"), "-m", "benchmarks.oneig.grids", *words],
        cwd=all_tasks.checkout,
        env=environ(all_tasks.checkout),
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert len(list((out / "images").glob("*/elsewhere/*.webp"))) == PROMPTS
    images = ("--images", str(out))
    # of the encoders the quickest: every evaluator gets its images in the same way
    tasks = "alignment,text,style"
    few = LIMIT - PER_PROMPT  # without the task reasoning, its prompt is none of the first
    ended = all_tasks.run("oneig", *images, model="elsewhere", grid="1,2", tasks=tasks, limit=few)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ours, theirs = all_tasks.official, all_tasks.result("oneig", "elsewhere")["metrics"]
    left_out = ("diversity", "reasoning", "oneig_total")
    assert theirs == {name: ours[name] for name in ours if not name.startswith(left_out)}
    assert set(tasks.split(",")) <= set(theirs)


def test_chinese_has_a_class_of_its_own_and_no_lengths(kit: Kit) -> None:
    tasks = "alignment,text"
    ended = kit.run("oneig-zh", limit=48, tasks=tasks)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = kit.result("oneig-zh")
    assert result["headline"] == tasks.split(",")
    assert all(result["metrics"][name]["value"] is not None for name in result["headline"])
    assert "oneig_total" not in result["metrics"]
    assert not [name for name in result["metrics"] if "short" in name or "NP" in name]
    classes = {sample["class_item"] for sample in kit.details("oneig-zh", "alignment")["details"]}
    assert classes == {"anime", "human", "object", "multilingualism"}
    texts = [r.prompt for r in kit.server.requests if "请" in r.prompt or "是" in r.prompt]
    assert texts, "the questions are Chinese"
    assert all(text.endswith(". Please answer 'Yes' or 'No' only.") for text in texts)


def test_rescoring_encoders_takes_the_gpu_that_they_ran_on(kit: Kit, tmp_path: Path) -> None:
    """On a CPU they have another precision: who rescored there would find no answer."""
    machine = install_fake_gpus(tmp_path, ["GPU-1"])
    environ = {"FAKE_NVML": machine}
    ended = kit.run("oneig", "--dry_run", "--rescore", tasks="style", environ=environ)
    assert ", 1 GPU, " in ended.stdout.split("evaluate:")[1].splitlines()[0]


def test_texts_are_read_offline_by_a_text_reader(kit: Kit) -> None:
    """Neither a judge, nor a GPU, nor an environment with torch."""
    kit.forget("reference-typeset")
    ended = kit.run(
        "oneig",
        *["--judges", "oneig=ppocr", "--judge_kwargs", ""],
        *["--custom_model_kwargses", "width=512,height=512"],
        model="reference-typeset",
        tasks="text",
        limit=8,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = kit.result("oneig", "reference-typeset")
    assert result["evaluator"]["id"].startswith("ppocr-v4/official/")
    assert result["headline"] == ["text"]
    assert result["metrics"]["text"]["value"] > 0.9
    assert result["metrics"]["text/WAC"]["value"] > 0.5
